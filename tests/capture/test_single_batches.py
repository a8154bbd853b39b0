"""Products of batches of one: linear layers whose input is not contiguous."""

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


def test_linear_layers_on_columns_multiply_two_matrices() -> None:
    text = turbine.aot.export(Transposed(), args=(torch.randn(1, 8, 5),)).text()
    assert text.count("torch.aten.mm") == 2
    assert "torch.aten.bmm" not in text


def test_products_of_two_batches_stay() -> None:
    class Batches(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.bmm(x, y)

    args = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    assert "torch.aten.bmm" in turbine.aot.export(Batches(), args=args).text()


@pytest.mark.parametrize("batch", [1, 3])
def test_lengths_of_any_size_give_what_eager_gives(batch: int) -> None:
    model = Transposed().eval()
    exported = turbine.aot.export(
        model, args=(torch.randn(batch, 8, 5),), dynamic_shapes=({2: Dim.AUTO},)
    )
    artifact = exported.compile()
    for length in (5, 2, 7):
        x = torch.randn(batch, 8, length)
        torch.testing.assert_close(artifact(x), model(x))


def test_results_that_are_products_of_batches_of_one_are_returned() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.bmm(x, y)

    x, y = torch.randn(1, 3, 4), torch.randn(1, 4, 5)
    artifact = turbine.aot.export(Product(), args=(x, y)).compile()
    torch.testing.assert_close(artifact(x, y), x @ y)
