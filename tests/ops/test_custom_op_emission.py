"""Custom ops with MLIR emissions, from builders and templates, agree in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from iree.compiler.dialects import arith
from torch import Tensor

import turbine
from tests.declared import ADD, ROUNDING, X, Y, add_op, declare
from tests.declared import leave_no_ops as leave_no_ops
from tests.models import Fn, assert_alike
from turbine import ops

pytestmark = pytest.mark.sweep(1)

FILL = """
func.func @fill(%x: {x}, %n: i64) -> {result} {{
  %zero = arith.constant 0 : index
  %value = arith.constant {value} : {x.element}
  %rows = tensor.dim %x, %zero : {x}
  %columns = arith.index_cast %n : i64 to index
  %room = tensor.empty(%rows, %columns) : tensor<?x?x{x.element}>
  %full = linalg.fill ins(%value : {x.element}) outs(%room : tensor<?x?x{x.element}>)
    -> tensor<?x?x{x.element}>
  %given = tensor.cast %full : tensor<?x?x{x.element}> to {result}
  return %given : {result}
}}
"""


def fill_op() -> ops.DeclaredOp:
    return declare(
        "fill(Tensor x, float value, SymInt n) -> Tensor",
        lambda x, value, n: x.new_empty(x.shape[0], n),
    )


def test_builder_emissions_agree_in_every_mode() -> None:
    op = declare(
        "f(Tensor x, Tensor[] ys, bool negate=False) -> (Tensor, Tensor)",
        lambda x, ys, negate: (torch.empty_like(x), torch.empty_like(x)),
    )

    @op.register_emission
    def _(builder: ops.Builder, x: Any, ys: list[Any], negate: bool) -> tuple[Any, Any]:
        return arith.mulf(x, ys[1]), arith.negf(ys[0]) if negate else ys[0]

    def used(x: Tensor, y: Tensor) -> Any:
        product, negative = op.op(x, [x, y], True)
        return (product + 1).relu() + negative

    expected = (X * Y + 1).relu() - X
    rows = torch.export.Dim("rows")
    export = turbine.aot.export(Fn(used), args=(X, Y), dynamic_shapes=(({0: rows}, {0: rows}),))
    compiled = torch.compile(used, backend="turbine", fullgraph=True)
    assert_alike(used(X, Y), expected, ROUNDING)
    assert_alike(compiled(X, Y), expected, ROUNDING)
    assert_alike(export.compile()(X[:2], Y[:2]), expected[:2], ROUNDING)
    assert "0 fallbacks" in str(turbine.explain(compiled, X, Y))
    torch.library.opcheck(op.op, (X, [X, Y], True))


def test_emissions_may_return_lists() -> None:
    op = declare(
        "f(Tensor x) -> (Tensor[], Tensor, Tensor[])",
        lambda x: ([torch.empty_like(x)] * 2, torch.empty_like(x), [torch.empty_like(x)]),
    )

    @op.register_emission
    def _(builder: ops.Builder, x: Any) -> Any:
        return [arith.negf(x), arith.addf(x, x)], arith.mulf(x, x), [x]

    expected = ([-X, X + X], X * X, [X])
    forms: list[Any] = [
        op.op,
        torch.compile(Fn(op.op), backend="turbine", fullgraph=True),
        turbine.aot.export(Fn(op.op), args=(X,)).compile(),
        turbine.aot.export(Fn(lambda x: op.op(x)[0][1] - op.op(x)[1]), args=(X,)).compile(),
    ]
    for form in forms[:3]:
        assert_alike(tuple(form(X)), expected, ROUNDING)
    assert_alike(forms[3](X), X + X - X * X, ROUNDING)


def test_emissions_of_mutating_ops_return_the_new_values() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> ()", lambda x, y: None)
    op.register_emission(lambda builder, x, y: arith.AddFOp(x, y).result)
    x = X.clone()
    op(x, Y)
    torch.testing.assert_close(x, X + Y)


def test_template_emissions_agree_in_every_mode() -> None:
    op = add_op()
    op.register_template(ADD)
    torch.testing.assert_close(op(X, Y), X + Y)
    compiled: Any = torch.compile(op.op, backend="turbine", fullgraph=True)
    torch.testing.assert_close(compiled(X, Y), X + Y)
    twice = turbine.aot.export(Fn(lambda x, y: op.op(op.op(x, y), y)), args=(X, Y))
    assert twice.text().count("arith.addf") == 1
    torch.testing.assert_close(twice.compile()(X, Y), X + Y + Y)


INSERT = """
func.func @insert(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %zero = arith.constant 0 : index
  %size = tensor.dim %y, %zero : tensor<?xf32>
  %new = tensor.insert_slice %y into %x[0] [%size] [1] : tensor<?xf32> into tensor<?xf32>
  return %new : tensor<?xf32>
}
"""


def test_emissions_do_not_write_to_arguments() -> None:
    op = declare("insert(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))
    op.register_template(INSERT)
    forms: list[Any] = [
        op.op,
        torch.compile(op.op, backend="turbine", fullgraph=True),
        turbine.aot.export(Fn(op.op), args=(torch.zeros(6), torch.ones(2))).compile(),
    ]
    for form in forms:
        x = torch.zeros(6)
        assert form(x, torch.ones(2)).tolist() == [1, 1, 0, 0, 0, 0]
        assert x.tolist() == [0] * 6


@pytest.mark.parametrize("engine", ["format", "jinja"])
def test_placeholders_are_replaced_by_types_and_numbers(engine: str) -> None:
    op = fill_op()
    text = FILL
    if engine == "jinja":
        text = text.replace("{{", "<").replace("}}", ">").replace("{", "{{").replace("}", "}}")
        text = text.replace("-> {{result}} <", "-> {{result}} {").replace("\n>", "\n}")
    op.register_template(text, engine=engine, example=(X, 1.5, 4))
    for dtype, columns in ((torch.float32, 5), (torch.float64, 6)):
        found = op(X.to(dtype), 2.5, columns)
        torch.testing.assert_close(found, torch.full((3, columns), 2.5, dtype=dtype))


SCALE = """
func.func @f(%x: {x}) -> {x} {{
  %by = arith.constant dense<{by}> : {x}
  %y = arith.mulf %x, %by : {x}
  return %y : {x}
}}
"""


@pytest.mark.parametrize("engine", ["format", "jinja"])
def test_float_placeholders_keep_their_precision(engine: str) -> None:
    op = declare("f(Tensor x, float by) -> Tensor", lambda x, by: torch.empty_like(x))
    in_jinja = SCALE.replace("{by}", "{{{{ by * 1 }}}}").format(x="tensor<f32>")
    text = SCALE if engine == "format" else in_jinja
    op.register_template(text, engine=engine, example=(torch.tensor(1.0), 1.0))
    for by in (1e-6, -1e20, 2.5):
        torch.testing.assert_close(op(torch.tensor(2.0), by), torch.tensor(2.0 * by))
