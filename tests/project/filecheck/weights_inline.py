"""Inline weights are literals in the function: nothing is a global."""

import torch

import turbine


# CHECK-NOT: util.global
# CHECK: func.func @main
# CHECK: arith.constant dense_resource<weight> : tensor<8x4xf32>
# CHECK: torch.aten.mm
def text() -> str:
    model = torch.nn.Linear(4, 8, bias=False)
    return turbine.aot.export(model, args=(torch.ones(3, 4),), weights="inline").text()
