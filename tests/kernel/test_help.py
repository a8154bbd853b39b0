"""What help() and editors show of the kernel language and of kernels."""

from __future__ import annotations

import inspect

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.kernel.op import Op

M, N = tkl.sym.M, tkl.sym.N


def test_ops_of_the_language_have_signatures_and_docstrings() -> None:
    ops = [value for value in vars(tkl).values() if isinstance(value, Op)]
    assert len(ops) > 70
    for op in ops:
        head, _, doc = (op.__doc__ or "").partition("\n\n")
        assert head.startswith(f"{op.name}(")
        assert doc.endswith(".")
        assert not [name for name in inspect.signature(op).parameters if name not in head]


def test_a_kernel_shows_what_its_caller_passes() -> None:
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
