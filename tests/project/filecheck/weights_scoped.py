"""Marked weights are parameters of their own scope and name; the rest go where `weights` says."""

import torch

import turbine


# CHECK-NOT: @bias
# CHECK: util.global private @weight = #flow.parameter.named<"heads"::"left.weight">
# CHECK-NOT: util.global
# CHECK: func.func @main(
# CHECK-DAG: util.global.load @weight : tensor<2x4xf32>
# CHECK-DAG: arith.constant dense<{{.*}}> : tensor<2xf32>
# CHECK: return
def text() -> str:
    model = torch.nn.Linear(4, 2)
    turbine.aot.ExternalTensorTrait("heads", "left.weight").set(model.weight)
    return turbine.aot.export(model, args=(torch.ones(3, 4),), weights="inline").text()
