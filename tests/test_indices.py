"""Indices out of range fail as in eager PyTorch; nothing outside a tensor is read or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import turbine
from tests.models import Fn, compiled

TABLE = torch.arange(40.0).reshape(10, 4)
CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "embedding": lambda i: torch.nn.functional.embedding(i, TABLE),
    "index": lambda i: TABLE[i],
    "two axes": lambda i: TABLE[i, torch.tensor([0, 1, 2])],
    "index_select": lambda i: TABLE.index_select(0, i),
    "gather": lambda i: TABLE.gather(0, i.unsqueeze(1)),
    "scatter": lambda i: torch.zeros(10, 1).scatter(0, i.unsqueeze(1), 1.0),
    "index_put": lambda i: torch.zeros(10).index_put((i,), torch.ones(3)),
}


@pytest.mark.sweep(5)
@pytest.mark.parametrize("case", CASES)
def test_an_index_out_of_range_is_an_error_and_the_program_goes_on(case: str) -> None:
    good = torch.tensor([1, 0, 9])
    artifact = compiled(CASES[case], good)
    torch.testing.assert_close(artifact(good), CASES[case](good))
    for bad in (10, 10**6, -(10**9)):
        with pytest.raises(turbine.errors.RunError, match="index out of range"):
            artifact(torch.tensor([1, bad, 9]))
    torch.testing.assert_close(artifact(good), CASES[case](good))


def test_negative_indices_count_from_the_end() -> None:
    i = torch.tensor([-1, -10, 3])
    torch.testing.assert_close(compiled(CASES["index"], i)(i), TABLE[i])


def test_an_index_into_a_tensor_of_any_size_is_checked() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i]

    args = (torch.arange(6.0), torch.tensor([0, 1]))
    output = turbine.aot.export(Model(), args=args, dynamic_shapes=({0: Dim("n", max=50)}, None))
    artifact = output.compile()
    torch.testing.assert_close(
        artifact(torch.arange(9.0), torch.tensor([8, -9])), torch.tensor([8.0, 0])
    )
    with pytest.raises(turbine.errors.RunError, match="index out of range"):
        artifact(torch.arange(7.0), torch.tensor([7, 0]))


def test_sizes_the_trace_took_for_granted_are_asked_for() -> None:
    class Pairs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2)

    output = turbine.aot.export(Pairs(), args=(torch.ones(6),), dynamic_shapes=({0: Dim.DYNAMIC},))
    artifact = output.compile()
    assert artifact(torch.ones(8)).shape == (4, 2)
    with pytest.raises(turbine.errors.ArgumentError, match=r"needs x.shape\[0\] % 2 == 0"):
        artifact(torch.ones(7))


def test_positions_made_by_the_model_are_not_checked() -> None:
    text = turbine.aot.export(
        Fn(lambda x: x + TABLE[torch.arange(3)].sum()), args=(torch.ones(3),)
    ).text()
    assert "assert" not in text
