"""Atomics in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from turbine import errors
from turbine.kernel.trace.types import DTYPES

M, N, B, T = tkl.sym.M, tkl.sym.N, tkl.sym.B, tkl.types.T
ATOMICS: dict[str, tuple[Any, Any]] = {
    "add": (tkl.atomic_add, torch.add),
    "max": (tkl.atomic_max, torch.maximum),
    "min": (tkl.atomic_min, torch.minimum),
}


@pytest.mark.parametrize("kind", ATOMICS)
@pytest.mark.parametrize("block", [2, 4])
def test_programs_accumulate_into_one_block(kind: str, block: int) -> None:
    atomic, together = ATOMICS[kind]

    def kernel(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.InOutBuffer[N, tkl.f32]) -> None:
        row, column = tkl.program_id(0), tkl.program_id(1) * B
        atomic(y, (column,), tkl.squeeze(tkl.load(x, (row, column), (1, B)), 0))

    x, y = torch.randn(5, 7), torch.randn(7)
    expected = y.clone()
    for row in x:
        expected = together(expected, row)
    interpreted(kernel, (M, N // B), {"B": block}, x=x, y=y)
    assert torch.equal(y, expected)


def test_atomics_return_the_old_values() -> None:
    def kernel(
        x: tkl.InputBuffer[N, tkl.i64],
        y: tkl.OutputBuffer[2, tkl.i64].filled(10),
        old: tkl.OutputBuffer[N, tkl.i64],
    ) -> None:
        bins = tkl.load(x, (0,), (B,))
        tkl.store(old, (0,), tkl.atomic_add(y, (bins,), bins + 1))

    outputs = interpreted(kernel, (), {"B": 8}, x=torch.tensor([0, 1, 0, 1, 1]))
    assert outputs["y"].tolist() == [12, 16]
    assert outputs["old"].tolist() == [10, 10, 11, 12, 14]


def test_an_atomic_on_one_element_returns_a_scalar() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i64], y: tkl.InOutBuffer[1, tkl.i64]) -> None:
        ticket = tkl.atomic_add(y, (0,), 2)
        assert ticket.type.rank == 0

    y = torch.tensor([5])
    interpreted(kernel, (N,), x=torch.zeros(3, dtype=torch.int64), y=y)
    assert y.tolist() == [11]


def test_masked_off_lanes_change_nothing() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i64], y: tkl.InOutBuffer[3, tkl.i64]) -> None:
        bins = tkl.load(x, (0,), (8,))
        tkl.atomic_add(y, (bins,), 1, mask=bins != 1, check=False)
        tkl.atomic_max(y, (1,), tkl.full((4,), 7, tkl.i64), mask=tkl.arange(4) > 0)

    y = torch.zeros(3, dtype=torch.int64)
    interpreted(kernel, x=torch.tensor([0, 1, 2, 3, -1]), y=y)
    assert y.tolist() == [1, 0, 7]


@pytest.mark.parametrize("kind", ATOMICS)
@pytest.mark.parametrize("name", sorted(DTYPES.keys() - {"bool", "index"}))
def test_atomics_support_every_dtype(name: str, kind: str) -> None:
    atomic, together = ATOMICS[kind]

    def kernel(x: tkl.InputBuffer[N, T], y: tkl.InOutBuffer[1, T]) -> None:
        tkl.load(x, (0,), (4,))
        atomic(y, (tkl.arange(4) * 0,), tkl.load(x, (0,), (4,)))

    dtype = DTYPES[name].torch
    x, y = torch.tensor([1, 7, 2]).to(dtype), torch.tensor([3]).to(dtype)
    interpreted(kernel, x=x, y=y)
    wide = torch.tensor([3.0])
    for value in (1.0, 7.0, 2.0):
        wide = together(wide, torch.tensor(value)).to(torch.float32)
        wide = wide.to(dtype).to(torch.float32)
    assert y.to(torch.float32).tolist() == wide.tolist()


def test_atomic_max_of_u64_is_unsigned() -> None:
    def kernel(x: tkl.InputBuffer[1, tkl.u64], y: tkl.InOutBuffer[1, tkl.u64]) -> None:
        tkl.atomic_max(y, (0,), tkl.load(x, (0,), (1,)))

    y = torch.tensor([2**63 + 5], dtype=torch.uint64)
    interpreted(kernel, x=torch.tensor([7], dtype=torch.uint64), y=y)
    assert y.tolist() == [2**63 + 5]


def run_with_store(first_stores: bool) -> None:
    """Two programs at one element: one by a store, one by an atomic."""

    def kernel(x: tkl.InputBuffer[2, tkl.i32], y: tkl.InOutBuffer[1, tkl.i32]) -> None:
        is_storing = tkl.program_id(0) == (0 if first_stores else 1)

        def by_store() -> None:
            tkl.store(y, (0,), 1)

        def by_atomic() -> None:
            tkl.atomic_add(y, (0,), 1)

        tkl.cond(is_storing, by_store, by_atomic)

    zeros = torch.zeros(2, dtype=torch.int32)
    interpreted(kernel, (2,), x=zeros, y=torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("first_stores", [False, True])
def test_a_store_to_an_element_with_atomics_of_another_program_is_reported(
    first_stores: bool,
) -> None:
    with pytest.raises(errors.KernelError, match="two programs store to one element of y"):
        run_with_store(first_stores)


def test_a_program_may_store_after_its_own_atomics() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i32], y: tkl.OutputBuffer[N, tkl.i32].filled(0)) -> None:
        i = tkl.program_id(0)
        tkl.atomic_add(y, (i,), 1)
        tkl.store(y, (i,), tkl.load(y, (i,)) + 5)
        tkl.atomic_add(y, (i,), 1)

    assert interpreted(kernel, (N,), x=torch.zeros(3, dtype=torch.int32))["y"].tolist() == [7] * 3


def refused(type: Any, message: str) -> None:
    def kernel(x, y, z):  # type: ignore[no-untyped-def]
        tkl.atomic_add(y, (0,), 1)

    kernel.__annotations__ = {
        "x": tkl.InputBuffer[1, tkl.i32],
        "y": type,
        "z": tkl.InOutBuffer[1, tkl.i32],
    }
    one = torch.zeros(1, dtype=torch.int32)
    y = one if type.dtype == tkl.i32 else one.to(torch.bool)
    with pytest.raises(errors.KernelError, match=message):
        interpreted(kernel, (), x=one, y=y, z=one)


def test_an_uninitialized_output_is_rejected() -> None:
    refused(tkl.OutputBuffer[1, tkl.i32], r"y, which is uninitialized[\s\S]*filled\(0\)")


def test_an_input_is_rejected() -> None:
    refused(tkl.InputBuffer[1, tkl.i32], "tkl.atomic_add to y, which is an input")


def test_a_temporary_is_rejected() -> None:
    refused(tkl.TemporaryBuffer[1, tkl.i32], "which belongs to one program")


def test_bools_are_rejected() -> None:
    refused(tkl.InOutBuffer[1, tkl.bool], "which holds bools")


def test_a_tile_of_too_many_axes_is_rejected() -> None:
    def kernel(y: tkl.InOutBuffer[N, tkl.i32]) -> None:
        tkl.atomic_add(y, (0,), tkl.zeros((2, 2), tkl.i32))

    with pytest.raises(errors.KernelError, match="which has fewer axes"):
        interpreted(kernel, y=torch.zeros(4, dtype=torch.int32))
