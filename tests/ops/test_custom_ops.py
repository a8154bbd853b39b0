"""Custom ops agree with their functions: eager, under torch.compile, and in artifacts."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine
from tests.declared import ADD, ROUNDING, X, Y, add_op, declare, write
from tests.declared import leave_no_ops as leave_no_ops
from tests.forked import in_child
from tests.models import Fn, assert_alike
from turbine import aot, ops
from turbine.cli.main import main

pytestmark = pytest.mark.sweep(2)

# Every kind of argument and result


def numbers(x: Tensor, n: int, a: float, b: bool, s: str, d: torch.dtype, k: float) -> Tensor:
    assert s == "mean"
    return (x * n + a).mean(int(b)).to(d) * k


def lists(
    x: Tensor, n: list[int], a: list[float], b: list[bool], s: list[str], sizes: list[int]
) -> Tensor:
    kept = [axis for axis, keep in enumerate(b) if keep]
    return (x * n[0] + a[1]).sum(kept).reshape(sizes) + len(s[0])


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


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_type_agrees_in_every_mode(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_numbers_dtypes_and_keywords_agree_in_every_mode() -> None:
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


def test_results_are_contiguous_and_unaliased_in_every_mode() -> None:
    op = declare("f(Tensor x) -> (Tensor, Tensor)", lambda x: (x.t(), x))
    for form in (op.op, torch.compile(op.op, backend="turbine", fullgraph=True)):
        turned, same = form(X)
        assert turned.is_contiguous()
        assert same.data_ptr() != X.data_ptr()


def test_declared_ops_are_torch_ops_in_a_new_process() -> None:
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


def test_procedures_use_ops_with_dynamic_shapes() -> None:
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


def test_saved_programs_and_artifacts_do_not_need_the_op(tmp_path: Path) -> None:
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
    return len(op.core.launcher.kernels)


def test_a_new_size_does_not_recompile() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
    for rows in (2, 3, 5, 8):
        torch.testing.assert_close(op(X[:1].expand(rows, 4), Y[0]), X[:1].expand(rows, 4) + Y[0])
    assert kernel_count(op) == 1


def test_a_static_axis_recompiles_for_each_size() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * x.shape[1], static={"x": [-1]})
    for rows, columns in ((2, 3), (3, 3), (3, 5)):
        x = torch.ones(rows, columns)
        torch.testing.assert_close(op(x), x * columns)
    assert kernel_count(op) == 2


def test_a_branch_on_a_size_specializes() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2 if x.shape[0] > 3 else x + 1)
    for size in (2, 3, 4, 9, 2):
        x = torch.ones(size)
        torch.testing.assert_close(op(x), x * 2 if size > 3 else x + 1)
    assert kernel_count(op) == 2


def test_equal_numbers_of_different_types_specialize() -> None:
    op = declare(
        "f(Tensor x, float a) -> Tensor", lambda x, a: torch.copysign(x, torch.full((), a))
    )
    for value in (0.0, -0.0, 0.0):
        torch.testing.assert_close(op(X, value), torch.copysign(X, torch.tensor(value)))


def test_strided_and_offset_arguments_are_read_in_place() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + 1)
    storage = torch.arange(40.0)
    for x in (storage[1:13].reshape(3, 4), storage[::2], X.t(), storage[3:4].expand(5)):
        for _ in range(3):
            torch.testing.assert_close(op(x), x + 1)


# PyTorch where the compiler gives up


def test_ops_that_do_not_compile_fall_back(caplog: pytest.LogCaptureFixture) -> None:
    op = declare("f(Tensor x) -> Tensor", torch.linalg.eigvals)
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(op(x), torch.linalg.eigvals(x))
    assert "test::f runs in PyTorch" in caplog.text


def test_functions_that_cannot_be_traced_fall_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2 if x.sum() > 0 else x * 3)
    for x in (Y, -Y):
        torch.testing.assert_close(op(x), op.function(x))
    assert "test::f runs in PyTorch: tracing it failed" in caplog.text


def test_captured_tensors_may_be_transposed(caplog: pytest.LogCaptureFixture) -> None:
    weight, x = torch.randn(4, 6).t(), torch.randn(3, 6)
    op = declare("f(Tensor x) -> Tensor", lambda x: x @ weight)
    torch.testing.assert_close(op(x), x @ weight)
    assert "runs in PyTorch" not in caplog.text


def test_captured_tensors_may_change() -> None:
    held = torch.ones(4)
    op = declare("f(Tensor x) -> Tensor", lambda x: x + held)
    for _ in range(3):
        for call in (op, op, op.op):
            torch.testing.assert_close(call(X), X + held)
        held.mul_(2)


def test_random_numbers_match_pytorch() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x + torch.rand_like(x))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        found = op(X)
        torch.manual_seed(7)
        torch.testing.assert_close(found, X + torch.rand_like(X))


# Threads


def test_concurrent_calls_return_their_own_results() -> None:
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


def test_a_forked_child_can_call_ops_of_its_parent() -> None:
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
