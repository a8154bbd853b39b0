"""Assertions that the signature makes at every call are not in the graph."""

import torch

import turbine


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 1)
        return x.to(torch.float64) + 1


# CHECK-NOT: _assert
# CHECK: torch.ops.aten.add.Tensor
# CHECK-NOT: _assert
def text() -> str:
    shapes = ({0: torch.export.Dim("n", min=2, max=8)},)
    return turbine.aot.export(Model(), args=(torch.ones(3),), dynamic_shapes=shapes).program.text()
