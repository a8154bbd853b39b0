"""Batch norm with running statistics leaves one multiply and one add per element."""

import torch

import turbine


# CHECK-NOT: torch.ops.aten.{{.*}}batch_norm
# CHECK: torch.ops.aten.rsqrt.default
# CHECK: [[SCALED:mul_\d+]]: "f32[2, 3, 4, 4]" = torch.ops.aten.mul.Tensor(input_1
# CHECK: torch.ops.aten.add.Tensor([[SCALED]]
# CHECK-NEXT: return
def text() -> str:
    model = torch.nn.BatchNorm2d(3).eval()
    return turbine.aot.export(model, args=(torch.ones(2, 3, 4, 4),)).program.text()
