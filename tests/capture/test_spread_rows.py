"""Matmuls with a single row or column of strided elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import turbine

programs = pytest.mark.sweep(1, "programs")

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "a column": lambda x: x[:, 0],
    "times one": lambda x: x[:, 0] * 1.0,
    "plus zeros": lambda x: x[:, 0] + torch.zeros_like(x[:, 0]),
    "cloned": lambda x: x[:, 0].clone(),
    "there and back": lambda x: x[:, 0].double().float(),
    "a cat of one": lambda x: torch.cat([x[:, 0]]),
    "padded by nothing": lambda x: torch.nn.functional.pad(x[:, 0], (0, 0)),
    "every other": lambda x: x[:, ::2][:, 0],
}


class Products(torch.nn.Module):
    """A row with a matrix, a matrix with a column, and both in a batch."""

    def __init__(self, row: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.row = row

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        row = self.row(x)
        linear = torch.nn.functional.linear(row, y.T, y[0])
        return row @ y, torch.stack([row]) @ y, y.T @ row, row[None, None] @ y[None], linear


@programs
@pytest.mark.parametrize("name", ROWS)
def test_strided_rows_are_read_completely(name: str) -> None:
    x, y = torch.randn(33, 7), torch.randn(33, 9)
    model = Products(ROWS[name])
    artifact = turbine.aot.export(model, args=(x, y)).compile(strategy="tiled")
    torch.testing.assert_close(artifact(x, y), model(x, y))


@programs
def test_dynamic_shapes_are_supported() -> None:
    x, y = torch.randn(33, 7), torch.randn(33, 9)
    model = Products(ROWS["times one"])
    rows = torch.export.Dim("rows", min=2)
    exported = turbine.aot.export(model, args=(x, y), dynamic_shapes=({0: rows}, {0: rows}))
    artifact = exported.compile(strategy="tiled")
    for count in (5, 64):
        args = torch.randn(count, 7), torch.randn(count, 9)
        torch.testing.assert_close(artifact(*args), model(*args))
