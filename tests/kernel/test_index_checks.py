"""Loaded indices are checked: the first bad one is reported, edges are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import config, errors

M, N, K, B, P = tkl.symbols("M N K B P")
T = tkl.types.T


@tk.gen.kernel(M // B, blocks={B: 4})
def take(
    table: tkl.InputBuffer[N, T], ids: tkl.InputBuffer[M, tkl.i64], y: tkl.OutputBuffer[M, T]
) -> None:
    start = tkl.program_id(0) * B
    tkl.store(y, (start,), tkl.load(table, (tkl.load(ids, (start,), (B,)),)))


@tk.gen.kernel(M)
def rows(
    table: tkl.InputBuffer[N, K, T], ids: tkl.InputBuffer[M, tkl.i32], y: tkl.OutputBuffer[M, K, T]
) -> None:
    i = tkl.program_id(0)
    tkl.store(y, (i, 0), tkl.load(table, (tkl.load(ids, (i,)), 0), (1, K)))


@tk.gen.kernel(M // B, blocks={B: 4})
def columns(
    table: tkl.InputBuffer[N, K, T], ids: tkl.InputBuffer[M, tkl.i64], y: tkl.OutputBuffer[M, K, T]
) -> None:
    start = tkl.program_id(0) * B
    picked = tkl.load(ids, (start,), (B,))[:, None]
    columns = tkl.arange(8)[None, :]
    tkl.store(y, (start, 0), tkl.load(table, (picked, columns)))


@tk.gen.kernel(M // B, blocks={B: 4})
def put(
    ids: tkl.InputBuffer[M, tkl.i64],
    table: tkl.InputBuffer[N, tkl.f32],
    y: tkl.OutputBuffer[N, tkl.f32].filled(0),
) -> None:
    start = tkl.program_id(0) * B
    tkl.store(y, (tkl.load(ids, (start,), (B,)),), tkl.full((B,), 1, tkl.f32))


@tk.gen.kernel(M // B, blocks={B: 4})
def count(
    ids: tkl.InputBuffer[M, tkl.i64],
    table: tkl.InputBuffer[N, tkl.f32],
    y: tkl.OutputBuffer[N, tkl.i64].filled(0),
) -> None:
    start = tkl.program_id(0) * B
    tkl.atomic_add(y, (tkl.load(ids, (start,), (B,)),), 1)


@tk.gen.kernel(1)
def chase(links: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[1, tkl.i64]) -> None:
    """Follow links from 0; the index comes from data that the loop itself loads."""
    first = tkl.full((), 0, tkl.i64)
    body = tkl.for_loop(0, 4, init_args=[first])(lambda _, at: tkl.load(links, (at,)))
    tkl.store(y, (0,), body[0])


TABLE, WIDE = torch.arange(10.0), torch.arange(50.0).reshape(10, 5)
IDS = torch.tensor([3, 0, 9, 1, 2, 4])
BAD = torch.tensor([3, 0, 9, 1, 2, -1, 10])
CASES: dict[str, tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...], Callable[..., Tensor]]] = {
    "take": (take, (TABLE, IDS), (TABLE, BAD), lambda table, ids: table[ids]),
    "rows": (rows, (WIDE, IDS.int()), (WIDE, BAD.int()), lambda table, ids: table[ids]),
    "columns": (columns, (WIDE, IDS), (WIDE, BAD), lambda table, ids: table[ids]),
    "put": (put, (IDS, TABLE), (BAD, TABLE), lambda i, t: torch.zeros(10).index_fill(0, i, 1)),
    "count": (count, (IDS, TABLE), (BAD, TABLE), lambda i, t: torch.bincount(i, minlength=10)),
}
MESSAGE = (
    r"index -1 is out of range for axis 0 of (table|y), which has size 10 \(program \((1|5),\)"
)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_bad_indices_are_reported_by_interpreter_and_compiled_code(name: str) -> None:
    kernel, good, bad, wanted = CASES[name]
    for run in (kernel.interpret, kernel):
        assert torch.equal(run(*good), wanted(*good))
        with pytest.raises(errors.KernelError, match=MESSAGE) as caught:
            run(*bad)
        assert caught.value.where is not None
        assert caught.value.where.startswith(f"{__file__}:")
        assert torch.equal(run(*good), wanted(*good))


def test_the_error_names_the_line_of_the_load() -> None:
    with pytest.raises(
        errors.KernelError, match="negative ones do not count from the end"
    ) as caught:
        take(TABLE, BAD)
    assert caught.value.where == f"{__file__}:{take.function.__code__.co_firstlineno + 5}"


class Model(torch.nn.Module):
    def forward(self, table: Tensor, ids: Tensor) -> Tensor:
        taken: Tensor = take(table * 2, ids)
        return taken + 1


def test_bad_indices_are_reported_under_torch_compile() -> None:
    compiled = torch.compile(Model(), backend="turbine", fullgraph=True)
    assert torch.equal(compiled(TABLE, IDS), TABLE[IDS] * 2 + 1)
    with pytest.raises(Exception, match=r"index .*out of range for axis 0 of table") as caught:
        compiled(TABLE, BAD[:6])
    assert __file__ in str(caught.value)


def test_bad_indices_are_reported_by_exported_programs() -> None:
    program = turbine.aot.export(Model(), args=(TABLE, BAD)).compile()
    good = torch.cat([IDS, IDS[:1]])
    assert torch.equal(program(TABLE, good), TABLE[good] * 2 + 1)
    with pytest.raises(errors.TurbineError, match="an index is out of range for axis 0 of table"):
        program(TABLE, BAD)


def test_an_index_that_a_loop_loads_is_checked() -> None:
    assert chase(torch.tensor([2, 3, 1, 0])).tolist() == [0]
    for run in (chase.interpret, chase):
        with pytest.raises(
            errors.KernelError, match=r"index 7 is out of range for axis 0 of links"
        ):
            run(torch.tensor([2, 3, 7, 0]))


@tk.gen.kernel(M)
def sparse_product(
    starts: tkl.InputBuffer[P, tkl.i64],
    columns: tkl.InputBuffer[N, tkl.i64],
    values: tkl.InputBuffer[N, tkl.f32],
    x: tkl.InputBuffer[M, tkl.f32],
    y: tkl.OutputBuffer[M, tkl.f32],
) -> None:
    """A ragged matrix: the loop bounds are loaded too."""
    i = tkl.program_id(0)
    first, end = tkl.load(starts, (i,)), tkl.load(starts, (i + 1,))

    @tkl.for_loop(first, end, init_args=[tkl.full((), 0, tkl.f32)])
    def row(j: Any, total: Any) -> Any:
        return total + tkl.load(values, (j,)) * tkl.load(x, (tkl.load(columns, (j,)),))

    tkl.store(y, (i,), row[0])


@pytest.mark.parametrize(
    ("starts", "columns", "message"),
    [
        ([0, 2, 5], [0, 1, 1], r"index 3 is out of range for axis 0 of values.* \(program \(1,\)"),
        ([-1, 2, 3], [0, 1, 1], r"index -1 is out of range for axis 0 of values"),
        ([0, 2, 3], [0, 2, 1], r"index 2 is out of range for axis 0 of x, which has size 2"),
    ],
)
def test_counters_of_loops_with_loaded_bounds_are_checked(
    starts: list[int], columns: list[int], message: str
) -> None:
    values, x = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0])
    for run in (sparse_product.interpret, sparse_product):
        good = run(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), values, x)
        assert good.tolist() == [21, 30]
        with pytest.raises(errors.KernelError, match=message):
            run(torch.tensor(starts), torch.tensor(columns), values, x)


def test_the_error_names_the_first_program() -> None:
    ids = torch.zeros(4000, dtype=torch.int64)
    ids[2501], ids[3999], ids[777] = 12, 13, 14
    for run in (take.interpret, take):
        with pytest.raises(errors.KernelError, match=r"index 14 .* \(program \(194,\)"):
            run(TABLE, ids)


@tk.gen.kernel(1, blocks={B: 8})
def excused(
    table: tkl.InputBuffer[N, tkl.f32],
    ids: tkl.InputBuffer[M, tkl.i64],
    shift: tkl.i64,
    masked: tkl.OutputBuffer[B, tkl.f32].filled(-7),
    other: tkl.OutputBuffer[B, tkl.f32].filled(-7),
    unchecked: tkl.OutputBuffer[B, tkl.f32].filled(-7),
    shifted: tkl.OutputBuffer[B, tkl.f32].filled(-7),
    strided: tkl.OutputBuffer[B, tkl.f32].filled(-7),
) -> None:
    picked = tkl.load(ids, (0,), (B,))
    inside = (picked >= 0) & (picked < N)
    tkl.store(masked, (0,), tkl.load(table, (picked,), mask=inside))
    tkl.store(other, (0,), tkl.load(table, (picked,), other=5))
    tkl.store(unchecked, (0,), tkl.load(table, (picked,), check=False))
    tkl.store(shifted, (0,), tkl.load(table, (tkl.arange(B) + shift,)))
    tkl.store(strided, (0,), tkl.load(table, (2 * tkl.arange(B),)))


def test_masked_and_edge_indices_are_not_errors() -> None:
    ids = torch.tensor([1, -1, 2, 99])
    for run in (excused.interpret, excused):
        masked, other, unchecked, shifted, strided = run(torch.arange(4.0), ids, 2)
        assert masked.tolist() == unchecked.tolist() == [1, -7, 2, -7, -7, -7, -7, -7]
        assert other.tolist() == [1, 5, 2, 5, 5, 5, 5, 5]
        assert shifted.tolist() == [2, 3, -7, -7, -7, -7, -7, -7]
        assert strided.tolist() == [0, 2, -7, -7, -7, -7, -7, -7]


@pytest.mark.parametrize("strict", [None, True])
def test_computed_indices_are_checked_with_check_true(strict: bool | None) -> None:
    @tk.gen.kernel(1, blocks={B: 8})
    def counted(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[B, tkl.f32].filled(-7)) -> None:
        tkl.store(y, (0,), tkl.load(x, (tkl.arange(B),), check=strict))

    for run in (counted.interpret, counted):
        if strict is None:
            assert run(torch.zeros(2)).tolist() == [0, 0, -7, -7, -7, -7, -7, -7]
            continue
        with pytest.raises(errors.KernelError, match=r"index 2 is out of range for axis 0 of x"):
            run(torch.zeros(2))


def test_checks_can_be_disabled_by_an_option() -> None:
    @tk.gen.kernel(M)
    def get(
        x: tkl.InputBuffer[N, T],
        i: tkl.InputBuffer[M, tkl.i64],
        y: tkl.OutputBuffer[M, T].filled(-7),
    ) -> None:
        tkl.store(y, (tkl.program_id(0),), tkl.load(x, (tkl.load(i, (tkl.program_id(0),)),)))

    with config.override(check_indices=False):
        assert get(TABLE, torch.tensor([1, 99])).tolist() == [1, -7]


def test_invalid_values_of_check_are_rejected() -> None:
    @tk.gen.kernel(1)
    def asked(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (N,), check="yes"))  # type: ignore[arg-type]

    with pytest.raises(errors.KernelError, match=r"tkl.load has check='yes'"):
        asked(TABLE)
