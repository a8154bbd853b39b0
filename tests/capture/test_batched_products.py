"""Products of a batch and one matrix: linear layers whose input is not contiguous."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine


class Transposed(nn.Module):
    """A linear layer on the columns of a batch, with a bias and without."""

    def __init__(self) -> None:
        super().__init__()
        self.biased, self.plain = nn.Linear(8, 12), nn.Linear(8, 4, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        columns = x.permute(0, 2, 1)
        return self.biased(columns), self.plain(columns)


@pytest.mark.parametrize("batch", [1, 3])
def test_linear_layers_on_columns_multiply_two_matrices(batch: int) -> None:
    text = turbine.aot.export(Transposed(), args=(torch.randn(batch, 8, 5),)).text()
    assert text.count("torch.aten.mm") == 2
    assert "torch.aten.bmm" not in text


def test_products_of_two_batches_stay() -> None:
    class Batches(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.bmm(x, y)

    args = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    assert "torch.aten.bmm" in turbine.aot.export(Batches(), args=args).text()


def test_batches_of_any_size_give_what_eager_gives() -> None:
    model = Transposed().eval()
    exported = turbine.aot.export(
        model, args=(torch.randn(3, 8, 5),), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO},)
    )
    artifact = exported.compile()
    for shape in ((3, 8, 5), (1, 8, 2), (4, 8, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(artifact(x), model(x))
