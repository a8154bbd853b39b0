"""Inspection of kernels: text of every stage, `tk.explain` and `tk.check`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import errors
from turbine.kernel.backends.iree.emitter import RULES, Emitter
from turbine.kernel.backends.iree.tiles import TileValue
from turbine.kernel.lang import functions, shapes
from turbine.kernel.trace.op import Op

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
BM, BN, BK = tkl.sym.BM, tkl.sym.BN, tkl.sym.BK
T = tkl.types.T


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 16, BN: 16, BK: 16})
def gemm(
    a: tkl.InputBuffer[M, K, tkl.f32],
    b: tkl.InputBuffer[N, K, tkl.f32],
    c: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    i, j = tkl.program_id(0), tkl.program_id(1)
    acc = tkl.constant((BM, BN), tkl.f32, 0.0)

    @tkl.for_loop(0, K // BK, init_args=[acc])
    def body(k: Any, acc: Any) -> Any:
        x = tkl.load(a, (i * BM, k * BK), (BM, BK))
        y = tkl.load(b, (j * BN, k * BK), (BN, BK))
        return (tkl.dot(x, tkl.transpose(y, (1, 0)), acc),)

    tkl.store(c, (i * BM, j * BN), body[0])


@tk.gen.kernel(M)
def softmax(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N))
    shifted = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), shifted / tkl.sum(shifted))


ROWS, COLUMNS = torch.randn(32, 40), torch.randn(20, 40)


# Text


def lines_without_places(text: str) -> list[str]:
    return [line.partition("  # ")[0] for line in text.splitlines()]


def test_the_graph_is_one_line_for_each_op_with_symbolic_types() -> None:
    assert lines_without_places(gemm.text("fx")) == [
        "kernel gemm",
        "  a: InputBuffer[M, K, f32]",
        "  b: InputBuffer[N, K, f32]",
        "  c: OutputBuffer[M, N, f32]",
        "  grid (ceil(M / BM), ceil(N / BN))",
        "  constant: [BM, BN, f32] = constant((BM, BN), f32, 0.0)",
        "  loop: for k from 0 to below ceil(K / BK) carrying (constant,)",
        "    do(carried: [BM, BN, f32])",
        "      load: [BM, BK, f32] = load(a, (BM*program_id(0), BK*k), (BM, BK))",
        "      load_2: [BN, BK, f32] = load(b, (BN*program_id(1), BK*k), (BN, BK))",
        "      transpose: [BK, BN, f32] = transpose(load_2, (1, 0))",
        "      dot: [BM, BN, f32] = dot(load, transpose, carried)",
        "      yield dot",
        "  result: [BM, BN, f32] = loop[0]",
        "  store(c, (BM*program_id(0), BN*program_id(1)), result)",
    ]


def test_each_line_of_the_graph_names_its_source_line() -> None:
    (store,) = [line for line in gemm.text("fx").splitlines() if " store(" in line]
    source = Path(__file__).read_text().splitlines()
    name, _, number = store.partition("  # ")[2].partition(":")
    assert (name, source[int(number) - 1].strip()) == (
        Path(__file__).name,
        "tkl.store(c, (i * BM, j * BN), body[0])",
    )


def test_the_typed_graph_shows_proofs_of_bounds() -> None:
    text = gemm.text("typed", ROWS, COLUMNS)
    assert "known: M % 16 == 0" in text
    assert "lanes 0 <= BM*program_id(0) + lane0 < M: proven, as M % 16 == 0" in text
    assert "lanes 0 <= BN*program_id(1) + lane0 < N: guarded at the end" in text
    assert "lanes 0 <= lane1 < N: proven\n" in softmax.text("typed", ROWS)


def test_the_graph_shows_branches_and_masks() -> None:
    @tk.gen.kernel(N)
    def chosen(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        one = tkl.load(x, (i,))
        picked = tkl.cond(one > 0, lambda v: v * 2, lambda v: -v, one)
        tkl.store(y, (i,), picked)

    text = lines_without_places(chosen.text("typed"))
    assert "  branch: if greater with (squeeze,)" in text
    assert {"    then(carried: [f32])", "    else(carried_2: [f32])"} <= set(text)
    assert any(line.strip().startswith("lanes where ") for line in text)


def test_the_graph_shows_scans_with_a_function() -> None:
    @tk.gen.kernel()
    def scanned(x: tkl.InputBuffer[8, tkl.f32], y: tkl.OutputBuffer[8, tkl.f32]) -> None:
        tkl.store(y, (0,), tkl.associative_scan(lambda a, b: a * b, tkl.load(x, (0,), (8,)), 0))

    text = scanned.text("fx")
    assert "scan_op((load,), 0, False)" in text
    assert "yield mul" in text


def test_the_plan_has_a_row_for_each_loop() -> None:
    text = gemm.text("plan", ROWS, COLUMNS)
    assert "in the code: BK = 16, BM = 16, BN = 16" in text
    loop, product, store = [re.split(r"\s{2,}", row.strip()) for row in text.splitlines()[-3:]]
    assert loop[:2] == ["loop", "constant"]
    assert product[:2] == ["dot", "load, load_2, transpose"]
    assert re.match(
        r"register tile \d+ x \d+ \(\d+ of \d+ registers\), a (packed|in place), b packed",
        product[-1],
    )
    assert store == ["store", "result"]


def test_the_plan_gives_the_reason_for_each_scratch_buffer() -> None:
    (row,) = [line for line in softmax.text("plan", ROWS).splitlines() if line.startswith("exp ")]
    assert row.split()[1:3] == ["load,", "sub"]
    assert row.endswith("heap  used 2 times, 14 ops an element")


def test_the_plan_shows_sizes_in_branches_and_chosen_blocks() -> None:
    BLOCK = tkl.sym.BLOCK

    @tk.gen.kernel(tkl.cdiv(N, BLOCK))
    def negative(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        first = tkl.program_id(0) * BLOCK
        tile = tkl.load(x, (first,), (BLOCK,))
        away = tkl.cond(tkl.max(tile, 0) > 0, lambda v: -v, lambda v: v, tile * 2)
        tkl.store(y, (first,), away)

    lines = negative.text("plan", torch.ones(5)).splitlines()
    assert "  BLOCK = 1024: the only axis of its tiles" in lines
    assert [line.split()[0] for line in lines[lines.index("") + 2 :]] == [
        "max",
        "greater",
        "branch",
        "store",
    ]
    (branch,) = [line for line in lines if line.startswith("branch")]
    assert "5120 B stack" in branch  # a tile, and the copy that both sides write


def test_mlir_and_assembly_are_printed() -> None:
    assert gemm.text("mlir", ROWS, COLUMNS).startswith("module {\nstream.executable private")
    assert ".section\t.text" in gemm.text("asm", ROWS, COLUMNS)


def test_text_without_arguments_uses_the_last_call() -> None:
    own = softmax.using()
    own.interpret(ROWS.half())
    assert "x: InputBuffer[M, N, f16]" in own.text("fx")


def test_text_that_depends_on_arguments_requires_them() -> None:
    with pytest.raises(
        errors.KernelError, match=r"program of softmax depends on its arguments: x: "
    ) as e:
        softmax.using().text("fx")
    assert "softmax.text(stage, x)" in str(e.value)


def test_an_unknown_stage_lists_the_valid_ones() -> None:
    with pytest.raises(errors.KernelError, match="unknown stage 'llvm'; valid: asm, fx, mlir"):
        gemm.text("llvm")


# Explanations


def test_explain_reports_sizes_facts_and_speed() -> None:
    report = tk.explain(gemm, ROWS, COLUMNS)
    assert report.grid == (2, 2)
    assert report.sizes["BM"] == (16, "given")
    assert report.sizes["K"] == (40, "axis 1 of a")
    assert report.recompiles == ("M % 16 != 0",)
    assert report.work.bytes == 4 * (32 * 40 + 20 * 40 + 32 * 20)
    assert report.work.operations == pytest.approx(2 * 32 * 20 * 40)
    assert 0 < report.roofline_share < 1.5
    for part in ("recompiles for: M % 16 != 0", "on the stack", "a call takes", "GFLOP"):
        assert part in str(report)


def test_work_counts_iterations_that_depend_on_the_program() -> None:
    @tk.gen.kernel(N // BN, blocks={BN: 8})
    def before(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)

        @tkl.for_loop(0, i + 1, init_args=[tkl.zeros((BN,), tkl.f32)])
        def body(k: Any, acc: Any) -> Any:
            return [acc + tkl.load(x, (k * BN,), (BN,))]

        tkl.store(y, (i * BN,), body[0])

    report = tk.explain(before, torch.ones(24))
    assert report.work.operations == 8 * (1 + 2 + 3)


def test_work_counts_every_op_on_elements() -> None:
    @tk.gen.kernel(N // BN, blocks={BN: 8})
    def bounded(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0) * BN
        row = tkl.maximum(tkl.load(x, (i,), (BN,)), 0.0)
        tkl.store(y, (i,), tkl.fma(tkl.where(row > 1.0, tkl.floor(row), row), row, row))

    # maximum, greater, floor, where, and two of fma
    assert tk.explain(bounded, torch.ones(20)).work.operations == 6 * 20


def test_explain_lists_what_causes_a_recompile() -> None:
    @tk.gen.kernel(M, specialize=[N])
    def scaled(
        x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T], by: tkl.f32 = None
    ) -> None:
        i = tkl.program_id(0)
        row = tkl.load(x, (i, 0), (1, N))
        tkl.store(y, (i, 0), row if by is None else (row * by).to(x.dtype))

    report = tk.explain(scaled, ROWS)
    assert report.recompiles == ("another N", "another type T", "by given")


# Checks


@pytest.fixture
def wrong_rule() -> Iterator[Any]:
    """Put another rule in the place of an op's, for one test."""
    before = dict(RULES)
    yield RULES.__setitem__
    RULES.update(before)


def test_check_passes_if_code_agrees() -> None:
    report = tk.check(gemm, ROWS, COLUMNS)
    assert report.differences["c"] < 1e-6
    assert "interpreter and compiled code agree (c by at most" in str(report)


def test_check_names_the_op_that_differs(wrong_rule: Any) -> None:
    wrong_rule(tkl.exp, RULES[functions.exp2])
    x = torch.randn(3, 5)
    with pytest.raises(errors.KernelError, match=r"differ first at tkl\.exp, \[1, N, f32\]") as e:
        tk.check(softmax, x)
    assert e.value.where is not None
    line = Path(__file__).read_text().splitlines()[int(e.value.where.rpartition(":")[2]) - 1]
    assert line.strip() == "shifted = tkl.exp(row - tkl.max(row))"
    assert "program (0,), lane [0, " in str(e.value)


def test_check_names_the_iteration_that_differs(wrong_rule: Any) -> None:
    right: Any = RULES[shapes.transpose]

    def doubled(emitter: Emitter, node: fx.Node) -> TileValue:
        tile: TileValue = right(emitter, node)

        def compute(coords: Any) -> Any:
            value = tile.compute(coords)
            return emitter.w.binary("arith.addf", value, value)

        return replace(tile, compute=compute)

    wrong_rule(tkl.transpose, doubled)
    with pytest.raises(errors.KernelError, match=r"first at tkl\.transpose, \[BK, BN, f32\]") as e:
        tk.check(gemm, ROWS, COLUMNS)
    assert "program (0, 0), k = 0, lane [0, 0] is " in str(e.value)


def test_check_does_not_change_arguments() -> None:
    @tk.gen.kernel(N)
    def add_one(x: tkl.InOutBuffer[N, tkl.i32]) -> None:
        i = tkl.program_id(0)
        tkl.store(x, (i,), tkl.load(x, (i,)) + 1)

    x = torch.zeros(3, dtype=torch.int32)
    tk.check(add_one, x)
    assert x.tolist() == [0, 0, 0]


def test_check_ignores_unwritten_elements() -> None:
    @tk.gen.kernel(N)
    def first_half(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N + N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        tkl.store(y, (i,), tkl.load(x, (i,)))

    assert tk.check(first_half, torch.ones(3)).differences == {"y": 0.0}


def test_check_takes_a_tolerance(wrong_rule: Any) -> None:
    wrong_rule(tkl.exp, RULES[functions.exp2])
    assert isinstance(tkl.exp, Op)
    tk.check(softmax, torch.randn(3, 5), rtol=1.0, atol=1.0)


# Programs that store to one element


def stored_at(place: Any, **blocks: int) -> tk.Kernel:
    @tk.gen.kernel(M // BM, N // BN, blocks={BM: 4, BN: 4, **blocks})
    def spread(input: tkl.InputBuffer[M, N, tkl.f32], max: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
        i, j = tkl.program_id(0), tkl.program_id(1)
        tkl.store(max, place(i, j), tkl.load(input, (i * BM, j * BN), (BM, BN)))

    return spread


@pytest.mark.parametrize(
    ("place", "axis"),
    [
        (lambda i, j: (i * BM, 0), 1),
        (lambda i, j: (i, j * BN), 0),
        (lambda i, j: (i * BM, j * (BN - 1)), 1),
    ],
)
def test_conflicting_stores_are_rejected_before_compilation(place: Any, axis: int) -> None:
    kernel = stored_at(place)
    told = rf"program_id\({axis}\) 0 and 1 store to one element of max: a tile \[BM, BN, f32\]"
    with pytest.raises(errors.KernelError, match=told):
        kernel(torch.ones(8, 8))
    assert not kernel.launcher.variants


def test_a_later_call_with_more_programs_is_checked() -> None:
    kernel = stored_at(lambda i, j: (i * BM, 0))
    assert kernel(torch.ones(8, 4)).shape == (8, 4)
    with pytest.raises(errors.KernelError, match="store to one element of max"):
        kernel(torch.ones(8, 8))


def test_masked_and_disjoint_stores_are_accepted() -> None:
    @tk.gen.kernel(N)
    def last(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[2, tkl.f32]) -> None:
        i = tkl.program_id(0)
        one = tkl.load(x, (i,))
        tkl.store(y, (0,), one, mask=tkl.equal(i, N - 1))
        tkl.store(y, (1 + i,), one)  # outside, but for the first

    assert last(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 1.0]
