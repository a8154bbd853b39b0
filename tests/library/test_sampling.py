"""Samples of images by a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.nn import functional as F

from tests.models import compiled


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_bilinear_samples_match_eager(dynamic: bool) -> None:
    def sample(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            F.grid_sample(x, grid, padding_mode=padding, align_corners=align_corners)
            for padding in ("zeros", "border")
            for align_corners in (False, True)
        )

    def drawn(batch: int, height: int, width: int, rows: int, columns: int) -> tuple[Tensor, ...]:
        grid = 2.6 * torch.rand(batch, rows, columns, 2) - 1.3  # some places are outside
        grid[0, 0, 0] = torch.tensor([-1.0, 1.0])
        x = torch.randn(batch, 5, height, width)
        x[0, 0, 0, 0] = torch.inf  # a pixel outside of its neighbors does not count
        return x, grid

    given = drawn(2, 7, 9, 10, 11)
    of_image = {0: Dim("batch"), 2: Dim("height"), 3: Dim("width")}
    of_grid = {0: of_image[0], 1: Dim("rows"), 2: Dim("columns")}
    options = {"dynamic_shapes": ((of_image, of_grid),)} if dynamic else {}
    artifact = compiled(sample, *given, **options)
    for args in (given, drawn(3, 20, 4, 3, 70)) if dynamic else (given,):
        for found, expected in zip(artifact(*args), sample(*args), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
