"""Control flow under torch.compile: branches and loops are compiled with the ops around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.compiled import Make, agrees
from turbine.capture import control_flow
from turbine.dynamo import failure_cache
from turbine.lower.control_flow import RULES

# PyTorch tells where control flow that it cannot differentiate comes from.
pytestmark = pytest.mark.filterwarnings("ignore:Error detected in")

programs = pytest.mark.sweep(1, "programs")

LAYER = nn.Linear(4, 4)


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def nested(x: Tensor, k: Tensor) -> Any:
    """A branch in a loop, in a branch, with tensors of the outside and a constant."""

    def step(i: Tensor, y: Tensor) -> Any:
        scaled = torch.cond(y.sum() > 0, lambda y: y - k, lambda y: y + 2, (y,))
        return i + 1, scaled + torch.tensor([1.0, 0.0, 2.0, 0.0])

    def loop(x: Tensor) -> Tensor:
        y: Tensor = while_loop(lambda i, _: i < 6, step, (zero(), x))[1]
        return y

    return torch.cond(x.max() > 0, loop, lambda x: LAYER(x), (x,)) * 2


def counted(x: Tensor) -> Any:
    """A loop that counts with a Python number, which is a result."""
    i, y = while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y * 2 + x), (0, x.clone()))
    return y * i, i


def states(a: Tensor, b: Tensor, rows: Tensor) -> Any:
    """Several states and stacked results, some of them numbers."""

    def step(state: tuple[Tensor, Tensor], x: Tensor) -> Any:
        a, b = state
        return (b * 1, a + b * x), (a * 2, b.sum(), x + a)

    return scan(step, (a + 1, b - 1), rows)


def mapped(rows: Tensor, k: Tensor) -> Any:
    return torch_map(lambda x, k: (LAYER(x) * k, x.sum()), rows, k)  # type: ignore[arg-type]


def by_size(x: Tensor) -> Any:
    return torch.cond(x.shape[0] > 3, lambda x: x * x.shape[0], lambda x: x - 1, (x,)) * 2


def recurrent(h: Tensor, rows: Tensor) -> Any:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(LAYER(h) + x)
        return h, h.clone()

    return scan(step, h, rows)


class Branches(nn.Module):
    """Weights in a branch, and ops that PyTorch's library may run elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, self.norm, lambda x: self.layer(x).relu(), (x,)) + 1


def plain(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(sizes).to(dtype)


def grad(*sizes: int) -> Tensor:
    return torch.randn(sizes).requires_grad_()


PROGRAMS: dict[str, tuple[Any, Make, dict[str, Any]]] = {
    "nested": (nested, lambda: (plain(3, 4).abs(), torch.tensor(1.5)), {}),
    "the other branch": (nested, lambda: (-plain(3, 4).abs(), torch.tensor(1.5)), {}),
    "dynamic": (nested, lambda: (plain(3, 4).abs(), torch.tensor(1.5)), {"dynamic": True}),
    "a number that counts": (counted, lambda: (plain(3),), {}),
    "states": (states, lambda: (plain(4), plain(4), plain(5, 4)), {}),
    "dynamic states": (states, lambda: (plain(4), plain(4), plain(5, 4)), {"dynamic": True}),
    "bfloat16 states": (
        states,
        lambda: tuple(plain(*sizes, dtype=torch.bfloat16) for sizes in ((4,), (4,), (5, 4))),
        {"tolerance": 1e-2},
    ),
    "map": (mapped, lambda: (plain(5, 4), plain(4)), {}),
    "a size decides": (by_size, lambda: (plain(5, 4),), {"dynamic": True}),
}


@programs
@pytest.mark.parametrize("name", PROGRAMS)
def test_control_flow_is_compiled(name: str) -> None:
    function, make, options = PROGRAMS[name]
    with torch.no_grad():
        (graph,) = agrees(function, make, **{"tolerance": 1e-5, **options})
    assert not graph.left
    assert len(graph.parts) == 1


TRAINED: dict[str, tuple[Any, Make]] = {
    "branch": (Branches(), lambda: (grad(3, 4),)),
    "scan": (recurrent, lambda: (grad(2, 4), grad(3, 2, 4))),
    "map": (mapped, lambda: (grad(5, 4), grad(4))),
}


@programs
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_control_flow_are_compiled(name: str) -> None:
    graphs = agrees(*TRAINED[name], tolerance=1e-5)
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert not any(graph.left for graph in graphs)


def test_control_flow_with_an_unsupported_op_is_a_fallback() -> None:
    def function(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.rand_like(x) + x, lambda x: x - 1, (x,))

    (graph,) = agrees(function, lambda: (torch.ones(3),), ops=0)
    reasons = {op.op: op.reason for op in graph.left}
    assert reasons["cond"].startswith("in its body, aten.rand_like.default: draws random numbers")


def test_bodies_are_part_of_the_key_of_a_refusal() -> None:
    keys = {failure_cache.key(_branch(op)) for op in (torch.ops.aten.sin, torch.ops.aten.cos)}
    assert len(keys) == 2


def _branch(op: Any) -> fx.Node:
    """A branch that calls an op or returns its operand."""
    value = torch.empty(3, device="meta")
    body = fx.Graph()
    x = body.placeholder("x")
    x.meta["val"] = value
    body.output((body.call_function(op.default, (x,)),))
    graph = fx.Graph()
    truth, operand = graph.placeholder("truth"), graph.placeholder("operand")
    taken = graph.get_attr("taken")
    args = (truth, taken, taken, (operand,))
    node = graph.call_function(torch.ops.higher_order.cond, args)
    graph.output(node)
    fx.GraphModule({"taken": fx.GraphModule(nn.Module(), body)}, graph)
    return node


def test_every_control_flow_op_has_a_lowering() -> None:
    assert RULES.keys() == control_flow.OPS
