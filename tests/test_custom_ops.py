"""Custom ops give what their functions say: eager, under torch.compile, and in artifacts."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from iree.compiler.dialects import arith
from torch import Tensor
from torch.autograd import forward_ad

import turbine
from tests.forked import in_child
from tests.models import Fn, assert_alike
from turbine import aot, errors, ops
from turbine.capture import declared_ops
from turbine.cli.main import main
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


# Every kind of argument and result


def numbers(x: Tensor, n: int, a: float, b: bool, s: str, d: torch.dtype, k: float) -> Tensor:
    assert s == "mean"
    return (x * n + a).mean(int(b)).to(d) * k


def lists(
    x: Tensor, n: list[int], a: list[float], b: list[bool], s: list[str], sizes: list[int]
) -> Tensor:
    kept = [axis for axis, keep in enumerate(b) if keep]
    return (x * n[0] + a[1]).sum(kept).reshape(sizes) + len(s[0])


def write(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * 2


def write_list(xs: list[Tensor]) -> None:
    for x in xs:
        x.mul_(2)


def write_inside(x: Tensor) -> Tensor:
    copied = x.clone()
    copied[0] = 7
    return copied


KINDS: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "optional tensor": (
        "f(Tensor x, Tensor? y) -> Tensor",
        lambda x, y: x if y is None else x - y,
        (X, Y),
    ),
    "no optional tensor": (
        "f(Tensor x, Tensor? y=None) -> Tensor",
        lambda x, y: -x if y is None else x - y,
        (X,),
    ),
    "tensor lists": (
        "f(Tensor[] xs, Tensor?[] ys) -> Tensor",
        lambda xs, ys: sum(xs) * ys[1],
        ([X, Y, X], [None, Y]),
    ),
    "size": ("f(Tensor x, SymInt n) -> Tensor", lambda x, n: torch.arange(n) + x.sum(), (X, 5)),
    "lists of numbers": (
        "f(Tensor x, int[] n, float[] a, bool[] b, str[] s, SymInt[] sizes) -> Tensor",
        lists,
        (X, [3], [0.0, 2.5], [True, False], ["four"], [2, 2]),
    ),
    "several results": (
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x.sum(0), x.to(torch.int32)),
        (X,),
    ),
    "optional results": (
        "f(Tensor x) -> (Tensor?, Tensor?)",
        lambda x: (None, x + 1),
        (X,),
    ),
    "list of results": ("f(Tensor x) -> Tensor[]", lambda x: list((x + 1).unbind(0)), (X,)),
    "list among results": (
        "f(Tensor x) -> (Tensor[], Tensor)",
        lambda x: (list((x + 1).unbind(0)), x * 3),
        (X,),
    ),
    "size and tensor": (
        "f(Tensor x) -> (Tensor, SymInt)",
        lambda x: (x + 1, x.shape[0] * 2),
        (X,),
    ),
    "number from data": ("f(Tensor x) -> SymInt", lambda x: (x > 0).sum().item(), (X,)),
    "no result": ("f(Tensor x) -> ()", lambda x: None, (X,)),
    "written": ("f(Tensor(a!) x, Tensor y) -> Tensor", write, (X, Y)),
    "written list": ("f(Tensor(a!)[] xs) -> ()", write_list, ([X, Y],)),
    "written inside": ("f(Tensor x) -> Tensor", write_inside, (X,)),
    "view of an argument": ("f(Tensor x) -> Tensor", lambda x: x.t(), (X,)),
    "argument itself": ("f(Tensor x) -> Tensor", lambda x: x, (X,)),
    "complex": ("f(Tensor x) -> Tensor", lambda x: x * x, (torch.complex(X, Y),)),
    "bytes": (
        "f(Tensor x) -> Tensor",
        lambda x: x + x,
        (torch.tensor([1, 200], dtype=torch.uint8),),
    ),
    "half precision": ("f(Tensor x) -> Tensor", lambda x: x * 3, (X.bfloat16(),)),
    "empty": ("f(Tensor x) -> Tensor", lambda x: x + 1, (X[:0],)),
    "no axes": ("f(Tensor x) -> Tensor", lambda x: x + 1, (X[0, 0],)),
}


@pytest.mark.sweep(9)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_the_same_in_every_form(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    schema, function, args = KINDS[kind]
    op = declare(schema, function)
    expected_args = copy.deepcopy(args)
    expected = function(*op.schema.filled(expected_args, {}))
    forms = {
        "eager": op.op,
        "compiled": torch.compile(Fn(op.op), backend="turbine", fullgraph=True),
        "exported": turbine.aot.export(Fn(op.op), args=copy.deepcopy(args)).compile(),
    }
    for form in forms.values():
        own = copy.deepcopy(args)
        found = form(*own)
        found = tuple(found) if isinstance(expected, tuple) else found
        assert_alike((found, own), (expected, expected_args), ROUNDING)
    assert "runs in PyTorch" not in caplog.text
    torch.library.opcheck(op.op, copy.deepcopy(args))


def test_numbers_dtypes_and_keywords_are_the_same_in_every_form() -> None:
    op = declare(
        "f(Tensor x, int n, float a, bool b, str s, ScalarType d, *, float k=2.0) -> Tensor",
        lambda x, n, a, b, s, d, *, k: numbers(x, n, a, b, s, d, k),
    )
    given = (X, 3, 0.5, True, "mean", torch.float64)
    expected = numbers(*given, 4.0)

    def used(x: Tensor) -> Any:
        return op.op(x, *given[1:], k=4.0)

    forms = (
        used,
        torch.compile(used, backend="turbine", fullgraph=True),
        turbine.aot.export(Fn(used), args=(X,)).compile(),
    )
    for form in forms:
        assert_alike(form(X), expected, ROUNDING)
    torch.library.opcheck(op.op, given, {"k": 4.0})


def test_results_are_contiguous_and_their_own_in_every_form() -> None:
    op = declare("f(Tensor x) -> (Tensor, Tensor)", lambda x: (x.t(), x))
    for form in (op.op, torch.compile(op.op, backend="turbine", fullgraph=True)):
        turned, same = form(X)
        assert turned.is_contiguous()
        assert same.data_ptr() != X.data_ptr()


def test_importing_turbine_is_enough() -> None:
    program = """
import torch, turbine
@turbine.ops.custom_op("fresh::add(Tensor x, Tensor y, float alpha=1.0) -> Tensor")
def add(x, y, alpha):
    return x + alpha * y
print(torch.ops.fresh.add(torch.ones(2), torch.ones(2), alpha=2).tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[3.0, 3.0]\n", done.stderr


# Whole programs


def test_a_procedure_uses_ops_with_sizes_that_vary() -> None:
    scaled = declare("f(Tensor[] xs, int times) -> Tensor", lambda xs, times: sum(xs) * times)
    added = add_op()
    added.register_template(ADD)

    class Program(aot.CompiledModule):
        def run(
            self, x: Any = aot.AbstractTensor(None, 4), y: Any = aot.AbstractTensor(None, 4)
        ) -> Any:
            return self.compute(x, y)

        @aot.jittable
        def compute(x: Any, y: Any) -> Any:
            return scaled.op([x, added.op(x, y)], 3)

    artifact = aot.export(Program).compile()
    for rows in (3, 2):
        assert_alike(artifact.run(X[:rows], Y[:rows]), (2 * X + Y)[:rows] * 3, ROUNDING)


def test_saved_programs_and_artifacts_need_no_op(tmp_path: Path) -> None:
    op = declare("f(Tensor x) -> Tensor", write_inside)
    builder = aot.FxProgramsBuilder(Fn(op.op))

    @builder.export_program(args=(X,))
    def run(module: Any, x: Tensor) -> Any:
        return module(x)

    builder.save(tmp_path / "programs.json")
    aot.export(builder).compile(tmp_path / "f.turbine")
    op.remove()
    loaded = aot.export(aot.FxPrograms.load(tmp_path / "programs.json")).compile()
    for artifact in (loaded, turbine.load(tmp_path / "f.turbine")):
        assert_alike(artifact.run(X), write_inside(X), ROUNDING)


# Sizes


def kernel_count(op: ops.DeclaredOp) -> int:
    return sum(map(len, op.core.launcher.kernels.values()))


def test_a_new_size_does_not_compile_again() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    for rows in (2, 3, 5, 8):
        torch.testing.assert_close(op(X[:1].expand(rows, 4), Y[0]), X[:1].expand(rows, 4) + Y[0])
    assert kernel_count(op) == 1


def test_a_static_axis_compiles_for_each_size() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * x.shape[1], static={"x": [-1]})
    for rows, columns in ((2, 3), (3, 3), (3, 5)):
        x = torch.ones(rows, columns)
        torch.testing.assert_close(op(x), x * columns)
    assert kernel_count(op) == 2


def test_a_branch_on_a_size_gets_code_for_both_sides() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2 if x.shape[0] > 3 else x + 1)
    for size in (2, 3, 4, 9, 2):
        x = torch.ones(size)
        torch.testing.assert_close(op(x), x * 2 if size > 3 else x + 1)
    assert kernel_count(op) == 2


def test_numbers_that_are_equal_and_not_the_same_have_code_of_their_own() -> None:
    op = declare(
        "f(Tensor x, float a) -> Tensor", lambda x, a: torch.copysign(x, torch.full((), a))
    )
    for value in (0.0, -0.0, 0.0):
        torch.testing.assert_close(op(X, value), torch.copysign(X, torch.tensor(value)))


def test_strided_and_shifted_arguments_are_read_as_they_are() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + 1)
    storage = torch.arange(40.0)
    for x in (storage[1:13].reshape(3, 4), storage[::2], X.t(), storage[3:4].expand(5)):
        for _ in range(3):
            torch.testing.assert_close(op(x), x + 1)


# Gradients and vmap


def test_a_gradient_is_derived_twice() -> None:
    op = declare("f(Tensor x, Tensor[] ys, float a) -> (Tensor, Tensor)", _two)
    x, y = X.double().requires_grad_(), Y.double().requires_grad_()

    def used(x: Tensor, y: Tensor) -> Any:
        return op.op(x, [y, x.detach()], 2.0)

    assert torch.autograd.gradcheck(used, (x, y))
    assert torch.autograd.gradgradcheck(used, (x, y))


def _two(x: Tensor, ys: list[Tensor], a: float) -> tuple[Tensor, Tensor]:
    return x.sin() * ys[0] * a, (ys[0] > 2.5).to(torch.int32)


def test_a_gradient_under_torch_compile_is_that_of_eager() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: (x * y).exp())
    grads = []
    for function in (op.op, torch.compile(op.op, backend="turbine", fullgraph=True)):
        x = X.clone().requires_grad_()
        function(x, Y).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])
    torch.testing.assert_close(grads[0], Y * (X * Y).exp())


def test_a_given_backward_is_used() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2)
    op.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = X.clone().requires_grad_()
    op(x).sum().backward()
    torch.testing.assert_close(x.grad, X)


def test_vmap_goes_through_the_batch_and_takes_a_rule() -> None:
    op = declare("f(Tensor x, Tensor y, float a=2.0) -> Tensor", lambda x, y, a: (x * y).sum() * a)
    torch.testing.assert_close(torch.vmap(op.op)(X, Y), (X * Y).sum(1) * 2)
    torch.testing.assert_close(
        torch.vmap(op.op, (1, None))(X, X[:, 0]), (X.t() * X[:, 0]).sum(1) * 2
    )
    op.register_vmap(lambda info, dims, x, y, a=2.0: (torch.full((info.batch_size,), 5.0), 0))
    assert torch.vmap(op.op)(X, Y).tolist() == [5.0] * 3


def test_transforms_of_torch_func_go_through() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: (x**3).sum())
    found = torch.func.vmap(torch.func.grad(op.op))(X)
    torch.testing.assert_close(found, 3 * X**2)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own
def test_forward_mode_goes_through_and_an_emission_refuses_it() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y)
    add = add_op()
    add.register_template(ADD)
    for called in (op, op, add, add):  # remembered
        called(X, Y)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        for call in (op, op.op):
            torch.testing.assert_close(forward_ad.unpack_dual(call(dual, Y)).tangent, Y)
        with pytest.raises(errors.CustomOpError, match="no forward-mode gradient"):
            add(dual, Y)
        torch.testing.assert_close(add(X, Y), X + Y)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own
def test_a_given_backward_is_used_by_torch_func() -> None:
    op = declare("f(Tensor x, Tensor[] ys, float a) -> Tensor", lambda x, ys, a: x * ys[0] * a)
    op.register_autograd(
        lambda ctx, grad: (grad * 10 * ctx.saved_tensors[0], [None], None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1][0]),
    )
    for call in (op, op.op):
        used = partial(_summed, call)
        torch.testing.assert_close(torch.func.grad(used)(X, Y), 10 * Y)
        torch.testing.assert_close(torch.vmap(torch.func.grad(used))(X, Y), 10 * Y)
    with pytest.raises(errors.CustomOpError, match="no forward-mode gradient"):
        torch.func.jvp(lambda x: _summed(op, x, Y), (X,), (X,))


def _summed(call: Any, x: Tensor, y: Tensor) -> Tensor:
    total: Tensor = call(x, [y], 3.0).sum()
    return total


def test_vmap_over_nothing_and_over_an_op_that_writes() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: x.sum() * y)
    assert torch.vmap(op, in_dims=(0, None))(X[:0], Y).shape == (0, 3, 4)
    written = declare("g(Tensor(a!) x, Tensor y) -> Tensor", write)
    x = X.clone()
    torch.testing.assert_close(torch.vmap(written)(x, Y), (X + Y) * 2)
    torch.testing.assert_close(x, X + Y)


def test_a_gradient_goes_through_what_is_written() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> Tensor", write)
    x, y = torch.zeros(3, 4), Y.clone().requires_grad_()
    op(x, y)
    x.square().sum().backward()
    torch.testing.assert_close(y.grad, 2 * Y)


def test_keyword_only_tensors_have_gradients() -> None:
    op = declare("f(Tensor x, *, Tensor y) -> Tensor", lambda x, *, y: x * y)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    torch.testing.assert_close(op(X, y=Y), X * Y)
    op(x, y=y).sum().backward()
    torch.testing.assert_close((x.grad, y.grad), (Y, X))
    out = declare("g(Tensor x, *, Tensor(a!) out) -> ()", lambda x, *, out: out.copy_(x * 2))
    given = torch.empty(3, 4)
    out(X, out=given)
    torch.testing.assert_close(given, X * 2)


def test_a_call_that_needs_gradients_after_one_that_does_not() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2)
    for _ in range(3):
        assert not op(X).requires_grad
        assert not op.op(X).requires_grad
    assert op(X.clone().requires_grad_()).requires_grad
    assert op.op(X.clone().requires_grad_()).requires_grad


# Emission


ADD = """
func.func @add(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %sum = arith.addf %x, %y : tensor<?x?xf32>
  return %sum : tensor<?x?xf32>
}
"""
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


def add_op() -> ops.DeclaredOp:
    return declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))


def fill_op() -> ops.DeclaredOp:
    return declare(
        "fill(Tensor x, float value, SymInt n) -> Tensor",
        lambda x, value, n: x.new_empty(x.shape[0], n),
    )


def test_an_emission_by_builders_is_the_same_in_every_form() -> None:
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
    assert "0 ops in PyTorch" in str(turbine.explain(compiled, X, Y))
    torch.library.opcheck(op.op, (X, [X, Y], True))


def test_an_emission_gives_lists_among_several_results() -> None:
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


def test_an_op_that_writes_has_an_emission_of_new_values() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> ()", lambda x, y: None)
    op.register_emission(lambda builder, x, y: arith.AddFOp(x, y).result)
    x = X.clone()
    op(x, Y)
    torch.testing.assert_close(x, X + Y)


def test_a_text_is_the_op_in_every_form() -> None:
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


def test_an_emission_cannot_change_what_the_caller_passed() -> None:
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
def test_blanks_are_types_and_numbers(engine: str) -> None:
    op = fill_op()
    text = FILL
    if engine == "jinja":
        text = text.replace("{{", "<").replace("}}", ">").replace("{", "{{").replace("}", "}}")
        text = text.replace("-> {{result}} <", "-> {{result}} {").replace("\n>", "\n}")
    op.register_template(text, engine=engine, example=(X, 1.5, 4))
    for dtype, columns in ((torch.float32, 5), (torch.float64, 6)):
        found = op(X.to(dtype), 2.5, columns)
        torch.testing.assert_close(found, torch.full((3, columns), 2.5, dtype=dtype))


# PyTorch where the compiler gives up


def test_what_does_not_compile_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    op = declare("f(Tensor x) -> Tensor", torch.linalg.eigvals)
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(op(x), torch.linalg.eigvals(x))
    assert "test::f runs in PyTorch" in caplog.text


def test_a_function_that_cannot_be_traced_runs_in_pytorch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2 if x.sum() > 0 else x * 3)
    for x in (Y, -Y):
        torch.testing.assert_close(op(x), op.function(x))
    assert "test::f runs in PyTorch: tracing it failed" in caplog.text


def test_a_tensor_that_the_function_holds_may_change() -> None:
    held = torch.ones(4)
    op = declare("f(Tensor x) -> Tensor", lambda x: x + held)
    for _ in range(3):
        for call in (op, op, op.op):
            torch.testing.assert_close(call(X), X + held)
        held.mul_(2)


def test_random_numbers_are_those_of_pytorch() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + torch.rand_like(x))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        found = op(X)
        torch.manual_seed(7)
        torch.testing.assert_close(found, X + torch.rand_like(X))


# Threads


def test_calls_from_four_threads_give_their_own_results() -> None:
    op = declare("f(Tensor x, float a) -> Tensor", lambda x, a: x * a + x.shape[0])
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for step in range(60):
            x = torch.full((2 + (seed + step) % 5,), float(seed))
            a = float(1 + step % 3)
            found = op(x, a) if step % 2 else op.op(x, a)
            if not torch.equal(found, x * a + x.shape[0]):
                wrong.append((seed, step, found))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_process_calls_an_op_that_its_parent_called() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2)
    op(X)
    assert in_child(lambda: str(torch.equal(op(X), X * 2))) == "True"


# Seeing it


def test_kernels_and_calls_are_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with turbine.config.override(trace_dir=tmp_path):
        op = declare("f(Tensor x) -> Tensor", lambda x: x * 2)
        for rows in (2, 2, 3):
            op(X[:rows])
    assert "func.func @main" in (tmp_path / "test.f.mlir").read_text()
    assert main(["trace", str(tmp_path), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert (kernel["name"], kernel["calls"]) == ("test.f", 3)
    assert kernel["shapes"] == {"float32[2, 4]": 2, "float32[3, 4]": 1}


# Bad input


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
        (lambda x: x, "a schema is a text, this is a function"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(errors.CustomOpError, match=message):
        ops.custom_op(schema)


def test_a_name_is_declared_once_and_free_when_removed() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + 1)
    with pytest.raises(errors.CustomOpError, match="test::f exists already"):
        declare("f(Tensor x) -> Tensor", lambda x: x + 2)
    torch.testing.assert_close(op(X), X + 1)
    op.remove()
    with pytest.raises(errors.CustomOpError, match="test::f was removed"):
        op(X)
    torch.testing.assert_close(declare("f(Tensor x) -> Tensor", lambda x: x + 2)(X), X + 2)


def test_a_model_that_holds_an_op_is_copied_and_pickled() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + 1)
    assert copy.deepcopy([op]) == [op]
    assert pickle.loads(pickle.dumps(op)) is op


def test_a_function_that_does_not_take_the_arguments_is_refused() -> None:
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
def test_a_function_that_fails_or_gives_something_else_is_named(given: Any, message: str) -> None:
    op = declare("f(Tensor x) -> Tensor", given)
    with pytest.raises(errors.CustomOpError, match=f"test::f: {message}"):
        op(X)


def _raise(*_: Any) -> Any:
    raise ValueError("oops")


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (_raise, "its emission raised ValueError: oops"),
        (lambda b, x, y: 3, r"result 0 is declared as tensor<\?x\?xf32> and given as a int"),
        (lambda b, x, y: [x, y], "its emission gave 2 values, its schema has 1 results"),
        (
            lambda b, x, y: arith.cmpf(arith.CmpFPredicate.OEQ, x, y),
            r"result 0 is declared as tensor<\?x\?xf32> and given as tensor<\?x\?xi1>",
        ),
        (lambda b, x, y: b.call(ADD, x), "@add takes 2 values and is given 1"),
        (lambda b, x, y: b.call(ADD, x, y, name="sub"), "unknown function of its text 'sub'"),
    ],
)
def test_an_emission_that_does_not_fit_is_named(emit: Any, message: str) -> None:
    op = add_op()
    op.register_emission(emit)
    with pytest.raises(errors.CustomOpError, match=f"test::add: {message}"):
        op(X, Y)
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}
    with pytest.raises(errors.CustomOpError, match=f"test::add: {message}"):
        turbine.aot.export(Fn(op.op), args=(X, Y), dynamic_shapes=((sizes, sizes),))


def test_an_emission_of_other_sizes_than_the_shape_rule_says_is_named() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[0] + 1))
    op.register_emission(lambda builder, x: x)
    with pytest.raises(errors.CustomOpError, match=r"gave a tensor of \[4\], .* says \[5\]"):
        op(X[0])


@pytest.mark.parametrize(
    ("engine", "text", "message", "where"),
    [
        (None, ADD.replace("%x, %y :", "%x %y :"), "expected ','", "line 3, column"),
        (None, "func.func @a() { return } func.func @b() { return }", "of its text 'add'", None),
        ("format", "\nfunc.func @add(%x: {z})", "unknown blank 'z'; valid: ", "line 2 of the"),
        ("format", "func.func @add(%x: {x}", "expected", "line 1, column"),
        ("jinja", "\n\n{% for i in %}", "Expected an expression", "line 3 of the"),
        ("jinja", "\nfunc.func @add(%x: {{ z }})", "unknown blank 'z'; valid: ", "line 2 of the"),
        ("format", "\n\nfunc.func @add(%x: {x.size})", "no attribute 'size'", "line 3 of the"),
        ("jinja", "\n\nfunc.func @add(%x: {{ x.size }})", "no attribute 'size'", "line 3 of the"),
        ("jinja", "\n{{ x | nope }}", "No filter named 'nope'", "line 2 of the"),
        ("chalk", ADD, "unknown template engine 'chalk'; valid: format, jinja", None),
    ],
)
def test_a_template_that_cannot_be_is_refused_at_once(
    engine: str | None, text: str, message: str, where: str | None
) -> None:
    op = declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    with pytest.raises(errors.CustomOpError, match=message) as caught:
        op.register_template(text, engine=engine, example=(X, Y))
    assert (caught.value.where or "").startswith(where or "")
    # The op is what it was.
    torch.testing.assert_close(op(X, Y), X + Y)
    assert "test::add" not in declared_ops.EMITTED


def test_a_template_that_fails_leaves_the_emission_before_it_in_place() -> None:
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
def test_a_text_is_compared_with_the_schema_at_once(text: str, message: str) -> None:
    op = declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    with pytest.raises(errors.CustomOpError, match=message):
        op.register_template(text)
    torch.testing.assert_close(op(X, Y), X + Y)


def test_an_emission_that_does_not_take_the_arguments_is_refused_at_once() -> None:
    op = declare("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    with pytest.raises(errors.CustomOpError, match="its emission does not take the arguments"):
        op.register_emission(lambda builder, x: x)
    torch.testing.assert_close(op(X, Y), X + Y)


SCALE = """
func.func @f(%x: {x}) -> {x} {{
  %by = arith.constant dense<{by}> : {x}
  %y = arith.mulf %x, %by : {x}
  return %y : {x}
}}
"""


@pytest.mark.parametrize("engine", ["format", "jinja"])
def test_small_and_large_floats_fill_blanks(engine: str) -> None:
    op = declare("f(Tensor x, float by) -> Tensor", lambda x, by: torch.empty_like(x))
    in_jinja = SCALE.replace("{by}", "{{{{ by * 1 }}}}").format(x="tensor<f32>")
    text = SCALE if engine == "format" else in_jinja
    op.register_template(text, engine=engine, example=(torch.tensor(1.0), 1.0))
    for by in (1e-6, -1e20, 2.5):
        torch.testing.assert_close(op(torch.tensor(2.0), by), torch.tensor(2.0 * by))


def test_a_template_with_blanks_needs_an_example() -> None:
    with pytest.raises(errors.CustomOpError, match="with blanks is checked for arguments"):
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


def test_an_argument_that_is_written_may_be_another_one_too() -> None:
    def twice(x: Tensor, y: Tensor) -> None:
        x.add_(1)
        x.mul_(y)

    op = declare("f(Tensor(a!) x, Tensor y) -> ()", twice)
    both = torch.full((3,), 2.0)
    op(both, both)
    assert both.tolist() == [9.0] * 3
    op.register_emission(lambda builder, x, y: x)
    with pytest.raises(errors.CustomOpError, match="shares memory with another"):
        op(both, both)


def test_a_gradient_for_an_op_that_writes_is_refused() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> Tensor", write)
    with pytest.raises(errors.CustomOpError, match="test::f writes to arguments"):
        op.register_autograd(lambda ctx, grad: (grad, None))
