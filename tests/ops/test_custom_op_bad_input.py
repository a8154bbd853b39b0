"""Invalid custom ops and invalid calls are rejected with a reason."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from iree.compiler.dialects import arith
from torch import Tensor

import turbine
from tests.declared import ADD, X, Y, add_op, declare, write
from tests.declared import leave_no_ops as leave_no_ops
from tests.models import Fn
from turbine import errors, ops
from turbine.capture import declared_ops
from turbine.ops.declared_op import DECLARED


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("f(Tensor x) -> Tensor", "does not begin with a name in a namespace"),
        ("a::f(Tenso x) -> Tensor", "does not parse: unknown type specifier"),
        ("a::f(Tensor x", r"does not parse: expected \)"),
        ("a::f(Device x) -> Tensor", "unknown type of argument x 'Device'; valid: "),
        ("a::f(Tensor(a) x) -> Tensor(a)", "a result shares memory"),
        ("a::f.out(Tensor x) -> Tensor", "has an overload name, 'out'"),
        ("a::f(Tensor x, Tensor x) -> Tensor", "two arguments are called x"),
        ("a::f(Tensor[][] x) -> Tensor", "lists of lists"),
        (lambda x: x, "schema must be a str, not a function"),
    ],
)
def test_invalid_schemas_are_rejected(schema: Any, message: str) -> None:
    with pytest.raises(errors.CustomOpError, match=message):
        ops.custom_op(schema)


def test_names_are_unique_and_reusable_after_removal() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + 1)
    with pytest.raises(errors.CustomOpError, match="test::f exists already"):
        declare("f(Tensor x) -> Tensor", lambda x: x + 2)
    torch.testing.assert_close(op(X), X + 1)
    op.remove()
    with pytest.raises(errors.CustomOpError, match="test::f was removed"):
        op(X)
    torch.testing.assert_close(declare("f(Tensor x) -> Tensor", lambda x: x + 2)(X), X + 2)


def test_models_that_hold_an_op_can_be_copied_and_pickled() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + 1)
    assert copy.deepcopy([op]) == [op]
    assert pickle.loads(pickle.dumps(op)) is op


def test_functions_with_other_parameters_are_rejected() -> None:
    with pytest.raises(errors.CustomOpError, match="missing a required argument: 'z'"):
        declare("f(Tensor x) -> Tensor", lambda y, z: y)
    assert "test::f" not in DECLARED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x: (x, x), "result 0 of its function is a tuple, its schema says Tensor"),
        (lambda x: None, "result 0 of its function is a NoneType"),
        (lambda x: x @ x, r"its function raised RuntimeError: .*\(3x4 and 3x4\)"),
    ],
)
def test_functions_that_raise_or_return_other_types_are_named(given: Any, message: str) -> None:
    op = declare("f(Tensor x) -> Tensor", given)
    with pytest.raises(errors.CustomOpError, match=f"test::f: {message}"):
        op(X)


def _raise(*_: Any) -> Any:
    raise ValueError("oops")


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (_raise, "its emission raised ValueError: oops"),
        (lambda b, x, y: 3, r"result 0 is declared as tensor<\?x\?xf32> and given as a int"),
        (lambda b, x, y: [x, y], "its emission returned 2 values, its schema has 1 results"),
        (
            lambda b, x, y: arith.cmpf(arith.CmpFPredicate.OEQ, x, y),
            r"result 0 is declared as tensor<\?x\?xf32> and given as tensor<\?x\?xi1>",
        ),
        (lambda b, x, y: b.call(ADD, x), "@add takes 2 values, this call has 1"),
        (lambda b, x, y: b.call(ADD, x, y, name="sub"), "unknown function of its text 'sub'"),
    ],
)
def test_invalid_emissions_are_named(emit: Any, message: str) -> None:
    op = add_op()
    op.register_emission(emit)
    with pytest.raises(errors.CustomOpError, match=f"test::add: {message}"):
        op(X, Y)
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}
    with pytest.raises(errors.CustomOpError, match=f"test::add: {message}"):
        turbine.aot.export(Fn(op.op), args=(X, Y), dynamic_shapes=((sizes, sizes),))


def _two_for_one(builder: Any, x: Any, y: Any) -> Any:
    return x, y


def _call_with_one(builder: Any, x: Any, y: Any) -> Any:
    return builder.call(ADD, x)  # one value for two


@pytest.mark.parametrize(
    ("emit", "line", "hint"),
    [
        (_two_for_one, "def _two_for_one(", "the schema is add(Tensor x, Tensor y) -> Tensor"),
        (_call_with_one, "# one value for two\n", "its types are (tensor<?x?xf32>, "),
    ],
)
def test_invalid_emissions_are_printed(emit: Any, line: str, hint: str) -> None:
    op = add_op()
    op.register_emission(emit)
    with pytest.raises(errors.CustomOpError) as caught:
        op(X, Y)
    text = Path(__file__).read_text()
    number = text[: text.index(line)].count("\n") + 1
    assert caught.value.where == f"{__file__}:{number}"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_emissions_that_contradict_the_shape_rule_are_named() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[0] + 1))
    op.register_emission(lambda builder, x: x)
    with pytest.raises(errors.CustomOpError, match=r"returned shape \[4\], .* says \[5\]"):
        op(X[0])


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("engine", "text", "message", "where"),
    [
        (None, ADD.replace("%x, %y :", "%x %y :"), "expected ','", "line 3, column"),
        (None, "func.func @a() { return } func.func @b() { return }", "of its text 'add'", None),
        (
            "format",
            "\nfunc.func @add(%x: {z})",
            "unknown placeholder 'z'; valid: ",
            "line 2 of the",
        ),
        ("format", "func.func @add(%x: {x}", "expected", "line 1, column"),
        ("jinja", "\n\n{% for i in %}", "Expected an expression", "line 3 of the"),
        (
            "jinja",
            "\nfunc.func @add(%x: {{ z }})",
            "unknown placeholder 'z'; valid: ",
            "line 2 of the",
        ),
        ("format", "\n\nfunc.func @add(%x: {x.size})", "no attribute 'size'", "line 3 of the"),
        ("jinja", "\n\nfunc.func @add(%x: {{ x.size }})", "no attribute 'size'", "line 3 of the"),
        ("jinja", "\n{{ x | nope }}", "No filter named 'nope'", "line 2 of the"),
        ("chalk", ADD, "unknown template engine 'chalk'; valid: format, jinja", None),
    ],
)
def test_invalid_templates_are_rejected_at_declaration(
    engine: str | None, text: str, message: str, where: str | None
) -> None:
    op = declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    with pytest.raises(errors.CustomOpError, match=message) as caught:
        op.register_template(text, engine=engine, example=(X, Y))
    assert (caught.value.where or "").startswith(where or "")
    # The op is what it was.
    torch.testing.assert_close(op(X, Y), X + Y)
    assert "test::add" not in declared_ops.EMITTED


def test_a_rejected_template_keeps_the_previous_emission() -> None:
    op = add_op()
    op.register_emission(lambda builder, x, y: arith.addf(x, y), keeps_operands=True)
    with pytest.raises(errors.CustomOpError, match="expected"):
        op.register_template("func.func @add(%x: {x}", engine="format", example=(X, Y))
    assert "test::add" in declared_ops.KEEP_OPERANDS
    torch.testing.assert_close(op(X, Y), X + Y)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @add(%x: tensor<2xf32>) { return }", "@add takes 1 values, .* has 2 tensors"),
        (
            "func.func @add(%x: tensor<2xf32>, %y: tensor<2xf32>) { return }",
            "@add gives 0 values, the schema has 1 results",
        ),
        ("module {}", "unknown function of its text 'add'"),
    ],
)
def test_templates_are_checked_against_the_schema_at_declaration(text: str, message: str) -> None:
    op = declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    with pytest.raises(errors.CustomOpError, match=message):
        op.register_template(text)
    torch.testing.assert_close(op(X, Y), X + Y)


def test_emissions_with_other_parameters_are_rejected_at_declaration() -> None:
    op = declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    with pytest.raises(errors.CustomOpError, match="its emission does not take the arguments"):
        op.register_emission(lambda builder, x: x)
    torch.testing.assert_close(op(X, Y), X + Y)


def test_a_template_with_placeholders_needs_an_example() -> None:
    with pytest.raises(errors.CustomOpError, match="with placeholders needs example arguments"):
        add_op().register_template(ADD, engine="jinja")


def test_an_emission_without_gradient_says_so() -> None:
    op = add_op()
    op.register_template(ADD)
    total = op(X.clone().requires_grad_(), Y).sum()
    with pytest.raises(errors.CustomOpError, match="test::add has no gradient"):
        total.backward()


def test_a_static_argument_that_does_not_exist_is_named() -> None:
    with pytest.raises(errors.CustomOpError, match="static: unknown argument 'z'; valid: x"):
        declare("f(Tensor x) -> Tensor", lambda x: x, static={"z": True})


def test_mutated_arguments_may_alias_others() -> None:
    def twice(x: Tensor, y: Tensor) -> None:
        x.add_(1)
        x.mul_(y)

    op = declare("f(Tensor(a!) x, Tensor y) -> ()", twice)
    both = torch.full((3,), 2.0)
    op(both, both)
    assert both.tolist() == [9.0] * 3


def test_emissions_read_aliases_of_mutated_arguments_before_the_write() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> ()", lambda x, y: None)
    op.register_emission(lambda builder, x, y: y)
    both = torch.arange(4.0)
    op(both[:3], both[1:])
    assert both.tolist() == [1.0, 2.0, 3.0, 3.0]


def test_mutated_arguments_of_emissions_must_not_alias() -> None:
    op = declare("f(Tensor(a!) x, Tensor(b!) y) -> ()", lambda x, y: None)
    op.register_emission(lambda builder, x, y: [y, x])
    both = torch.arange(4.0)
    with pytest.raises(errors.CustomOpError, match="writes to x and y, which share memory"):
        op(both[:3], both[1:])
    op(both[::2], both[1::2])
    assert both.tolist() == [1.0, 0.0, 3.0, 2.0]


def test_gradients_of_mutating_ops_are_rejected() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> Tensor", write)
    with pytest.raises(errors.CustomOpError, match="test::f mutates arguments"):
        op.register_autograd(lambda ctx, grad: (grad, None))
