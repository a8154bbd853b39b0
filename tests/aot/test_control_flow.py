"""Control flow in exports: only what is needed runs, and loops are loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.utils import _pytree as pytree

import turbine


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


class Repeated(nn.Module):
    """As often as an argument says, with a tensor of the outside."""

    def forward(self, x: Tensor, n: Tensor) -> Any:
        def step(i: Tensor, y: Tensor) -> Any:
            return i + 1, y * 0.5 + x

        return while_loop(lambda i, _: i < n, step, (zero(), x.clone()))


class Counted(nn.Module):
    """A Python number is part of the state."""

    def forward(self, x: Tensor) -> Any:
        return while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y * 2), (0, x))


class Halved(nn.Module):
    """Values decide how often."""

    def forward(self, x: Tensor) -> Any:
        return while_loop(lambda y: y.norm() > 1, lambda y: (y * 0.5,), (x,))


class Nested(nn.Module):
    """A branch in a loop, in a branch."""

    def forward(self, x: Tensor) -> Any:
        def step(i: Tensor, y: Tensor) -> Any:
            return i + 1, torch.cond(y.sum() > 0, lambda y: y - 1, lambda y: y + 2, (y,))

        def loop(x: Tensor) -> Tensor:
            y: Tensor = while_loop(lambda i, _: i < 6, step, (zero(), x))[1]
            return y

        return torch.cond(x.max() > 0, loop, lambda x: x.sin(), (x,))


class Recurrent(nn.Module):
    """A state goes through rows, with weights of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, h: Tensor, rows: Tensor) -> Any:
        def step(h: Tensor, x: Tensor) -> Any:
            h = self.cell(x, h)
            return h, h * 2

        return scan(step, h, rows)


class Reversed(Recurrent):
    def forward(self, h: Tensor, rows: Tensor) -> Any:
        return scan(lambda h, x: (self.cell(x, h), h + 0), h, rows, reverse=True)


class States(nn.Module):
    """Several states, and several stacked results."""

    def forward(self, a: Tensor, b: Tensor, rows: Tensor) -> Any:
        def step(state: tuple[Tensor, Tensor], x: Tensor) -> Any:
            a, b = state
            return (b * 1, a + b * x), (a * 2, b.sum(), x + a)

        return scan(step, (a + 1, b - 1), rows)


class Mapped(nn.Module):
    """Nested rows, nested results and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, rows: dict[str, Tensor], k: Tensor) -> Any:
        def one(row: dict[str, Tensor], k: Tensor) -> Any:
            return {"sum": self.layer(row["x"]) + row["y"], "scaled": row["x"] * k}

        return torch_map(one, rows, k)  # type: ignore[arg-type]


BATCH, TIME, N = Dim("batch", min=1), Dim("time", min=2), Dim("n", min=2)
MODELS: dict[str, tuple[type[nn.Module], tuple[Any, ...], Any]] = {
    "some turns": (Repeated, (torch.randn(4), torch.tensor(3)), None),
    "no turn": (Repeated, (torch.randn(4), torch.tensor(0)), None),
    "dynamic while": (Repeated, (torch.randn(4), torch.tensor(3)), ({0: N}, None)),
    "number": (Counted, (torch.randn(4),), None),
    "values decide": (Halved, (torch.randn(40) * 9,), None),
    "taken branch": (Nested, (torch.rand(4) + 1,), None),
    "other branch": (Nested, (-torch.rand(4) - 1,), None),
    "scan": (Recurrent, (torch.randn(2, 4), torch.randn(7, 2, 3)), None),
    "reversed scan": (Reversed, (torch.randn(2, 4), torch.randn(7, 2, 3)), None),
    "dynamic scan": (
        Recurrent,
        (torch.randn(2, 4), torch.randn(7, 2, 3)),
        ({0: BATCH}, {0: TIME, 1: BATCH}),
    ),
    "dynamic states": (
        States,
        (torch.randn(4), torch.randn(4), torch.randn(5, 4)),
        ({0: N}, {0: N}, {0: TIME, 1: N}),
    ),
    "map": (Mapped, ({"x": torch.randn(6, 2, 4), "y": torch.randn(6, 2, 5)}, torch.randn(4)), None),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MODELS)
def test_control_flow_matches_eager(name: str) -> None:
    kind, args, sizes = MODELS[name]
    model = kind().eval()
    artifact = turbine.aot.export(model, args=args, dynamic_shapes=sizes).compile()
    with torch.no_grad():
        expected = model(*args)
    torch.testing.assert_close(
        pytree.tree_leaves(artifact(*args)), pytree.tree_leaves(expected), rtol=1e-5, atol=1e-5
    )


def test_a_dynamic_scan_takes_other_lengths() -> None:
    kind, args, sizes = MODELS["dynamic scan"]
    model = kind().eval()
    artifact = turbine.aot.export(model, args=args, dynamic_shapes=sizes).compile()
    for batch, time in ((1, 2), (5, 30)):
        h, rows = torch.randn(batch, 4), torch.randn(time, batch, 3)
        with torch.no_grad():
            torch.testing.assert_close([*artifact(h, rows)], [*model(h, rows)])


def test_loops_are_not_unrolled() -> None:
    kind, args, _ = MODELS["scan"]
    text = str(turbine.aot.export(kind().eval(), args=args).mlir_module)
    assert text.count("scf.for") == 1
    assert text.count("torch.aten.tanh") == 1
