"""Declare an op once, and use it eagerly, in training, under torch.compile and in an artifact."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import turbine
from turbine import ops


# The function is what the op means: IREE compiles it, and its gradient is derived from it.
@ops.custom_op("example::soft_clip(Tensor x, float limit=1.0) -> Tensor")
def soft_clip(x: Tensor, limit: float) -> Tensor:
    return limit * torch.tanh(x / limit)


# IR of its own: then the function is the shape rule.
@ops.custom_op("example::square(Tensor x) -> Tensor")
def square(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@square.register_emission
def _(builder: ops.Builder, x: Any) -> Any:
    from iree.compiler.dialects import arith

    return arith.mulf(x, x)


class Clipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        clipped: Tensor = torch.ops.example.soft_clip(self.linear(x), limit=0.5)
        squared: Tensor = torch.ops.example.square(clipped.detach())
        return squared + clipped


def main() -> int:
    model = Clipped()
    x = torch.randn(8, 16)
    clipped = 0.5 * torch.tanh(model.linear(x) / 0.5)
    expected = clipped.detach() ** 2 + clipped

    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "eager": model,
        "torch.compile": torch.compile(model, backend="turbine", fullgraph=True),
        "artifact": turbine.aot.export(model, args=(x,)).compile(),
    }
    wrong = 0
    for name, form in forms.items():
        same = torch.allclose(form(x), expected, atol=1e-5)
        print(f"{name:14} {'same as PyTorch' if same else 'WRONG'}")
        wrong += not same

    (ours,) = torch.autograd.grad(model(x).sum(), [model.linear.weight])
    (theirs,) = torch.autograd.grad(expected.sum(), [model.linear.weight])
    same = torch.allclose(ours, theirs, atol=1e-5)
    print(f"{'gradient':14} {'same as PyTorch' if same else 'WRONG'}")
    return 1 if wrong or not same else 0


if __name__ == "__main__":
    sys.exit(main())
