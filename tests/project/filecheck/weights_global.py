"""Global weights hold their values in the IR, under their own names."""

import torch

import turbine


# CHECK: util.global private @weight = dense_resource<weight> : tensor<8x4xf32>
# CHECK: util.global.load @weight
# CHECK-NOT: flow.parameter
def text() -> str:
    model = torch.nn.Linear(4, 8, bias=False)
    return turbine.aot.export(model, args=(torch.ones(3, 4),), weights="global").text()
