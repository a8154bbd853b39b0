"""Compiled code does not overwrite its arguments, even if an op could work in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.compiled import agrees
from tests.models import compiled

programs = pytest.mark.sweep(1, "programs")

PLACES = torch.tensor([2, 1, 0, 3])
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_put": lambda x: x.index_put((PLACES,), x[:4] * 2),
    "scatter": lambda x: x.scatter(0, PLACES.expand(8, 4).t(), x[:4] * 2),
    "scatter_add": lambda x: x.scatter_add(0, PLACES.expand(8, 4).t(), x[:4] * 2),
    "of a view": lambda x: x.view(4, 16).index_put((PLACES[:2],), x.view(4, 16)[:2] + 1),
    "of itself": lambda x: torch.where(x == x, x, x).index_put((PLACES,), x[:4] * 2),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:2] + 1, 0, 4, 6),
    "topk": lambda x: tuple(x.topk(2)),
    "sort": lambda x: tuple(x.sort()),
}


@programs
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_arguments_are_not_overwritten(dtype: torch.dtype) -> None:
    x = torch.arange(64).flip(0).view(8, 8).to(dtype)
    before = x.clone()
    artifact = compiled(lambda x: tuple(f(x) for f in FUNCTIONS.values()), x)
    found = artifact(x)
    assert torch.equal(x, before)
    for name, ours, theirs in zip(
        FUNCTIONS, found, [f(before) for f in FUNCTIONS.values()], strict=True
    ):
        torch.testing.assert_close(tuple(ours), tuple(theirs), msg=name)


@programs
def test_views_of_arguments_with_derived_sizes_are_not_overwritten() -> None:
    def program(x: torch.Tensor) -> Any:
        padded = F.pad(x, (1, 0), mode="circular")
        ahead = F.pad(padded, (0, 1), mode="reflect")  # PyTorch runs some of it, between two parts
        changed = padded.select_scatter(padded.select(-2, 0) + 1, -2, -2)
        places = ahead.reshape(-1).long().remainder(4)[:1] - 2
        added = x.new_full([1, 3, 3], -1.5)
        result = changed.unflatten(-1, (3, -1)).index_put((places,), added, True).clone()
        result[2:] = 3
        return changed, result

    agrees(program, lambda: (torch.randn(2, 8),), dynamic=True)


@programs
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_written_copies_do_not_alias_read_ones(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copied = x.clone()
        copied.narrow(0, 0, 1).copy_(copied.narrow(0, 2, 1))
        return x[:, [-15]], copied[[0], [7, 5]]

    x = torch.randn(3, 17, 1, 1).to(dtype)
    compiled_program = torch.compile(program, backend="turbine", dynamic=True)
    torch.testing.assert_close(compiled_program(x), program(x), rtol=0, atol=0)
