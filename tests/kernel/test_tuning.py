"""Tuning: the search on a CPU, rows in the cache, tables, options of GPUs, and mistakes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.test_triton import run_in_triton
from turbine import config, errors, progress
from turbine.algebra import Symbol
from turbine.compiler import cache
from turbine.kernel.backends.triton import compilation
from turbine.kernel.backends.triton.schedule import Options, Schedule
from turbine.kernel.call import machines, tuning_table
from turbine.kernel.call.machines import Machine
from turbine.kernel.call.tuning_table import Case, Row, class_of
from turbine.kernel.inspection.gpu_text import code_for
from turbine.kernel.program import blocks
from turbine.kernel.program.blocks import Block
from turbine.kernel.tuning import turns
from turbine.kernel.tuning.candidates import Space

M, N, K, B, BM, BN, BK = tkl.symbols("M N K B BM BN BK")
T = tkl.types.T
GPU = Machine("cuda", "NVIDIA H200, sm_90")


def make_double(tune: Any = None) -> tk.Kernel:
    @tk.gen.kernel(N // B, tune=tune)
    def double(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, T]) -> None:
        start = tkl.program_id(0) * B
        tkl.store(y, (start,), 2 * tkl.load(x, (start,), (B,)))

    return double


def make_gemm(tune: Any = None) -> tk.Kernel:
    @tk.gen.kernel(M // BM, N // BN, tune=tune)
    def gemm(
        a: tkl.InputBuffer[M, K, T], b: tkl.InputBuffer[K, N, T], c: tkl.OutputBuffer[M, N, T]
    ) -> None:
        i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

        @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
        def body(k: Any, acc: Any) -> Any:
            x = tkl.load(a, (i, k * BK), (BM, BK))
            return tkl.dot(x, tkl.load(b, (k * BK, j), (BK, BN)), acc)

        tkl.store(c, (i, j), body[0])

    return gemm


@tk.gen.kernel(N // B)
def add_(x: tkl.InOutBuffer[N, T], by: tkl.InputBuffer[N, T] | None = None) -> None:
    start = tkl.program_id(0) * B
    amount = 1 if by is None else tkl.load(by, (start,), (B,))
    tkl.store(x, (start,), tkl.load(x, (start,), (B,)) + amount)


@tk.gen.kernel(N // B)
def sums_of_blocks(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, T]) -> None:
    start = tkl.program_id(0) * B
    tkl.store(y, (start,), tkl.cumsum(tkl.load(x, (start,), (B,)), 0))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache that is empty, as in a new process on a new machine."""
    forget(monkeypatch)
    with config.override(cache_dir=tmp_path / "cache"):
        yield


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process sees: files alone."""
    monkeypatch.setattr(tuning_table, "KNOWN", {})
    monkeypatch.setattr(tuning_table, "MEASURED", {})


@pytest.fixture
def slow_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that any other configuration is faster than: a clock says so."""

    def turn(self: turns.Clock, call: Any, count: int) -> float:
        call()
        kernel = call.__defaults__[0].kernel if call.__defaults__ else None
        return 1.0 if kernel is None else 1 / kernel.blocks.get("B", 1)

    monkeypatch.setattr(turns.Clock, "turn", turn)
    choices = replace(blocks.CHOICES["cpu"], alone=Block(8, "of the test"))
    monkeypatch.setitem(blocks.CHOICES, "cpu", choices)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3000)


def sizes_in_use(kernel: tk.Kernel, *args: Any) -> tuple[dict[str, int], str]:
    """The block sizes and options of a call, and where they come from."""
    _, sizes, key = kernel.resolve_call(kernel.bind_arguments(args, {}))
    own = kernel.own_sizes(kernel.program(kernel.bind_arguments(args, {})))
    return {s.name: sizes[s] for s in own} | key.options.set_ones, key.source


# The search


def test_the_fastest_configuration_is_used_and_kept(
    x: Tensor, slow_default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = make_double()
    double(x)
    report = double.tune(x, candidates=[{B: 64}, {"B": 512, "num_warps": 4}])
    assert report.best == {"B": 512}  # a CPU has no warps
    assert [trial.configuration["B"] for trial in report.trials] == [8, 64, 512]
    torch.testing.assert_close(double(x), 2 * x)
    assert double.explain_recompiles().splitlines() == [
        "1: the first call, (x: torch.float32) with B=8, default",
        "2: a call of another kind, (x: torch.float32) with B=512, tuned",
    ]
    assert sizes_in_use(double.using(B=16), x) == ({"B": 16}, "given")
    forget(monkeypatch)
    other = make_double()
    assert sizes_in_use(other, x) == ({"B": 512}, "tuned")
    assert sizes_in_use(other, x[:1000]) == ({"B": 8}, "default")  # another class
    assert sizes_in_use(other, x.double()) == ({"B": 8}, "default")
    assert "B = 512: tuned" in other.text("plan", x)
    (entry,) = [e for e in cache.listings() if "tuned" in str(e.facts.get("what"))]
    assert "B=512" in entry.facts["what"]


def test_candidates_around_the_default_are_found(x: Tensor, slow_default: None) -> None:
    report = make_double().tune(x[:50], seconds=60)
    assert report.best == {"B": 64}  # twice as large, again and again, until it holds everything
    assert report.untried == 0


def test_exported_programs_have_tuned_sizes(x: Tensor, slow_default: None) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return double(x)  # type: ignore[no-any-return]

    double = make_double()
    before = str(turbine.aot.export(Model(), args=(x,)).text())
    double.tune(x, candidates=[{B: 512}])
    output = turbine.aot.export(Model(), args=(x,))
    assert str(output.text()) != before
    given = double.using(B=512)
    code, wanted = output.text(), given.text("mlir", x)
    assert ("512" in code, "512" in before) == ("512" in wanted, False)
    torch.testing.assert_close(output.compile()(x), 2 * x)


def test_in_out_arguments_are_not_changed(x: Tensor) -> None:
    for given in (x, torch.randn(3000, 2)[:, 0]):
        before = given.clone()
        report = add_.tune(given, candidates=[{"B": 64}], seconds=5)
        assert torch.equal(given, before)
        assert report.trials[1].problem is None


def test_wrong_and_failing_candidates_are_dropped(x: Tensor) -> None:
    report = sums_of_blocks.tune(x, candidates=[{"B": 64}, {"B": 1 << 60}])
    assert [trial.problem is None for trial in report.trials] == [True, False, False]
    assert "differs by" in str(report.trials[1].problem)
    assert report.best == {"B": 1024}
    assert report.row is None
    assert "dropped" in str(report)
    assert str(report).endswith("the default, which stays")
    assert sizes_in_use(sums_of_blocks, x) == ({"B": 1024}, "default")


def test_calls_that_differ_from_themselves_cannot_be_tuned(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tk.Kernel, "run", lambda *_: torch.randn(5))
    monkeypatch.setattr(tk.Kernel, "repeat_call", lambda *_: None)
    with pytest.raises(errors.KernelError, match="two calls gave different results"):
        make_double().tune(x)


def test_no_time_tries_nothing(x: Tensor) -> None:
    double = make_double()
    report = double.tune(x, seconds=0, candidates=[{"B": 64}])
    assert (report.best, report.untried, report.row) == ({"B": 1024}, 1, None)
    assert "no time for 1 more" in str(report)
    with pytest.raises(errors.KernelError, match="nothing was measured"):
        report.save("tuned.json")
    assert not double.explain_recompiles().startswith("1")


def test_a_terminal_shows_the_progress(
    x: Tensor, slow_default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LIBRARY_DELAY", 0)
    monkeypatch.setattr(progress, "TERMINAL_PERIOD", 0.01)
    with contextlib.redirect_stderr(Terminal()) as stream:
        make_double().tune(x, candidates=[{"B": 64}])
    for count in (1, 2):
        assert f"turbine is tuning double: {count} configurations, best 1.00" in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# Mistakes


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([{"BB": 64}], "unknown size of kernel double 'BB'; valid: B, "),
        ([{"B": 0}], "the block size B is 0"),
        ([{"B": "64"}], "the block size B is '64'"),
        ([{"N": 64}], "N follows from the arguments"),
        ([{"num_warps": 3}], "num_warps is 3"),
        ([], "no candidates to tune"),
        ({"B": 64}, "no candidates to tune"),
        ([64], "a candidate is 64"),
    ],
)
def test_wrong_candidates_are_errors(x: Tensor, candidates: Any, message: str) -> None:
    with pytest.raises(errors.KernelError) as error:
        make_double().tune(x, candidates=candidates)
    assert message in str(error.value)


def test_other_mistakes_are_errors(x: Tensor) -> None:
    with pytest.raises(errors.KernelError, match="B is set by blocks= or using"):
        make_double().using(B=32).tune(x, candidates=[{"B": 64}])
    with pytest.raises(errors.KernelError, match="seconds=-1"):
        make_double().tune(x, seconds=-1)
    with pytest.raises(errors.KernelError, match="num_stages is 0"):
        make_double().using(num_stages=0)
    with pytest.raises(errors.KernelError, match="no candidates to tune"):
        make_double(tune=[])


# Classes and rows


@pytest.mark.parametrize(
    ("size", "name"),
    [(0, "0"), (1, "1"), (16, "16"), (17, "~32"), (32, "32"), (48, "64"), (4095, "~4096")],
)
def test_sizes_have_classes(size: int, name: str) -> None:
    assert class_of(size) == name


def row_of(kernel: tk.Kernel, machine: Machine, *args: Any, **configuration: int) -> Row:
    named = kernel.bind_arguments(args, {})
    program, sizes, key = kernel.resolve_call(named)
    case = kernel.choices.case_of(program, key.present, sizes, machine)
    return Row(case, configuration, 1e-6, 2e-6)


def here() -> Machine:
    return machines.of_arguments({}, "cpu")


def write_table(path: Path, *rows: Row) -> Path:
    for row in rows:
        tuning_table.add_to_table(path, row)
    return path


def test_a_damaged_cache_is_no_failure(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(make_double(), here(), x, B=64)
    tuning_table.keep(row, here())
    ((key, _),) = tuning_table.KNOWN.items()
    for facts in ({"row": {**row.to_json(), "sizes": 3}}, {"row": None}, {}):
        cache.write(key, cache.Entry(b"", facts))
        forget(monkeypatch)
        assert sizes_in_use(make_double(), x) == ({"B": 1024}, "default")
    cache.path_of(key, config.current().cache_dir).write_bytes(b"damaged")
    forget(monkeypatch)
    assert sizes_in_use(make_double(), x) == ({"B": 1024}, "default")


def test_rows_with_other_names_are_not_used(x: Tensor) -> None:
    tuning_table.keep(row_of(make_double(), here(), x, BLOCK=64), here())
    assert sizes_in_use(make_double(), x) == ({"B": 1024}, "default")


# Tables


def test_tables_are_read_back(x: Tensor, tmp_path: Path, slow_default: None) -> None:
    path = tmp_path / "tuned.json"
    with config.override(cache=False):
        report = make_double().tune(x, candidates=[{"B": 64}])
    assert report.save(path) == path
    tuning_table.MEASURED.clear()
    double = make_double(tune=path)
    assert sizes_in_use(double, x) == ({"B": 64}, "from tuned.json")
    assert sizes_in_use(double.using(B=16), x) == ({"B": 16}, "given")
    torch.testing.assert_close(double(x), 2 * x)
    assert double.explain_recompiles().endswith("B=64, from tuned.json")
    assert tk.explain(double, x).sizes["B"] == (64, "from tuned.json")
    assert double.tune(x, candidates=[{"B": 512}]).save() == path  # its own table
    (row,) = json.loads(path.read_text())["rows"]
    assert row["configuration"] == {"B": 512}
    assert sizes_in_use(double, x) == ({"B": 512}, "tuned")  # by this process, just now


def test_tables_have_rows_of_several_kernels_and_versions(x: Tensor, tmp_path: Path) -> None:
    double, gemm, square = make_double(), make_gemm(), torch.ones(64, 64)
    row = row_of(double, here(), x, B=64)
    old = replace(row, case=replace(row.case, program="another"))
    path = write_table(tmp_path / "tuned.json", row_of(gemm, here(), square, square, BM=32), old)
    assert sizes_in_use(make_gemm(path), square, square)[0] == {"BM": 32, "BN": 256, "BK": 256}
    source = "from tuned.json, for another version of the kernel"
    assert sizes_in_use(make_double(path), x) == ({"B": 64}, source)
    assert sizes_in_use(make_double(path), x[:50]) == ({"B": 1024}, "default")


def test_a_missing_table_is_a_warning(tmp_path: Path, x: Tensor) -> None:
    with pytest.warns(UserWarning, match=r"there is no table .*tuned.json: double.tune"):
        double = make_double(tmp_path / "tuned.json")
    assert sizes_in_use(double, x) == ({"B": 1024}, "default")


def test_paths_of_tables_are_relative_to_the_file_of_the_kernel() -> None:
    with pytest.warns(UserWarning, match=str(Path(__file__).with_name("no_such.json"))):
        make_double("no_such.json")


def test_a_table_of_another_format_is_a_warning(tmp_path: Path, x: Tensor) -> None:
    path = tmp_path / "tuned.json"
    path.write_text('{"format": 99, "rows": []}')
    with pytest.warns(UserWarning, match="has format 99"):
        assert sizes_in_use(make_double(path), x) == ({"B": 1024}, "default")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"rows": 3}', '{"format": 1, "rows": [3]}', '{"format": 1, "rows": [{}]}'],
)
def test_a_damaged_table_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(errors.KernelError, match=r"tuned.json is not a table") as error:
        make_double(path)
    assert "test_tuning.py" in str(error.value.where)


def test_a_table_with_unknown_sizes_is_an_error(tmp_path: Path, x: Tensor) -> None:
    path = write_table(tmp_path / "tuned.json", row_of(make_double(), here(), x, BB=64))
    with pytest.raises(errors.KernelError, match=r"unknown size of kernel double 'BB'; valid: B"):
        make_double(path)(x)


# GPUs, without one


def test_options_are_those_of_the_code() -> None:
    half = torch.ones(512, 512).half()
    gemm = make_gemm().using(BM=64, BN=64, BK=32)
    assert code_for(gemm, (half, half))[0].schedule == Schedule(4, 4, 8)
    chosen = gemm.using(num_warps=8, num_stages=2, group_rows=4)
    code, _ = code_for(chosen, (half, half))
    assert code.schedule == Schedule(8, 2, 4)
    assert "first_row = group * 4" in code.text
    compiled = compilation.compile_code(code, compilation.nvidia_target(90), [])
    assert compiled.metadata.num_warps == 8
    assert chosen.using(num_warps=8, num_stages=2, group_rows=4).blocks == gemm.blocks


def test_artifacts_for_gpus_take_options_of_a_table(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return double(x)  # type: ignore[no-any-return]

    x = torch.ones(4096)
    row = row_of(make_double(), GPU, x, B=256, num_warps=8)
    other = replace(row, case=replace(row.case, machine="NVIDIA A100, sm_80"))
    double = make_double(write_table(tmp_path / "tuned.json", other, row))
    with config.override(dump=tmp_path / "dump"):
        turbine.aot.export(Model(), args=(x,)).compile(target="cuda:sm_90")
    texts = [file.read_text() for file in (tmp_path / "dump").rglob("*.*") if file.is_file()]
    assert any("tl.arange(0, 256)" in text for text in texts)
    assert any("workgroup_size = [256 : index" in text for text in texts)  # 8 warps
    assert "tl.arange(0, 256)" in double.text("triton", x)


def test_candidates_for_gpus_change_blocks_and_schedule() -> None:
    half, names = torch.ones(512, 512).half(), {"BM": 128, "BN": 256, "BK": 64}
    gemm = make_gemm()
    program, sizes, _ = gemm.resolve_call(gemm.bind_arguments((half, half), {}), "cuda")
    found = list(Space(program, sizes, "cuda").neighbours(names, Schedule(8, 3, 8)))
    changes = [{n: v for n, v in one.items() if names.get(n) != v} for one in found]
    for change in ({"BM": 64}, {"BN": 128}, {"BK": 128}, {"BM": 256, "BN": 128}):
        assert change in changes
    for change in ({"num_warps": 4}, {"num_stages": 4}, {"group_rows": 4}):
        assert change in changes
    assert {"BM": 256, "BN": 512} not in changes
    wide = {**names, "BN": 512}
    assert all(one["BN"] <= 512 for one in Space(program, sizes, "cuda").neighbours(wide, None))


def test_the_search_on_a_gpu_finds_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for clocks and drivers: Triton's interpreter runs the candidates."""

    def turn(self: turns.Clock, call: Any, count: int) -> float:
        kernel = call.__defaults__[0].kernel if call.__defaults__ else None
        return 1.0 if kernel is None else 1 / kernel.given.get("num_warps", 1)

    monkeypatch.setattr(turns.Clock, "turn", turn)
    monkeypatch.setattr(tk.Kernel, "run", run_in_triton)
    monkeypatch.setattr(tk.Kernel, "device_of", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    double, x = make_double(), torch.randn(3000)
    report = double.tune(x, candidates=[{"num_warps": 8}, {"B": 64, "num_warps": 4}])
    assert report.best == {"B": 1024, "num_warps": 8}
    _, sizes, key = double.resolve_call({"x": x}, "cuda")
    assert (sizes[Symbol("B")], key.options, key.source) == (1024, Options(8), "tuned")
    assert code_for(double, (x,))[0].schedule.warps == 8
    assert sizes_in_use(double, x) == ({"B": 1024}, "default")  # on the CPU
    around = double.tune(x, seconds=60).trials
    assert {"B": 512} in [trial.configuration for trial in around]
    assert {"B": 1024, "num_warps": 32} in [trial.configuration for trial in around]


def test_small_sizes_have_no_large_blocks(x: Tensor) -> None:
    double = make_double()
    program, sizes, _ = double.resolve_call(double.bind_arguments((x[:100],), {}))
    sizes = {**sizes, Symbol("B"): 128}
    assert list(Space(program, sizes, "cpu").neighbours({"B": 128}, None)) == [{"B": 64}]


def test_machines_are_compared_by_architecture_where_no_gpu_is_named() -> None:
    assert Machine("cuda", "sm_90").is_served_by("NVIDIA H200, sm_90")
    assert not Machine("cuda", "sm_80").is_served_by("NVIDIA H200, sm_90")
    assert not GPU.is_served_by("NVIDIA H100, sm_90")
    assert not Machine("cpu", "cpu:x, 2 threads").is_served_by("cpu:x, 4 threads")
    assert Case("k", "p", "a", (), ()).serves(Case("k", "q", "b", (), ()), Machine("cpu", "a"))
    assert Options(num_warps=4).set_ones == {"num_warps": 4}
