"""Every op of the language, interpreted and compiled, against PyTorch: one table.

The rows of tests/kernel/op_table.py are put into one kernel for each dtype; their tiles extend
beyond the buffers, except in the sample "whole". Ops that need buffers, a grid or a message are in
programs, below.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice, product
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.commit_seed import Drawn
from tests.kernel.language import OPS
from tests.kernel.op_table import ALWAYS, OTHERS, ROWS, SAMPLES, Row, rows_of
from tests.kernel.triton_interpreter import triton_interpreter
from turbine import dtypes, errors

M, N, B = tkl.symbols("M N B")
# "triton" is what GPUs run, in Triton's interpreter.
BACKENDS = ("interpret", "cpu", "triton")


# The shape and dtype of results that are stacked in one output: a kernel has few buffers.
Stack = tuple[tuple[int, ...], torch.dtype]


def places_of(sample: str, rows: tuple[Row, ...]) -> tuple[tuple[Stack, int], ...]:
    """For each result of rows, its output and its place there."""
    counts: Counter[Stack] = Counter()
    places = []
    for result in (r for row in rows for r in row.on_tensors(SAMPLES[sample])):
        stack = (tuple(result.shape), result.dtype)
        places.append((stack, counts[stack]))
        counts[stack] += 1
    return tuple(places)


@cache
def kernel_of(
    rows: tuple[Row, ...],
    dtype: torch.dtype,
    tile: tuple[int, int],
    places: tuple[tuple[Stack, int], ...],
) -> tk.Kernel:
    """A kernel with many rows; samples of one dtype share it."""
    counts = Counter(stack for stack, _ in places)

    def kernel(**buffers):  # type: ignore[no-untyped-def]
        x, y = (tkl.load(buffers.pop(name), (0, 0), tile) for name in "xy")
        outputs = dict(zip(counts, buffers.values(), strict=True))
        results = [result for row in rows for result in row.on_tiles(x, y)]
        for (stack, place), result in zip(places, results, strict=True):
            tkl.store(outputs[stack], (place, *[0] * len(stack[0])), result)

    types: dict[str, Any] = {name: tkl.InputBuffer[M, N, dtypes.of_torch(dtype)] for name in "xy"}
    for number, ((shape, of_result), count) in enumerate(counts.items()):
        types[f"out{number}"] = tkl.OutputBuffer[count, *shape, dtypes.of_torch(of_result)]
    kernel.__annotations__ = types
    kernel.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in types]
    )
    return tk.gen.kernel()(kernel)


def runner(kernel: tk.Kernel, backend: str) -> Callable[..., Any]:
    """A function that calls a kernel on a backend."""
    on_gpu = partial(triton_interpreter().call, kernel) if backend == "triton" else kernel
    return kernel.interpret if backend == "interpret" else on_gpu


@cache
def results_of(sample: str, backend: str, rows: tuple[Row, ...]) -> dict[Row, tuple[Tensor, ...]]:
    made, places = SAMPLES[sample], places_of(sample, rows)
    kernel = kernel_of(rows, made.x.dtype, made.tile, places)
    run = runner(kernel, backend)
    stacks = dict.fromkeys(stack for stack, _ in places)
    outputs = dict(zip(stacks, run(x=made.x, y=made.y), strict=True))
    results = (outputs[stack][place] for stack, place in places)
    return {row: tuple(islice(results, len(row.on_tensors(made)))) for row in rows}


@pytest.mark.parametrize(
    ("row", "sample", "backend"),
    [
        pytest.param(row, sample, backend, id=f"{row.op.__name__}-{sample}-{backend}")
        for sample in ALWAYS
        for backend in BACKENDS
        for row in rows_of(sample)
    ],
)
def test_ops_match_pytorch(row: Row, sample: str, backend: str) -> None:
    expected = row.on_tensors(SAMPLES[sample])
    torch.testing.assert_close(
        results_of(sample, backend, rows_of(sample))[row], expected, equal_nan=True
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize("sample", OTHERS)
def test_ops_match_pytorch_in_every_dtype(sample: str, drawn: Drawn) -> None:
    rows = tuple(drawn(rows_of(sample), 30))
    # Triton's interpreter has no bf16.
    backends = [name for name in BACKENDS if (name, sample) != ("triton", "bf16")]
    for row, backend in product(rows, backends):
        actual, expected = results_of(sample, backend, rows)[row], row.on_tensors(SAMPLES[sample])
        torch.testing.assert_close(
            actual,
            expected,
            equal_nan=True,
            msg=lambda text: f"{row.op.__name__}, {backend}: {text}",  # noqa: B023
        )


# Programs: ops that need buffers, a grid or a message


@dataclass(frozen=True)
class Program:
    """A kernel that uses some ops, its arguments, and the expected results."""

    ops: tuple[Any, ...]
    kernel: tk.Kernel
    args: tuple[Tensor, ...]
    expected: tuple[Tensor, ...] = ()
    error: str | None = None
    printed: dict[str, list[str]] = field(default_factory=dict)  # by backend


@tk.gen.kernel(M // B, 2, blocks={B: 2})
def number_blocks(
    x: tkl.InputBuffer[M, 2, tkl.f32],
    y: tkl.OutputBuffer[M, 2, tkl.f32],
    counts: tkl.OutputBuffer[M, 2, tkl.i64],
) -> None:
    (size,) = tkl.symbols("B")
    i, j = tkl.program_id(0), tkl.program_id(1)
    tile = tkl.load(x, (i * size, j), (size, 1))
    tkl.store(y, (i * size, j), tile + i * 10 + j)
    tkl.store(counts, (i * size, j), tkl.full((size, 1), tkl.num_programs(0), tkl.i64))


@tk.gen.kernel()
def gather_and_scatter(
    x: tkl.InputBuffer[N, tkl.f32],
    index: tkl.InputBuffer[M, tkl.i64],
    gathered: tkl.OutputBuffer[M, tkl.f32],
    scattered: tkl.OutputBuffer[N, tkl.f32].filled(-1.0),
) -> None:
    places = tkl.load(index, (0,), (8,))
    tile = tkl.load(x, (places,))
    tkl.store(gathered, (0,), tile)
    tkl.store(scattered, (places,), tile * 2, mask=tile > 1)


@tk.gen.kernel(N // B, blocks={B: 4})
def update_bins(
    x: tkl.InputBuffer[N, tkl.i64],
    total: tkl.OutputBuffer[3, tkl.i64].filled(0),
    largest: tkl.OutputBuffer[3, tkl.i64].filled(-100),
    smallest: tkl.OutputBuffer[3, tkl.i64].filled(100),
) -> None:
    tile = tkl.load(x, (tkl.program_id(0) * B,), (B,))
    tkl.atomic_add(total, (tile % 3,), tile)
    tkl.atomic_max(largest, (tile % 3,), tile)
    tkl.atomic_min(smallest, (tile % 3,), tile)


@tk.gen.kernel(N // B, blocks={B: 4})
def speak(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
    start = tkl.program_id(0) * B
    tile = tkl.load(x, (start,), (B,))
    tkl.print("x =", tile)
    tkl.assert_(tile < 5, "too large")  # noqa: PT009
    tkl.breakpoint()
    tkl.store(y, (start,), tile)


BINS = torch.tensor([5, -7, 2, 9, 0, -4, 8, 3, 3, 1])
VECTOR = torch.arange(5.0)
INDEX = torch.tensor([4, 0, 2])
SAID = ["x = [0 1 2 3]", "x = [4 . . .]"]
PROGRAMS = {
    "grid": Program(
        (tkl.program_id, tkl.num_programs, tkl.symbols),
        number_blocks,
        (torch.zeros(5, 2),),
        (
            torch.arange(5)[:, None] // 2 * 10.0 + torch.arange(2.0),
            torch.full((5, 2), 3),
        ),
    ),
    "memory": Program(
        (tkl.load, tkl.store),
        gather_and_scatter,
        (VECTOR, INDEX),
        (VECTOR[INDEX], torch.tensor([-1.0, -1.0, 4.0, -1.0, 8.0])),
    ),
    "atomics": Program(
        (tkl.atomic_add, tkl.atomic_max, tkl.atomic_min),
        update_bins,
        (BINS,),
        (
            torch.zeros(3, dtype=torch.int64).index_add(0, BINS % 3, BINS),
            torch.full((3,), -100).scatter_reduce(0, BINS % 3, BINS, "amax"),
            torch.full((3,), 100).scatter_reduce(0, BINS % 3, BINS, "amin"),
        ),
    ),
    "debugging": Program(
        (tkl.print, tkl.assert_, tkl.breakpoint),
        speak,
        (VECTOR,),
        (VECTOR,),
        printed={
            "interpret": [SAID[0], "stopped", SAID[1], "stopped"],
            "cpu": SAID,
            "triton": SAID,
        },
    ),
    "failed assertion": Program(
        (tkl.assert_,),
        speak,
        (VECTOR + 5,),
        error="too large",
        printed={
            "interpret": ["x = [5 6 7 8]"],
            "cpu": ["x = [5 6 7 8]", "x = [9 . . .]"],
            "triton": ["x = [5 6 7 8]", "x = [9 . . .]"],
        },
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_match_pytorch(
    name: str, backend: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[name]
    run = runner(program.kernel, backend)
    monkeypatch.setattr(sys, "breakpointhook", lambda: sys.stdout.write("stopped\n"))
    if program.error is None:
        given = run(*program.args)
        results = given if isinstance(given, tuple) else (given,)
        torch.testing.assert_close(results, program.expected)
    else:
        with pytest.raises(errors.KernelError, match=program.error):
            run(*program.args)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("): ")[2] for line in lines] == program.printed.get(backend, [])


# The table is whole


def test_every_op_of_the_language_is_in_the_table() -> None:
    listed = [row.op for row in ROWS] + [op for program in PROGRAMS.values() for op in program.ops]
    assert [name for name, op in OPS.items() if op not in listed] == []
    assert {sample for row in ROWS for sample in row.samples} == SAMPLES.keys()
    assert not [row for row in ROWS if not set(row.samples) & set(ALWAYS)]


def test_rows_and_programs_call_the_ops_they_name() -> None:
    called = [(row.op, row.call.__code__) for row in ROWS if row.call is not None]
    called += [(op, p.kernel.function.__code__) for p in PROGRAMS.values() for op in p.ops]
    names = {id(op): name for name, op in OPS.items()}
    assert [names[id(op)] for op, code in called if names[id(op)] not in names_in(code)] == []


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function and those in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
