"""One compiled function supports many sizes, and is correct for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import turbine
from tests.compiled import compiled, outcome, same
from turbine.capture.decompositions import current_training_decompositions
from turbine.dynamo import records

pytestmark = pytest.mark.sweep(3)

Shape = tuple[int, ...]


def serves(
    function: Any, shapes: Sequence[Shape], *, needs_grad: bool = True, **options: Any
) -> int:
    """Check the function on inputs of these shapes; return the number of compiled graphs."""
    call = compiled(function, **options)
    rescued = turbine.counters()["rescued_calls"]
    with records.collect() as heard:
        for shape in shapes:
            make = _maker(shape, needs_grad)
            same(outcome(function, make, call), outcome(function, make), 1e-5)
    assert turbine.counters()["rescued_calls"] == rescued
    assert all(part.compiled is not None for graph in heard for part in graph.parts)
    return len(heard)


def _maker(shape: Shape, needs_grad: bool) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(shape, requires_grad=needs_grad),)


def small(x: Tensor) -> Tensor:
    return torch.relu(x) * 2 + x


def test_dynamic_true_compiles_once_for_all_batch_sizes() -> None:
    assert serves(small, [(4, 3), (7, 3), (2, 3), (33, 3)], dynamic=True) == 2


def test_a_second_shape_makes_a_size_dynamic() -> None:
    # The first size as it is, then every other one; forward and backward each time.
    assert serves(small, [(4, 3), (7, 3), (2, 3), (33, 3)]) == 4


def test_a_size_marked_dynamic_compiles_once() -> None:
    call = compiled(small)
    with records.collect() as heard:
        for size in (4, 7, 2):
            x = torch.randn(size, 3)
            torch._dynamo.mark_dynamic(x, 0)
            same(call(x), small(x))
    assert len(heard) == 1


def test_sizes_0_and_1_match_eager() -> None:
    serves(small, [(4, 3), (1, 3), (0, 3)], dynamic=True)


def test_arithmetic_on_two_dynamic_sizes_matches_eager() -> None:
    def function(x: Tensor) -> Any:
        mixed = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return mixed, x.shape[0] * 2 + x.shape[1], mixed.mean(0) / x.shape[0]

    assert serves(function, [(2, 3, 4), (3, 5, 4), (5, 2, 4)], dynamic=True) == 2


def test_int_arguments_become_dynamic() -> None:
    def function(x: Tensor, count: int) -> Tensor:
        return x[:count] * count + 1

    call = compiled(function)
    x = torch.arange(24.0).view(8, 3)
    with records.collect() as heard:
        for count in (2, 3, 5, 8, 7):
            same(call(x, count), function(x, count))
    assert len(heard) <= 3


def test_channels_last_images_of_many_sizes_match_eager() -> None:
    call = compiled(small, dynamic=True)
    for size in (5, 6, 9):
        x = torch.randn(2, 3, size, 4).to(memory_format=torch.channels_last)
        same(call(x), small(x))


# The axes before, and those after, each of them as a function of the shape before.
RESHAPES: dict[str, tuple[Callable[[Any], Any], Shape, Shape]] = {
    "more rows": (lambda s: (-1, 2), (3, 4), (5, 4)),
    "rows for columns": (lambda s: (s[1], s[0]), (3, 4), (5, 7)),
    "merge": (lambda s: (-1, s[2]), (2, 4, 3), (5, 4, 7)),
    "split the last": (lambda s: (s[0], 2, -1), (2, 6), (5, 14)),
    "merge and split": (lambda s: (s[0] * 2, -1), (2, 4, 3), (5, 4, 7)),
    "only known axes": (lambda s: (s[0], 6, 2), (2, 3, 4), (5, 3, 4)),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", RESHAPES)
def test_reshapes_of_dynamic_sizes_match_eager(case: str) -> None:
    after, *shapes = RESHAPES[case]

    def function(x: Tensor) -> Tensor:
        return (x * 2).view(after(x.shape)) + 1

    serves(function, shapes, needs_grad=False, dynamic=True)


def test_embeddings_train_with_dynamic_batches() -> None:
    table = torch.nn.Embedding(10, 4)
    call = compiled(table, dynamic=True)
    rescued = turbine.counters()["rescued_calls"]
    for batch in (4, 5):
        make = lambda batch=batch: (torch.randint(10, (batch, 3)),)  # noqa: E731
        same(outcome(table, make, call), outcome(table, make))
    assert turbine.counters()["rescued_calls"] == rescued


def test_data_dependent_sizes_match_eager() -> None:
    def function(x: Tensor) -> Tensor:
        chosen = x[x > 0]
        return chosen * 2 * chosen + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        call = compiled(function)
        for size in (5, 8):
            x = torch.randn(size)
            same(call(x), function(x))
        same(call(-torch.ones(5)), function(-torch.ones(5)))


def split_axis(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 1, -1)


@pytest.mark.parametrize("train", [False, True])
def test_views_of_strided_arguments_stay_views(train: bool) -> None:
    function = torch.compile(split_axis, backend="turbine", dynamic=True)
    for width in (3, 8):
        x = torch.randn(4, 2 * width)[:, ::2].requires_grad_(train)
        torch.testing.assert_close(function(x), split_axis(x), rtol=0, atol=0)
        assert function(x).stride() == split_axis(x).stride()


resample = partial(torch.nn.functional.interpolate, mode="linear", align_corners=True)
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "differences": torch.diff,
    "circular": lambda x: torch.nn.functional.pad(x[None], (1, 2), mode="circular"),
    "other shape": lambda x: x[None].median(0)[0].narrow(0, 2, 3).sum() + x.flip(0),
    "indices": lambda x: x[[0, 1, 1]].sum() + x[[2, 0]].prod(),
    "resampled": lambda x: resample(resample(x.view(1, -1, 1), scale_factor=1.5), size=(1,)),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_do_not_alias_a_shared_fill(name: str) -> None:
    f = GRADIENTS[name]
    function = torch.compile(f, backend="turbine", dynamic=True)
    x = torch.randn(7, requires_grad=True)
    (ours,) = torch.autograd.grad(function(x).square().sum(), x)
    (theirs,) = torch.autograd.grad(f(x).square().sum(), x)
    torch.testing.assert_close(ours, theirs)


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2, 0, 2), value=-2.0).select(1, 1),
    "selected": lambda x: x.select(1, 0),
}


def test_gathers_of_slices_match_eager() -> None:
    def f(x: Tensor) -> list[Tensor]:
        return [part(x)[torch.tensor([2, 0, -1])] for part in PARTS.values()]

    x = torch.randn(3, 3)
    torch.testing.assert_close(torch.compile(f, backend="turbine", dynamic=True)(x), f(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_do_not_change_their_operands(dynamic: bool) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        total, moved = x.sum(1), x.sum(1)
        total[2:5] = total[0:3] * 2
        moved[2:5] = moved[0:3].clone()
        return total, moved

    x = torch.arange(30.0).view(6, 5)
    function = torch.compile(f, backend="turbine", dynamic=dynamic)
    torch.testing.assert_close(function(x), f(x), rtol=0, atol=0)


def test_roll_of_dynamic_sizes_has_no_modulo_sizes() -> None:
    rule = current_training_decompositions()[torch.ops.aten.roll.default]
    traced = make_fx(lambda x: rule(x, [-2, 1], [0, 1]), tracing_mode="symbolic")(torch.ones(5, 7))
    sizes = {str(size) for node in traced.graph.nodes for size in _sizes(node)}
    assert not [size for size in sizes if "Mod" in size]


def _sizes(node: fx.Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return value.shape if isinstance(value, Tensor) else ()


def test_roll_supports_shifts_larger_than_the_size() -> None:
    shapes = [(4, 3), (9, 5), (2, 7)]
    assert serves(lambda x: x.roll((5, -3), (0, 1)) * 2, shapes, dynamic=True) == 2
