"""Compilation: strategies in order, the cache, and one error if all fail."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import turbine
from turbine import config, errors, target
from turbine.compiler import cache, host, pipeline, pool, session, strategies
from turbine.compiler.pipeline import Compiled
from turbine.compiler.strategies import Strategy
from turbine.mlir import context as mlir_context

SOURCE = b"func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
CPU = target.parse("cpu")
WORKS = Strategy("works", ("--iree-opt-level=O0",), ("cpu",), "")
WORKS_TOO = Strategy("works-too", ("--iree-opt-level=O1",), ("cpu",), "")
REFUSED = Strategy("refused", ("--no-such-flag",), ("cpu",), "")
# IREE 3.13 reads through a null pointer when it does not know a CUDA chip.
CRASHES = Strategy(
    "crashes", ("--iree-hal-target-device=cuda", "--iree-cuda-target=bogus"), ("cpu",), ""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    host.resolve.cache_clear()  # what it knows is not in this folder
    with config.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(strategies, "TABLE", request.param)


def with_strategies(*rows: Strategy) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("table", [rows], indirect=True, ids=["-".join(_names(rows))])


def _names(rows: tuple[Strategy, ...]) -> list[str]:
    return [row.name for row in rows]


@with_strategies(WORKS, WORKS_TOO)
def test_the_first_working_strategy_is_used(table: None) -> None:
    assert pipeline.compile_ir(SOURCE, CPU).strategy == "works"


@with_strategies(REFUSED, WORKS)
def test_a_rejected_flag_leads_to_the_next_strategy(table: None) -> None:
    compiled = pipeline.compile_ir(SOURCE, CPU)
    assert compiled.strategy == "works"
    assert compiled.seconds > 0


@with_strategies(CRASHES, REFUSED, WORKS)
def test_a_crash_leads_to_the_next_strategy(table: None) -> None:
    assert pipeline.compile_ir(SOURCE, CPU).strategy == "works"


@with_strategies(REFUSED, WORKS)
def test_a_timeout_leads_to_the_next_strategy(monkeypatch: pytest.MonkeyPatch, table: None) -> None:
    def begin(request: session.Request) -> pool.Job:
        hangs = REFUSED.flags[0] in request.flags
        job = real_begin(request) if not hangs else pool.Job(request, 1, 0)
        if hangs:
            job.news.put(-1e9)  # begun long ago, and no answer
        return job

    real_begin = pool.begin
    monkeypatch.setattr(pool, "begin", begin)
    assert pipeline.compile_ir(SOURCE, CPU).strategy == "works"


@with_strategies(REFUSED, CRASHES)
def test_if_all_strategies_fail_one_error_lists_them_and_the_ir(table: None, folder: Path) -> None:
    with pytest.raises(errors.CompileError) as caught:
        pipeline.compile_ir(SOURCE, CPU)
    error = caught.value
    assert type(error) is errors.CompileError
    assert "no-such-flag" in error.fact
    hint = str(error.hint)
    assert re.search(r"tried: refused, crashes \(the compiler process died \(SIGSEGV\)", hint)
    kept = Path(hint.partition("the IR is in ")[2])
    assert kept.parent == folder / "failed"
    assert kept.read_bytes() == SOURCE


@with_strategies(CRASHES)
def test_the_error_type_matches_the_reason(table: None) -> None:
    with pytest.raises(errors.CompilerCrash, match="Unknown CUDA target"):
        pipeline.compile_ir(SOURCE, CPU)


@with_strategies(REFUSED)
def test_failed_ir_is_written_to_the_dump_folder(table: None, tmp_path: Path) -> None:
    with (
        config.override(dump=tmp_path / "dump"),
        pytest.raises(errors.CompileError, match=str(tmp_path / "dump")),
    ):
        pipeline.compile_ir(SOURCE, CPU)
    [kept] = (tmp_path / "dump").iterdir()
    assert (kept.suffix, kept.read_bytes()) == (".mlir", SOURCE)


@with_strategies(REFUSED)
def test_errors_are_reported_if_the_ir_cannot_be_written(table: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with config.override(dump=tmp_path / "file"), pytest.raises(errors.CompileError) as caught:
        pipeline.compile_ir(SOURCE, CPU)
    assert str(caught.value.hint) == "tried: refused"


@with_strategies(REFUSED, WORKS, WORKS_TOO)
def test_a_named_strategy_is_the_only_one_tried(table: None) -> None:
    assert pipeline.compile_ir(SOURCE, CPU, strategy="works-too").strategy == "works-too"
    with pytest.raises(errors.CompileError, match="tried: refused;"):
        pipeline.compile_ir(SOURCE, CPU, strategy="refused")


@with_strategies(WORKS, WORKS_TOO)
def test_an_argument_overrides_the_strategy_option(table: None) -> None:
    with config.override(strategy="works-too"):
        assert pipeline.compile_ir(SOURCE, CPU).strategy == "works-too"
        assert pipeline.compile_ir(SOURCE, CPU, strategy="works").strategy == "works"


def test_an_unknown_strategy_lists_those_for_the_target() -> None:
    with pytest.raises(errors.ConfigError, match="unknown strategy for cuda 'tiled'") as caught:
        pipeline.compile_ir(SOURCE, target.parse("cuda:sm_80"), strategy="tiled")
    assert all(name in caught.value.fact for name in ("auto", "tune", "plain", "plain-O0"))


@pytest.mark.parametrize("kind", target.KINDS)
def test_every_kind_of_target_has_strategies(kind: str) -> None:
    assert strategies.choose("auto", kind)


@pytest.mark.parametrize("strategy", strategies.TABLE, ids=lambda row: row.name)
def test_the_compiler_accepts_every_flag(strategy: Strategy) -> None:
    assert pipeline.compile_ir(SOURCE, CPU, strategy=strategy.name).strategy == strategy.name


@with_strategies(WORKS, REFUSED, WORKS_TOO)
def test_tune_keeps_the_fastest_strategy(table: None) -> None:
    seconds = {"works": 2.0, "works-too": 1.0}
    measured: list[str] = []

    def measure(compiled: Compiled) -> float:
        measured.append(compiled.strategy)
        return seconds[compiled.strategy]

    first = pipeline.compile_ir(SOURCE, CPU, strategy="tune", measure=measure)
    again = pipeline.compile_ir(SOURCE, CPU, strategy="tune", measure=measure)
    assert (first.strategy, again.strategy) == ("works-too", "works-too")
    assert (first.cached, again.cached) == (False, True)
    assert measured == ["works", "works-too"]


@with_strategies(REFUSED, CRASHES)
def test_tune_lists_all_failures(table: None) -> None:
    with pytest.raises(errors.CompileError, match="tried: refused, crashes"):
        pipeline.compile_ir(SOURCE, CPU, strategy="tune", measure=lambda _: 0.0)


def test_tune_without_anything_to_time_is_an_error() -> None:
    with pytest.raises(errors.ConfigError, match="needs example inputs"):
        pipeline.compile_ir(SOURCE, CPU, strategy="tune")


def test_in_process_compilation_matches_and_starts_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = pipeline.compile_ir(SOURCE, CPU, use_cache=False)
    monkeypatch.setattr(pool, "begin", None)
    here = pipeline.compile_ir(SOURCE, CPU, use_cache=False, in_process=True)
    assert here.data == there.data


def test_without_the_cache_nothing_is_read_or_written() -> None:
    runs = [pipeline.compile_ir(SOURCE, CPU, use_cache=False) for _ in range(2)]
    assert not any(run.cached for run in runs)
    assert [item for item in cache.listings() if "strategy" in item.facts] == []


def test_the_cache_option_turns_it_off() -> None:
    with config.override(cache=False):
        pipeline.compile_ir(SOURCE, CPU)
        assert not pipeline.compile_ir(SOURCE, CPU).cached
        assert pipeline.compile_ir(SOURCE, CPU, use_cache=True).cached is False
        assert pipeline.compile_ir(SOURCE, CPU, use_cache=True).cached


def test_a_timeout_argument_reaches_the_compiler() -> None:
    with pytest.raises(errors.CompileTimeout, match="did not finish in 0 s"):
        pipeline.compile_ir(SOURCE, CPU, strategy="plain", timeout=0, use_cache=False)


class Tanh(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        return torch.tanh(x)  # this line is the one to be named


def test_an_op_without_a_lowering_names_the_line_of_the_model() -> None:
    exported = turbine.aot.export(Tanh(), args=(torch.ones(4),))
    text = mlir_context.to_text(exported.mlir_module, locations=True)
    broken, count = re.subn(
        r"torch\.aten\.tanh (\S+) : (\S+) -> (\S+)",
        r'torch.operator "torch.aten.frobnicate"(\1) : (\2) -> \3',
        text,
    )
    assert count == 1
    with pytest.raises(errors.UnsupportedOpInIR, match=r"torch\.aten\.frobnicate") as caught:
        pipeline.compile_ir(broken.encode(), CPU)
    file, _, line = str(caught.value.where).rpartition(":")
    assert file == __file__
    assert "the one to be named" in Path(__file__).read_text().splitlines()[int(line) - 1]


MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(4, 3)
    def forward(self, x):
        return torch.relu(self.linear(x))
"""
RUN = """
import torch, turbine
from turbine.compiler import pipeline, pool
compile_ir, found = pipeline.compile_ir, []
pipeline.compile_ir = lambda *args, **kwargs: found.append(compile_ir(*args, **kwargs)) or found[-1]
model, x = Model(0), torch.ones(2, 4)
torch.testing.assert_close(turbine.aot.export(model, args=(x,)).compile()(x), model(x))
print([compiled.cached for compiled in found], len(pool._pool.all_workers()))
"""


def test_a_new_process_hits_the_cache_without_a_compiler(tmp_path: Path, folder: Path) -> None:
    model = _load(tmp_path / "model.py", MODEL)(0)
    turbine.aot.export(model, args=(torch.ones(2, 4),)).compile()
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MODEL + RUN],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TURBINE_CACHE_DIR": str(folder)},
    ).stdout
    assert said == "[True] 0\n"


# The first model, the same one in another file, and one with other weights.
@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("weights", "cached"), [("inline", [False, True, False]), ("external", [False, True, True])]
)
def test_equal_models_share_code(tmp_path: Path, weights: str, cached: list[bool]) -> None:
    here = _load(tmp_path / "here.py", MODEL)
    there = _load(tmp_path / "there.py", "\n\n# further down\n" + MODEL)
    models = [here(0), there(0), here(1)]
    assert [_compile(model, weights).cached for model in models] == cached


def _load(path: Path, text: str) -> type[torch.nn.Module]:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: type[torch.nn.Module] = vars(module)["Model"]
    return loaded


def _compile(model: torch.nn.Module, weights: str) -> Compiled:
    module = turbine.aot.export(model, args=(torch.ones(2, 4),), weights=weights).mlir_module
    own_file = Path(model.forward.__code__.co_filename).name
    assert own_file in mlir_context.to_text(module, locations=True)
    return pipeline.compile_ir(
        mlir_context.to_bytecode(module),
        CPU,
        strategy="plain-O0",
        fingerprint=mlir_context.fingerprint(module),
    )


def test_fusions_with_too_many_buffers_fall_back_to_isolated_ops() -> None:
    class Sum(torch.nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return sum(xs)  # type: ignore[return-value]

    xs = [torch.randn(8) for _ in range(32)]
    with pytest.warns(errors.SlowCodeWarning, match="takes 33 buffers, 32 at most"):
        artifact = turbine.aot.export(Sum(), args=tuple(xs)).compile(cache=False)
    assert artifact.manifest["strategy"] == "isolated"
    torch.testing.assert_close(artifact(*xs), sum(xs), rtol=0, atol=0)
