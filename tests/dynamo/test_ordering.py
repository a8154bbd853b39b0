"""Long rows are sorted, selected and searched in compiled code, as in eager PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.compiled import agrees

pytestmark = pytest.mark.sweep(1)

# Without equal elements, whose order is open.
DISTINCT = torch.randperm(40 * 300, generator=torch.Generator().manual_seed(0)).view(40, 300)
OPS: dict[str, Any] = {
    "sort": lambda x: x.sort(),
    "sort columns": lambda x: x.sort(0, descending=True),
    "sort equal elements": lambda x: (x // 40).sort(stable=True),
    "topk": lambda x: x.topk(7),
    "smallest of columns": lambda x: x.topk(9, 0, largest=False),
    "kthvalue": lambda x: x.kthvalue(5),
    "median": lambda x: x.median(1),
    "median of all": lambda x: x.median(),
    "cummax": lambda x: x.cummax(1),
    "cummin of columns": lambda x: x.cummin(0),
    "searchsorted": lambda x: torch.searchsorted(
        (x * 2 + 1).sort()[0].contiguous(), x.contiguous() - 1
    ),
    "sampling": lambda x: (x / 7).topk(15)[0].softmax(-1),
}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64}


def _copy(view: torch.Tensor) -> tuple[torch.Tensor]:
    return (view.clone(),)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_rows_with_and_without_nan_match_eager(name: str, dynamic: bool) -> None:
    rows = DISTINCT.float()
    with_nan = rows.clone()
    with_nan[3, 7] = float("nan")
    for view in (rows, with_nan, rows.t()[:, :20]):
        agrees(OPS[name], partial(_copy, view), dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sort", "topk", "median", "cummax", "searchsorted"])
def test_dtypes_match_eager(name: str, dtype: str) -> None:
    agrees(OPS[name], lambda: (DISTINCT.to(DTYPES[dtype]),))


@pytest.mark.parametrize("name", ["sort columns", "topk", "kthvalue", "median", "cummax"])
def test_gradients_match_eager(name: str) -> None:
    agrees(OPS[name], lambda: (DISTINCT.float().requires_grad_(),))
