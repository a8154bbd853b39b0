"""Every rule against eager PyTorch, in every dtype: one table.

A rule is called on tensors first, with the kernels that it calls interpreted, which takes no
compiler; then rows of one dtype are compiled as one program. The rows are in
tests/capture/rule_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from tests.capture.rule_rows import Row
from tests.capture.rule_table import DTYPES, ROWS, rows_of
from tests.commit_seed import Drawn
from tests.models import compiled
from turbine import config
from turbine.capture.decompositions import is_complex
from turbine.capture.rules import EXPORTED, OF_COMPLEX, RULES
from turbine.capture.training_step import without_onednn
from turbine.library import place_kernels as place_kernels  # with kernels that rules call

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore:index_reduce:UserWarning"),  # in beta, PyTorch says
    pytest.mark.filterwarnings("ignore:The reduce argument:UserWarning"),
    pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning"),  # batch norm
]

aten = torch.ops.aten
Rule = Callable[..., Any]


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Kernels run in the interpreter: a compiled one for each size takes a minute."""
    with config.override(interpret=True):
        yield


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rules_match_their_ops(dtype: torch.dtype) -> None:
    wrong = []
    for row in rows_of(dtype):
        args, expected = _arguments(row, dtype), _expected(row, dtype)
        for rule in _rules(row, args):
            if _applies(rule, row, dtype):
                wrong += _differences(row, dtype, row.call(rule, args), expected)
    assert not wrong, "\n".join(wrong)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_ops_match_pytorch(dtype: torch.dtype, drawn: Drawn) -> None:
    rows = drawn(rows_of(dtype), 4 if dtype.is_complex else 8)  # an FFT compiles for 10 s
    leaves, tree = torch_pytree.tree_flatten([_arguments(row, dtype) for row in rows])
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def program(*given: Tensor) -> list[list[Tensor]]:
        inputs = iter(given)
        filled = [next(inputs) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args = torch_pytree.tree_unflatten(filled, tree)
        return [row.call(row.op, own) for row, own in zip(rows, args, strict=True)]

    wrong = []
    for row, found in zip(rows, compiled(program, *tensors)(*tensors), strict=True):
        wrong += _differences(row, dtype, found, _expected(row, dtype))
    assert not wrong, "\n".join(wrong)


WITHOUT_VALUES = {aten.empty_permuted.default}


def test_every_rule_is_in_the_table() -> None:
    assert (RULES | EXPORTED | OF_COMPLEX).keys() - {row.op for row in ROWS} == WITHOUT_VALUES


# Where another rule gave a tensor other strides.
RESTRIDED = {aten.view.default}
# Where sizes vary; the rows have fixed ones.
DYNAMIC = {aten.mm.default, aten.addmm.default}
# Whose weights are packed in other ways on other CPUs.
X86 = {aten._weight_int4pack_mm_for_cpu.default}


@pytest.mark.usefixtures("interpreted")
def test_every_rule_applies_to_a_row() -> None:
    applied = {
        (row.op, rule)
        for row in ROWS
        for dtype in row.dtypes
        for rule in _rules(row, _arguments(row, dtype))
        if _applies(rule, row, dtype)
    }
    rules = [*RULES.items(), *EXPORTED.items(), *OF_COMPLEX.items()]
    left = {op for op, rule in rules if (op, rule) not in applied}
    is_x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    assert left == RESTRIDED | DYNAMIC | WITHOUT_VALUES | (set() if is_x86 else X86)


_KNOWN: dict[tuple[Rule, int, torch.dtype], bool] = {}


def _applies(rule: Rule, row: Row, dtype: torch.dtype) -> bool:
    """Whether a rule takes a row. Asked once: some rules run for seconds in the interpreter."""
    key = rule, id(row), dtype
    if key not in _KNOWN:
        _KNOWN[key] = rule(*_arguments(row, dtype), **row.options) is not NotImplemented
    return _KNOWN[key]


def _rules(row: Row, args: tuple[Any, ...]) -> list[Rule]:
    tables = [RULES, EXPORTED]
    if any(map(is_complex, torch_pytree.tree_leaves((args, [*row.options.values()])))):
        tables.append(OF_COMPLEX)
    return [table[row.op] for table in tables if row.op in table]


def _arguments(row: Row, dtype: torch.dtype) -> tuple[Any, ...]:
    return row.arguments(*row.operands.make(dtype))


def _expected(row: Row, dtype: torch.dtype) -> list[Tensor]:
    if not row.operands.is_wide:
        # oneDNN's gelu of inf is nan.
        with without_onednn():
            return row.call(row.op, _arguments(row, dtype))
    x, y = (operand.to(torch.float64) for operand in row.operands.make(dtype))
    return [result.to(dtype) for result in row.call(row.op, row.arguments(x, y))]


def _differences(
    row: Row, dtype: torch.dtype, found: list[Tensor], expected: list[Tensor]
) -> list[str]:
    try:
        rtol, atol = row.operands.tolerances(dtype)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as difference:
        return [f"{_call_text(row, dtype)}: {difference}"]
    return []


def _call_text(row: Row, dtype: torch.dtype) -> str:
    """A call with shapes in the place of tensors."""
    args = torch_pytree.tree_map_only(Tensor, _shape_text, _arguments(row, dtype))
    given = [str(arg) for arg in args] + [f"{name}={value}" for name, value in row.options.items()]
    return f"{row.op}({', '.join(given)})"


def _shape_text(x: Tensor) -> str:
    return f"{x.dtype}{list(x.shape)}".removeprefix("torch.")
