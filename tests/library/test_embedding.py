"""Embedding bags by kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.nn import functional as F

from tests.models import compiled
from turbine import errors

programs = pytest.mark.sweep(1, "programs")

STARTS = torch.tensor([0, 3, 3, 9])  # the second bag is empty


def pooled(table: Tensor, indices: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
    ends = torch.cat([starts, starts.new_full([1], 11)])
    weights = table[: indices.shape[0], 0]
    return (
        F.embedding_bag(indices, table, starts, mode="sum"),
        F.embedding_bag(indices, table, starts, mode="mean", padding_idx=4),
        F.embedding_bag(indices, table, ends, mode="mean", include_last_offset=True),
        F.embedding_bag(indices, table, starts, mode="sum", per_sample_weights=weights),
    )


@programs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bags_match_eager(dtype: torch.dtype) -> None:
    args = torch.randn(30, 130).to(dtype), torch.randint(30, (11,)), STARTS
    args[1][5] = 4
    artifact = compiled(pooled, *args)
    for found, expected in zip(artifact(*args), pooled(*args), strict=True):
        torch.testing.assert_close(found, expected)


@programs
def test_bags_of_dynamic_sizes() -> None:
    def pool(table: Tensor, indices: Tensor, starts: Tensor) -> Tensor:
        return F.embedding_bag(indices, table, starts, mode="mean")

    args = torch.randn(30, 20), torch.randint(30, (11,)), STARTS
    sizes = (({0: Dim("rows"), 1: Dim("columns")}, {0: Dim("indices")}, {0: Dim("bags")}),)
    artifact = compiled(pool, *args, dynamic_shapes=sizes)
    for given in (args, (torch.randn(5, 3), torch.tensor([4, 0]), torch.tensor([0, 1, 2]))):
        torch.testing.assert_close(artifact(*given), pool(*given))
    with pytest.raises(errors.TurbineError, match="out of range"):
        artifact(torch.randn(5, 3), torch.tensor([4, 5]), torch.tensor([0]))


@programs
def test_gradients_of_bags_match_eager() -> None:
    def loss(table: Tensor) -> Tensor:
        bags = F.embedding_bag(torch.tensor([1, 2, 2, 0]), table, torch.tensor([0, 3]), mode="mean")
        return bags.square().sum()

    table = torch.randn(4, 20, requires_grad=True)
    expected = torch.autograd.grad(loss(table), table)
    found = torch.autograd.grad(torch.compile(loss, backend="turbine")(table), table)
    torch.testing.assert_close(found, expected)
