"""Kernels of scattered sums: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import turbine
from tests.compiled import compiled
from tests.library.placing import count, exported, placed
from tests.models import Fn
from turbine import errors
from turbine.library.scatter import add_rows, scatter_add_in_columns, scatter_add_in_rows

pytestmark = pytest.mark.sweep(2)


def scattered(dim: int) -> Fn:
    return Fn(lambda x, index, source: x.scatter_add(dim, index, source))


def places(limit: int, *sizes: int) -> Tensor:
    return torch.randint(limit, sizes, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("shape", "dim", "long"),
    [
        ((40, 33), 1, 70),
        ((33,), 0, 2000),
        ((5, 33, 17), 1, 50),
        ((33, 70), 0, 40),
        ((3, 4, 9), -1, 99),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_sums_match_eager(shape: tuple[int, ...], dim: int, long: int, dtype: torch.dtype) -> None:
    sizes = [*shape]
    sizes[dim] = long
    x, source = torch.randn(shape).mul(9).to(dtype), torch.randn(sizes).mul(9).to(dtype)
    args = (x, places(shape[dim], *sizes), source)
    output = turbine.aot.export(scattered(dim), args=args)
    kernel = scatter_add_in_rows if dim % len(shape) == len(shape) - 1 else scatter_add_in_columns
    assert count(placed(output.program), kernel.op.op) == 1
    torch.testing.assert_close(output.compile()(*args), scattered(dim)(*args), rtol=0, atol=0)


def test_indices_have_32_bits() -> None:
    args = torch.zeros(40, 33), places(33, 40, 70).int(), torch.randn(40, 70)
    output = turbine.aot.export(scattered(1), args=args)
    torch.testing.assert_close(output.compile()(*args), scattered(1)(*args))


def test_messages_on_edges_of_a_graph_match_eager() -> None:
    class Layer(torch.nn.Module):
        def forward(self, nodes: Tensor, start: Tensor, end: Tensor) -> Tensor:
            index = end.unsqueeze(1).expand(-1, nodes.shape[1])
            return torch.zeros_like(nodes).scatter_add(0, index, nodes[start].relu())

    nodes, edges = Dim("nodes", min=2, max=1000), Dim("edges", min=2, max=10000)
    args = (torch.randn(50, 32), places(50, 300), places(50, 300).flip(0))
    sizes = ({0: nodes}, {0: edges}, {0: edges})
    output = turbine.aot.export(Layer(), args=args, dynamic_shapes=sizes)
    assert count(placed(output.program), scatter_add_in_columns.op.op) == 1
    artifact = output.compile()
    for count_of_edges in (300, 7):
        some = (args[0], args[1][:count_of_edges], args[2][:count_of_edges])
        torch.testing.assert_close(artifact(*some), Layer()(*some), rtol=0, atol=0)


def test_an_argument_is_not_changed() -> None:
    args = (torch.zeros(8, 64), places(64, 8, 200), torch.ones(8, 200))
    artifact = turbine.aot.export(scattered(1), args=args).compile()
    artifact(*args)
    assert args[0].count_nonzero() == 0


@pytest.mark.parametrize("wrong", [-1, 64])
@pytest.mark.parametrize("dim", [0, 1])
def test_indices_out_of_range_raise(dim: int, wrong: int) -> None:
    args = (torch.zeros(64, 64), places(64, 64, 64), torch.ones(64, 64))
    artifact = turbine.aot.export(scattered(dim), args=args).compile()
    args[1][3, 5] = wrong
    with pytest.raises(errors.TurbineError, match="index out of range along axis"):
        artifact(*args)


@pytest.mark.parametrize("dim", [0, 1])
def test_compiled_functions_raise_as_eager(dim: int) -> None:
    args = (torch.zeros(64, 64), places(64, 64, 64), torch.ones(64, 64))
    function = compiled(lambda x, index, source: (x * 2).scatter_add(dim, index, source * 3) + 1)
    assert function(*args).sum() == 64 * 64 * 4
    args[1][3, 5] = -1
    with pytest.raises(RuntimeError, match="index"):
        function(*args)


def test_few_elements_and_unequal_sizes_are_left() -> None:
    few = (torch.zeros(100, 100), places(100, 2, 100), torch.ones(2, 100))
    smaller = (torch.zeros(100, 100), places(100, 50, 100), torch.ones(50, 200))
    for args in (few, smaller):
        program = placed(exported(scattered(0), *args))
        assert count(program, torch.ops.aten.scatter_add.default) == 1


@pytest.mark.parametrize(
    ("shape", "index"),
    [((50, 70), (400,)), ((7, 3, 90), (9, 11)), ((33, 600), (40,)), ((1, 64), (300,))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_rows_are_added(shape: tuple[int, ...], index: tuple[int, ...], dtype: torch.dtype) -> None:
    x, source = (torch.randn(one).mul(9).to(dtype) for one in (shape, (*index, *shape[1:])))
    args = x, places(2 * shape[0], *index) - shape[0], source
    function = Fn(lambda x, index, source: x.index_put((index,), source, accumulate=True))
    output = turbine.aot.export(function, args=args)
    found = placed(output.program)
    assert sum("add_rows" in str(node.target) for node in found.graph.graph.nodes) == 1
    torch.testing.assert_close(output.compile()(*args), function(*args), rtol=0, atol=0)


def test_gradients_of_embeddings_are_added() -> None:
    table, chosen = torch.randn(1000, 64, requires_grad=True), places(1000, 8, 40)

    def gradient(call: Fn) -> Tensor:
        (result,) = torch.autograd.grad(call(table, chosen).sin().sum(), table)
        return result

    embed = Fn(lambda table, chosen: torch.nn.functional.embedding(chosen, table, padding_idx=3))
    torch.testing.assert_close(gradient(compiled(embed)), gradient(embed))


@pytest.mark.parametrize("wrong", [-51, 50])
def test_rows_out_of_range_raise(wrong: int) -> None:
    x, index, source = torch.zeros(50, 64), places(50, 300), torch.ones(300, 64)
    function = Fn(lambda x, index, source: (2 * x).index_put((index,), 3 * source, True) + 1)
    calls = turbine.aot.export(function, args=(x, index, source)).compile(), compiled(function)
    torch.testing.assert_close(calls[1](x, index, source), function(x, index, source))
    index[7] = wrong
    for call in calls:
        with pytest.raises((RuntimeError, IndexError), match="index"):
            call(x, index, source)


def test_dynamic_rows_are_added() -> None:
    nodes, edges = Dim("nodes", min=2, max=1000), Dim("edges", min=2, max=10000)
    function = Fn(lambda x, index, source: x.index_add(0, index, source))
    args = torch.randn(50, 32), places(50, 900), torch.randn(900, 32)
    sizes = {"args": ({0: nodes}, {0: edges}, {0: edges})}
    output = turbine.aot.export(function, args=args, dynamic_shapes=sizes)
    assert count(placed(output.program), add_rows.op.op) == 1
    artifact = output.compile()
    for some in (args, (args[0], args[1][:3], args[2][:3])):
        torch.testing.assert_close(artifact(*some), function(*some), rtol=0, atol=0)
