"""Custom ops are expanded from functions and libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.passes.modules import LIBRARY, parse
from turbine import errors
from turbine.aot import ExportOutput
from turbine.mlir.ir import InsertionPoint, Operation, Type, Value
from turbine.passes import ExpandCustomOps, Pass

ITSELF = """
%i = torch_c.from_i64 %n
%z = torch.operator "torch.turbine_passes.scaled"(%i) : (!torch.int) -> !torch.int
"""


def multiplied(
    at: InsertionPoint, operands: Sequence[Value], results: Sequence[Type]
) -> list[Value]:
    product = Operation.create(
        "torch.aten.mul.Scalar", results=list(results), operands=list(operands)
    )
    return [product.result]


@pytest.mark.run
@pytest.mark.parametrize(
    ("expand", "factor"),
    [
        (lambda: ExpandCustomOps({"turbine_passes.scaled": multiplied}), 15),
        (lambda: ExpandCustomOps(library=parse(LIBRARY)), 60),
    ],
)
def test_expanded_ops_match_the_reference(
    custom: ExportOutput, expand: Callable[[], Pass], factor: int
) -> None:
    with pytest.raises(errors.UnsupportedOp):
        custom.compile()
    x = torch.arange(12.0).reshape(3, 4)
    torch.testing.assert_close(custom.transform(expand()).compile()(x), factor * x + 1)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("%n: i64) -> tensor", "%n: i64, %m: i64) -> tensor", "has 2 operands, its expansion"),
        ("tensor<3x?xf32>", "tensor<5x?xf32>", "cannot be used as a tensor<5x?xf32>"),
        ("%c1 = arith", "cf.br ^next\n^next:\n%c1 = arith", "is not one block"),
        (
            "%c1 = arith",
            f"{ITSELF}\n%c1 = arith",
            "uses torch.turbine_passes.scaled, which the library expands",
        ),
    ],
)
def test_an_incompatible_library_is_rejected(
    custom: ExportOutput, old: str, new: str, told: str
) -> None:
    before = custom.text()
    with pytest.raises(errors.TransformError) as caught:
        custom.transform(ExpandCustomOps(library=parse(LIBRARY.replace(old, new))))
    assert told in str(caught.value)
    assert custom.text() == before
