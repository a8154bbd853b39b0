"""A dynamic dimension is a question mark in every type it reaches."""

import torch

import turbine


# CHECK: func.func @main(%{{.*}}: !torch.vtensor<[?,4],f32>) -> !torch.vtensor<[?,2],f32>
# CHECK-SAME: torch.assume_strict_symbolic_shapes
# CHECK: torch.aten.addmm {{.*}} -> !torch.vtensor<[?,2],f32>
def text() -> str:
    shapes = ({0: torch.export.Dim("batch", max=64)},)
    model, args = torch.nn.Linear(4, 2), (torch.ones(3, 4),)
    return turbine.aot.export(model, args=args, dynamic_shapes=shapes).text()
