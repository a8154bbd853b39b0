"""Declare ops in tests, and remove them after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from turbine import ops
from turbine.ops.declared_op import DECLARED

ROUNDING = 2e-6
X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.linspace(2, 3, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def leave_no_ops() -> Iterator[None]:
    before = dict(DECLARED)
    torch.compiler.reset()
    yield
    for name, op in list(DECLARED.items()):
        if name not in before and not name.endswith("_functional"):
            op.remove()
    assert before == DECLARED


def declare(schema: str, function: Callable[..., Any], **options: Any) -> ops.DeclaredOp:
    return ops.custom_op(f"test::{schema}", **options)(function)


def write(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * 2


ADD = """
func.func @add(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %sum = arith.addf %x, %y : tensor<?x?xf32>
  return %sum : tensor<?x?xf32>
}
"""


def add_op() -> ops.DeclaredOp:
    return declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))
