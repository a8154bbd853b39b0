"""Writes through masks that are data: alone, and beside other indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from tests.compiled import compiled as dynamo_compiled
from tests.models import compiled
from turbine import errors

pytestmark = pytest.mark.sweep(1)

aten = torch.ops.aten
indices = torch.tensor
Write = Callable[[Tensor, Tensor, Tensor], Any]

MASKS = {
    "three": [1, 0, 1, 1, 0],
    "other three": [0, 1, 1, 0, 1],
    "one": [0, 0, 0, 1, 0],
    "all": [1, 1, 1, 1, 1],
    "none": [0, 0, 0, 0, 0],
}


def put(*chosen: Tensor | None, accumulate: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda y, values: aten.index_put(y, list(chosen), values, accumulate)


@dataclass(frozen=True)
class Case:
    """A write to x [5, 3] or x [5, 3, 4], with rows [3, 3]."""

    write: Write
    rank: int = 2


# The values or the other indices determine how many elements of the mask may be true.
ROWS: dict[str, Case] = {
    "alone": Case(lambda x, m, r: put(m)(x, r)),
    "alone, added": Case(lambda x, m, r: put(m, accumulate=True)(x, r)),
    "inner axis": Case(lambda x, m, r: put(None, m)(x.t(), r)),
    "inner axis, added": Case(lambda x, m, r: put(None, m, accumulate=True)(x.t(), r[0])),
    "inner axes": Case(
        lambda x, m, r: put(None, m[:, None] & indices([False, True, False, False]))(
            x.movedim(1, 0), r[0]
        ),
        3,
    ),
    "beside indices": Case(lambda x, m, r: put(m, indices([0, 2, 0]))(x, r[:, 2])),
    "beside repeated indices": Case(
        lambda x, m, r: put(m, indices([[0, 0, 0], [2, 0, -1]]), accumulate=True)(x, r[:2])
    ),
    "beside indices, one value": Case(lambda x, m, r: put(m, indices([0, 2, 1]))(x, r[0, 0])),
    "beside a number": Case(lambda x, m, r: put(m, indices(2), accumulate=True)(x, r[:, 1])),
    "beside an index": Case(lambda x, m, r: put(m, indices([1]))(x, r[:, 1])),
    "after indices": Case(lambda x, m, r: put(indices([0, 2, 1]), m)(x.t(), r[0])),
    "inner axis beside indices": Case(
        lambda x, m, r: put(None, m, indices([0, 2, 0]))(x[None].repeat(2, 1, 1), r[:2])
    ),
    "between": Case(
        lambda x, m, r: put(indices([1]), m, indices(0))(x.movedim(0, 1).contiguous(), r[:, 2]), 3
    ),
    "apart": Case(lambda x, m, r: put(m, None, indices([3, 0, 3]))(x, r), 3),
    "masks of two axes": Case(lambda x, m, r: put(m, m.flip(0))(x[:, :1] * x[:, 1], r[0])),
    "a mask of axes": Case(
        lambda x, m, r: put(m[:, None] & indices([True, False, False]), indices([0, 3, 3]))(
            x, r[1]
        ),
        3,
    ),
}
# Any number of elements may be true.
NUMBERS: dict[str, Case] = {
    "alone": Case(lambda x, m, r: put(m)(x, r[0])),
    "inner axis": Case(lambda x, m, r: put(None, m)(x.t(), r[:, :1])),
    "inner axis, added": Case(lambda x, m, r: put(None, m, accumulate=True)(x.t(), r[0, 0])),
    "beside a number": Case(lambda x, m, r: put(m, indices(-1))(x, r[0, 0])),
    "beside an index, added": Case(
        lambda x, m, r: put(m, indices([1]), accumulate=True)(x, r[0, :1])
    ),
    "beside repeated indices": Case(
        lambda x, m, r: put(m, indices([[1], [1], [0]]), accumulate=True)(x, r[:, :1])
    ),
    "apart, added": Case(lambda x, m, r: put(m, None, indices(3), accumulate=True)(x, r[0]), 3),
    "masks of two axes": Case(lambda x, m, r: put(m, indices([False, True, False]))(x, r[0, 0])),
    "masks of two axes, added": Case(
        lambda x, m, r: put(m, m.flip(0), accumulate=True)(x[:, :1] * x[:, 1], r[0, :1])
    ),
    "a mask of axes": Case(
        lambda x, m, r: put(m[:, None] & indices([True, False, True]), indices([2]))(x, r[0, 0]), 3
    ),
}
CASES = {f"rows, {name}": case for name, case in ROWS.items()} | {
    f"numbers, {name}": case for name, case in NUMBERS.items()
}


def arguments(case: Case, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    shape = (5, 3, 4)[: case.rank]
    numbers = torch.randint(-9, 9, (80,), generator=torch.Generator().manual_seed(0))
    return numbers[: torch.Size(shape).numel()].view(shape).to(dtype), numbers[-9:].view(3, 3).to(
        dtype
    )


def matches_eager(call: Any, write: Write, x: Tensor, mask: Tensor, rows: Tensor) -> bool:
    """Whether the call gives what eager gives; False if both fail."""
    try:
        expected = write(x, mask, rows)
    except (IndexError, RuntimeError):
        with pytest.raises((errors.RunError, IndexError, RuntimeError), match=r"rows|shape|index"):
            call(x, mask, rows)
        return False
    torch.testing.assert_close(call(x, mask, rows), expected, rtol=0, atol=0)
    return True


def check_masks(call: Any, write: Write, x: Tensor, rows: Tensor) -> int:
    """The number of masks with which eager works, in all of which the call does."""
    masks = [indices(mask).bool() for mask in MASKS.values()]
    return sum(matches_eager(call, write, x, mask, rows) for mask in masks)


def least(name: str) -> int:
    """With how many masks eager works, at least."""
    return 2 if name.startswith("rows") else 3


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CASES)
def test_one_artifact_writes_through_several_masks(name: str) -> None:
    write = CASES[name].write
    x, rows = arguments(CASES[name])
    artifact = compiled(write, x, indices(MASKS["three"]).bool(), rows)
    assert check_masks(artifact, write, x, rows) >= least(name)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CASES)
def test_writes_through_masks_match_eager_under_torch_compile(name: str) -> None:
    write = CASES[name].write
    x, rows = arguments(CASES[name])
    assert check_masks(dynamo_compiled(write), write, x, rows) >= least(name)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_masks_beside_indices_write_every_dtype(dtype: torch.dtype) -> None:
    def write(x: Tensor, mask: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        again = indices([[0], [0]])
        return (
            put(mask, indices([0, 2, 0]))(x, rows[:, 2]),
            put(mask, again, accumulate=True)(x, rows[:2]),
            put(None, mask, accumulate=True)(x.t(), rows),
        )

    x, rows = arguments(Case(write), dtype)
    artifact = compiled(write, x, indices(MASKS["three"]).bool(), rows)
    assert check_masks(artifact, write, x, rows) == 2


def test_masks_may_be_bytes() -> None:
    def write(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        return put(mask.to(torch.uint8), indices([0, 2, 0]))(x, rows[:, 2])

    x, rows = arguments(Case(write))
    artifact = compiled(write, x, indices(MASKS["three"]).bool(), rows)
    assert check_masks(artifact, write, x, rows) == 3


def test_a_mask_has_the_shape_of_its_axes() -> None:
    def write(x: Tensor, mask: Tensor) -> Tensor:
        return put(mask, mask)(x, torch.tensor(7.0))

    with pytest.raises(errors.ExportError, match=r"mask \[5\] .* tensor \[5, 3\]"):
        compiled(write, torch.randn(5, 3), indices(MASKS["three"]).bool())


def test_elements_read_through_a_mask_are_written_through_it() -> None:
    def write(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        y = x.clone()
        y[mask, 0] = x[mask, 1] * 2
        y[mask, torch.tensor([2])] = x[mask, 0]
        return y

    x, rows = arguments(Case(write))
    artifact = compiled(write, x, indices(MASKS["three"]).bool(), rows)
    assert check_masks(artifact, write, x, rows) == len(MASKS)


def test_dynamic_sizes_are_written_through_masks_beside_indices() -> None:
    def write(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x.clone()
        y[mask, 1] = values
        y[mask, torch.tensor([0])] = 7.0
        return y

    shapes = (({0: Dim("n", max=99)}, {0: Dim("n", max=99)}, {0: Dim("k", max=99)}),)
    mask = indices(MASKS["three"]).bool()
    args = torch.randn(5, 3), mask, torch.randn(3)
    artifact = compiled(write, *args, dynamic_shapes=shapes)
    for number in (3, 5):
        args = torch.randn(8, 3), torch.arange(8) < number, torch.randn(number)
        assert matches_eager(artifact, write, *args)
    assert not matches_eager(artifact, write, *args[:2], torch.randn(4))
