"""Prints, assertions and breakpoints in the interpreter."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from turbine import errors

N, B, T = tkl.sym.N, tkl.sym.B, tkl.types.T


def test_a_print_shows_line_program_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        tile = tkl.load(x, (i * B,), (B,))
        tkl.print("x =", tile, "of", i, label="here")
        tkl.store(y, (i * B,), tile)

    interpreted(kernel, (N // B,), {"B": 2}, x=torch.tensor([1.0, 2.5, 3.0]))
    first, second = capsys.readouterr().out.splitlines()
    line = kernel.__code__.co_firstlineno + 3
    assert first == f"{__file__}:{line} program (0,): here: x = [1 2.5] of 0"
    assert second == f"{__file__}:{line} program (1,): here: x = [3 .] of 1"


def test_a_print_in_a_loop_shows_each_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i32], y: tkl.OutputBuffer[1, tkl.i32]) -> None:
        @tkl.for_loop(0, 3, init_args=[tkl.zeros((), tkl.i32)])
        def body(k: Any, total: Any) -> Any:
            tkl.print(k, total)
            return total + tkl.load(x, (k,))

        tkl.store(y, (0,), body[0])

    interpreted(kernel, x=torch.tensor([5, 6, 7], dtype=torch.int32))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["0 0", "1 5", "2 11"]


@pytest.mark.parametrize("dtype", [torch.uint32, torch.float8_e5m2, torch.bfloat16, torch.bool])
def test_every_dtype_is_printed(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: tkl.InputBuffer[N, T], y: tkl.InOutBuffer[1, tkl.i32]) -> None:
        tkl.print(tkl.load(x, (0,), (2,)))

    interpreted(kernel, x=torch.tensor([1, 0]).to(dtype), y=torch.zeros(1, dtype=torch.int32))
    expected = "[True False]" if dtype is torch.bool else "[1 0]"
    assert capsys.readouterr().out.endswith(f": {expected}\n")


def checked(x: torch.Tensor, message: Any = "x is not negative") -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        tile = tkl.load(x, (i * B,), (B,))
        tkl.assert_(tile >= 0, message)  # noqa: PT009
        tkl.store(y, (i * B,), tile)

    interpreted(kernel, (N // B,), {"B": 4}, x=x)


def test_an_assertion_names_message_program_lane_and_line() -> None:
    with pytest.raises(
        errors.KernelError, match=r"x is not negative \(program \(1,\), lane \(2,\)\)"
    ) as caught:
        checked(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, -6.0]))
    assert caught.value.where == f"{__file__}:{checked.__code__.co_firstlineno + 4}"


def test_assertions_ignore_masked_off_lanes() -> None:
    checked(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]))


def test_a_message_must_be_a_str() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.assert_ has an invalid message: 3"):
        checked(torch.ones(4), 3)


def test_assertions_may_test_sizes() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.InOutBuffer[N, tkl.f32]) -> None:
        tkl.assert_(N < 4, "few elements")  # noqa: PT009

    interpreted(kernel, x=torch.ones(3), y=torch.ones(3))
    with pytest.raises(errors.KernelError, match=r"few elements \(program \(\)\)"):
        interpreted(kernel, x=torch.ones(4), y=torch.ones(4))


def test_a_breakpoint_shows_the_variables_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[dict[str, Any]] = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: stops.append(dict(sys._getframe(1).f_locals))
    )

    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        doubled = tkl.load(x, (i * B,), (B,)) * 2
        tkl.breakpoint()
        tkl.store(y, (i * B,), doubled)

    interpreted(kernel, (N // B,), {"B": 2}, x=torch.arange(4.0))
    assert [stop["program"] for stop in stops] == [(0,), (1,)]
    assert stops[1]["values"]["doubled"].tolist() == [4.0, 6.0]
    assert stops[1]["values"]["i"] == 1
    assert stops[1]["values"]["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert stops[1]["nodes"]["load"].tolist() == [2.0, 3.0]


def test_a_breakpoint_does_not_need_a_symbol_that_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops: list[dict[str, Any]] = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: stops.append(dict(sys._getframe(1).f_locals["values"]))
    )

    @tk.gen.kernel(N // B)
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        unused, size = tkl.sym.UNUSED, N  # noqa: F841  # shown by the breakpoint
        tkl.breakpoint()
        i = tkl.program_id(0)
        tkl.store(y, (i * B,), tkl.load(x, (i * B,), (B,)) * 2)

    doubling = kernel.using(B=4)
    x = torch.arange(4.0)
    assert doubling.interpret(x).tolist() == doubling(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    (values,) = stops
    assert values["size"] == 4
    assert repr(values["unused"]) == "UNUSED"


def test_a_print_outside_a_kernel_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.print is used outside a kernel"):
        tkl.print("x")
