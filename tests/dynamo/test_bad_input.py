"""Invalid input and failures under torch.compile: a clear error or a fallback."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turbine
from tests.compiled import agrees, compiled, same
from turbine import errors
from turbine.compiler import pipeline
from turbine.dynamo import entry, failure_cache, options, parts, records
from turbine.runtime.tensor_call import TensorCall

pytestmark = pytest.mark.sweep(4)

ROOT = Path(__file__).resolve().parents[2]


def work(x: Tensor) -> Tensor:
    return torch.relu(x * 2) * x + 1


def in_new_process(code: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TURBINE_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_backends_are_registered_without_importing_turbine(tmp_path: Path) -> None:
    done = in_new_process(
        """
        import sys, torch
        names = torch._dynamo.list_backends()
        assert {"turbine", "turbine_cpu"} <= set(names), names
        assert "turbine" not in sys.modules
        result = torch.compile(lambda x: x * 2, backend="turbine_cpu")(torch.ones(3))
        assert result.tolist() == [2, 2, 2]
        assert sys.modules["turbine"].counters()["parts"] == 1
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "mode", "words"),
    [
        ({"stratgy": "auto"}, None, ["stratgy", "strategy"]),
        ({"cache": "perhaps"}, None, ["cache", "perhaps"]),
        ({"compile_timeout": "soon"}, None, ["compile_timeout"]),
        ({"strategy": "nonsense"}, None, ["nonsense", "auto"]),
        ({"target": "cuda:sm_80"}, None, ["cuda:sm_80", "CPU"]),
        (None, "max-autotone", ["max-autotone", "max-autotune"]),
    ],
    ids=str,
)
def test_options_are_checked(given: Any, mode: str | None, words: list[str]) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        options.check(given, mode)
    assert all(word in str(caught.value) for word in words)


def test_invalid_options_of_torch_compile_are_reported() -> None:
    with pytest.raises(Exception, match="stratgy") as caught:
        compiled(work, options={"stratgy": "auto"})(torch.ones(3))
    assert "ConfigError" in repr(caught.value)


def test_valid_options_and_modes_are_accepted() -> None:
    assert options.check({"cache": False}, "default") == {"cache": False}
    assert options.check(None, "max-autotune") == {"strategy": "tune"}
    assert options.check(None, "reduce-overhead") == {}


def test_exceptions_of_the_model_are_propagated() -> None:
    def function(x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise KeyError("three")
        return x * 2

    with pytest.raises(KeyError, match="three"):
        compiled(function)(torch.ones(3))


def test_an_index_out_of_range_raises_the_error_of_pytorch() -> None:
    look_up = compiled(lambda table, index: table[index] * 2)
    table = torch.randn(4, 2)
    same(look_up(table, torch.tensor([3, 0])), table[[3, 0]] * 2)
    with pytest.raises(IndexError, match="out of bounds"):
        look_up(table, torch.tensor([4, 0]))
    same(look_up(table, torch.tensor([-1, 1])), table[[-1, 1]] * 2)


def test_shape_mismatches_raise_the_error_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        compiled(lambda x, y: x + y)(torch.ones(3), torch.ones(4))


def test_meta_tensors_are_supported() -> None:
    result = compiled(work)(torch.ones(3, device="meta"))
    assert result.is_meta
    assert result.shape == (3,)


def test_sparse_tensors_match_eager() -> None:
    sparse = torch.eye(3).to_sparse()
    result = compiled(lambda x: torch.sparse.mm(sparse, x) * 2 + x)(torch.ones(3, 2))
    same(result, torch.full((3, 2), 3.0))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Every compile fails, and is counted."""
    asked: list[int] = []

    def fail(self: Any, *_: Any) -> Any:
        asked.append(1)
        return pipeline.Failure("any", errors.CompileError("no compiler today"))

    monkeypatch.setattr(pipeline._Attempt, "_finish", fail)
    monkeypatch.setenv("TURBINE_CACHE_DIR", str(tmp_path))
    return asked


def test_unsupported_ops_fall_back(no_compiler: list[int]) -> None:
    with records.collect() as heard:
        agrees(work, lambda: (torch.randn(4, requires_grad=True),), ops=0)
    assert no_compiler
    assert not any(part.compiled for graph in heard for part in graph.parts)
    assert len(heard[0].left) == 4


def test_internal_faults_fall_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("our mistake")

    monkeypatch.setattr(parts, "lower_part", stumble)
    with pytest.raises(Exception, match="our mistake"):
        compiled(work)(torch.randn(4))
    monkeypatch.setenv("TURBINE_RAISE_FAULTS", "0")
    agrees(work, lambda: (torch.randn(4, requires_grad=True),), ops=0)
    assert "our mistake" in caplog.text


def test_code_that_always_fails_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(self: Any, args: Any) -> Any:
        calls.append(1)
        raise errors.RunError("broken")

    monkeypatch.setattr(TensorCall, "__call__", fail)
    call = compiled(work)
    x = torch.randn(4)
    before = turbine.counters()["rescued_calls"]
    for _ in range(6):
        same(call(x), work(x))
    assert len(calls) == parts.MAX_RESCUES
    assert turbine.counters()["rescued_calls"] - before == parts.MAX_RESCUES


def test_compile_failures_are_cached_across_processes(
    no_compiler: list[int], tmp_path: Path
) -> None:
    x = torch.randn(3)
    assert torch.equal(compiled(lambda x: x * 2)(x), x * 2)
    assert no_compiler
    code = """
        import torch, turbine
        from turbine import errors
        from turbine.compiler import pipeline
        asked = []
        def fail(self, strategy, job):
            asked.append(1)
            return pipeline.Failure("any", errors.CompileError("no compiler today"))
        pipeline._Attempt._finish = fail
        x = torch.randn(3)
        result = torch.compile(lambda x: x * 2, backend="turbine")(x)
        assert torch.equal(result, x * 2)
        print(len(asked), turbine.counters()["ops_in_pytorch"])
        """
    done = in_new_process(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1"]


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (errors.CompileError("bad"), True),
        (errors.UnsupportedOp("bad"), True),
        (errors.CompileTimeout("late"), False),
        (errors.LinkerError("IREE's linker cannot be started"), False),
        (errors.CompilerCrash("died (SIGSEGV)"), True),
        (errors.CompilerCrash("died (SIGKILL)"), False),
        (errors.TurbineError("a fault of ours"), False),
    ],
    ids=repr,
)
def test_only_deterministic_failures_are_cached(error: errors.TurbineError, lasting: bool) -> None:
    assert failure_cache.is_lasting(error) is lasting


def test_out_of_memory_in_the_compiler_falls_back_and_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TURBINE_CACHE_DIR", str(tmp_path))
    x = torch.randn(4)
    same(compiled(work, options={"compile_memory_mb": 40})(x), work(x))
    agrees(work, lambda: (x,), ops=4)


def test_two_threads_compile_concurrently() -> None:
    results: dict[int, Tensor] = {}

    def run(size: int) -> None:
        results[size] = torch.compile(lambda x: torch.relu(x * size) + 1, backend="turbine")(
            torch.ones(size)
        )

    torch._dynamo.reset()
    threads = [threading.Thread(target=run, args=(size,)) for size in (5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {size: result.tolist() for size, result in results.items()} == {
        5: [6.0] * 5,
        6: [7.0] * 6,
    }


FORK = """
    import os, torch, turbine
    from turbine.dynamo.parts import PartModule
    def work(x):
        return torch.relu(x * 2) * x + 1
    def stop(self):
        raise KeyboardInterrupt
    x = torch.ones(4)
    call = torch.compile(work, backend="turbine")
    if PENDING:  # an interrupt before the first wait leaves the compile under way
        wait, PartModule.wait = PartModule.wait, stop
        try:
            call(x)
        except KeyboardInterrupt:
            PartModule.wait = wait
    else:
        call(x)
    child = os.fork()
    if child == 0:
        assert torch.equal(call(x), work(x))
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert torch.equal(call(x), work(x))
    """


@pytest.mark.parametrize("pending", [True, False], ids=["compile pending", "after a call"])
def test_compiled_code_runs_after_fork(pending: bool, tmp_path: Path) -> None:
    done = in_new_process(FORK.replace("PENDING", str(pending)), tmp_path)
    assert done.returncode == 0, done.stderr


class Doubled(torch.utils.data.Dataset[Tensor]):
    """Items that are computed by compiled code, in the worker."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        result: Tensor = self.call(torch.full((3,), float(index)))
        return result


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_data_loader_workers_call_compiled_code() -> None:
    call = compiled(work)
    call(torch.ones(3))
    loader = torch.utils.data.DataLoader(
        Doubled(call), num_workers=1, multiprocessing_context="fork"
    )
    items = [item[0] for item in loader]
    for index, item in enumerate(items):
        assert torch.equal(item, work(torch.full((3,), float(index))))


def test_ctrl_c_interrupts_compilation(tmp_path: Path) -> None:
    code = """
        import os, signal, threading, time, torch, turbine
        def work(x):
            return torch.relu(x * 2) * x + 1
        from turbine.compiler import pool
        ask = pool._Worker.ask
        def slow(*a):
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(30)
            return ask(*a)
        pool._Worker.ask = slow
        x = torch.ones(4)
        call = torch.compile(work, backend="turbine")
        try:
            call(x)
            raise SystemExit("not interrupted")
        except KeyboardInterrupt:
            pass
        pool._Worker.ask = ask
        assert torch.equal(call(x), work(x))
        assert turbine.counters()["parts"] == 1
        os._exit(3)
        """
    done = in_new_process(code, tmp_path)
    assert done.returncode == 3, done.stderr


def test_untraceable_functions_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no such luck")

    table = {torch.ops.aten.sin.default: fails}
    monkeypatch.setattr(entry, "current_training_decompositions", lambda: table)
    monkeypatch.setenv("TURBINE_RAISE_FAULTS", "0")
    x = torch.randn(3)
    report = turbine.explain(torch.sin, x)
    assert [op.reason for op in report.left] == ["not traced: ValueError: no such luck"]
    assert torch.equal(torch.compile(torch.sin, backend="turbine")(x), x.sin())
