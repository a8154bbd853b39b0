"""help() and editors show signatures and docstrings of the language and of kernels."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from tests.kernel.language import OPS
from turbine import config
from turbine.kernel.trace.op import Op

M, N = tkl.sym.M, tkl.sym.N


def test_ops_of_the_language_have_signatures_and_docstrings() -> None:
    ops = [value for value in OPS.values() if isinstance(value, Op)]
    assert len(ops) > 70
    for op in ops:
        head, _, doc = (op.__doc__ or "").partition("\n\n")
        assert head.startswith(f"{op.name}(")
        assert doc.partition("\n")[0].endswith(".")
        assert not [name for name in inspect.signature(op).parameters if name not in head]


@pytest.mark.parametrize("name", OPS)
def test_docstring_examples_run_and_match_their_output(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda: None)
    doc = inspect.getdoc(OPS[name]) or ""
    _, marker, example = doc.partition("\nExample::\n\n")
    assert marker, f"tkl.{name} has no example"
    source = textwrap.dedent(example)
    assert f"tkl.{name}(" in source.replace(f"@tkl.{name}", f"tkl.{name}")
    if "@tk.gen.kernel" in source:
        with config.override(interpret=True):
            run(source, print, N=N, B=tkl.sym.B)
    else:
        interpreted(body_of(source))
    printed = capsys.readouterr().out.replace("\n ", " ")
    shown = [line.rpartition("): ")[2] for line in printed.splitlines()]
    assert shown == results_of(source)


def body_of(source: str) -> Callable[..., None]:
    """A kernel whose body is an example, with prints of the commented values."""

    def kernel(unused: tkl.TemporaryBuffer[1, tkl.i32]) -> None:
        run(source, lambda value: None if value is None else tkl.print(value))

    return kernel


def run(source: str, show: Callable[[Any], None], **symbols: Any) -> None:
    """Run an example, and show the expressions that have a comment."""
    tree = ast.parse(source)
    lines = source.splitlines()
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and "  # " in lines[statement.lineno - 1]:
            statement.value = ast.Call(ast.Name("show", ast.Load()), [statement.value], [])
    code = compile(ast.fix_missing_locations(tree), "<example>", "exec", dont_inherit=True)
    exec(code, {"tk": tk, "tkl": tkl, "torch": torch, "show": show, **symbols})


def results_of(source: str) -> list[str]:
    """What the comments of an example say that its lines give."""
    return [line.partition("  # ")[2] for line in source.splitlines() if "  # " in line]


def test_kernels_have_the_signature_of_a_call() -> None:
    @tk.gen.kernel()
    def add_rows(
        x: tkl.InputBuffer[M, N, tkl.f32],
        scale: tkl.f32 = 2.0,
        y: tkl.OutputBuffer[N, tkl.f32] = None,
    ) -> None:
        """The sum of the rows, scaled."""
        tkl.store(y, (0,), scale * tkl.sum(tkl.load(x, (0, 0), (M, N)), 0))

    shown = inspect.signature(add_rows)
    assert list(shown.parameters) == ["x", "scale"]
    assert str(shown.parameters["x"].annotation) == "InputBuffer[M, N, f32]"
    assert shown.parameters["scale"].default == 2.0
    assert shown.return_annotation == "OutputBuffer[N, f32]"
    torch.testing.assert_close(add_rows(torch.ones(3, 4)), torch.full((4,), 6.0))
