"""Examples, the README's code and benchmarks run."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import custom_op, dynamic_batch, eager_training, no_torch, quickstart
from turbine import child_processes, config, errors, zoo
from turbine.child_processes import Crash

pytestmark = pytest.mark.run

examples = pytest.mark.sweep(1, "examples")

benchmarks = pytest.mark.sweep(1, "benchmarks")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _same_turbine_in_subprocesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_quickstart_prints_a_row_per_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--tiny"])
    smallest = {"resnet18": zoo.TINY["mlp"], "gpt2": zoo.TINY["mlp"]}
    monkeypatch.setattr(zoo, "TINY", smallest)  # tests/project/test_models.py compiles the others
    assert quickstart.main() == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["model", "resnet18", "gpt2"]


def test_quickstart_fails_on_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--tiny"])
    monkeypatch.setattr(quickstart, "run", lambda name, *_: quickstart.Row(name, 1e-3, 1, 1, 1))
    assert quickstart.main() == 1


@examples
def test_the_custom_op_example_agrees_in_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert custom_op.main() == 0
    assert capsys.readouterr().out.count("same as PyTorch") == 4


@examples
def test_the_device_trains_as_the_cpu_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert eager_training.main(["--steps", "30"]) == 0
    assert "losses differ by" in capsys.readouterr().out


@examples
def test_the_dynamic_batch_example_accepts_every_size_in_range(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert dynamic_batch.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("same as PyTorch") == 3
    assert "size 65 along axis 0, which is out of range" in printed


@examples
def test_the_numpy_example_runs_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert no_torch.main() == 0
    assert "without torch" in capsys.readouterr().out


@pytest.fixture
def _examples_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@examples
@pytest.mark.usefixtures("_examples_import_each_other")
@pytest.mark.parametrize("name", ["lenet", "gpt", "recommender", "contrastive", "distributed"])
def test_training_examples_reduce_the_loss(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "6", "--quiet"]
    if name == "distributed":
        printed = _torchrun(tmp_path, f"train_{name}.py", *options, "--sharded")
    else:
        assert importlib.import_module(f"train_{name}").main(options) == 0
        printed = capsys.readouterr().out
    assert re.search(r"6 steps: loss [\d.]+ -> [\d.]+", printed)


@pytest.mark.usefixtures("_examples_import_each_other")
def test_training_logs_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: pip install 'turbine[train]'",
    )
    example = importlib.import_module("train_recommender")
    options = ["--backend", "eager", "--optimizer", "sgd", "--steps", "6", "--log", str(tmp_path)]
    assert example.main(options) == 0
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert "6/6" in capsys.readouterr().err


@pytest.mark.usefixtures("_examples_import_each_other")
def test_training_works_without_tqdm_and_reports_missing_tensorboard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    example = importlib.import_module("train_recommender")
    assert example.main(["--backend", "eager", "--steps", "5"]) == 0
    assert "step 5 of 5: loss" in capsys.readouterr().err
    with pytest.raises(errors.MissingExtra, match=r"turbine\[train\]"):
        example.main(["--backend", "eager", "--steps", "5", "--log", str(tmp_path)])


@pytest.fixture
def benchmark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a benchmark in an empty folder and returns its output."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)

    def run(name: str, *options: str, codes: tuple[int, ...] = (0,)) -> str:
        assert importlib.import_module(name).main(options) in codes
        return capsys.readouterr().out

    return run


@benchmarks
def test_a_warm_start_takes_less_time_than_a_cold_one(
    benchmark: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_time = importlib.import_module("compile_time")

    def first_call(backend: str, folder: str, options: Namespace) -> Any:
        torch._dynamo.reset()
        with config.override(cache_dir=Path(folder)):
            return compile_time.first_call(backend, options)

    # tests/compiler/test_compile.py has a new process that finds the code.
    monkeypatch.setattr(compile_time, "in_new_process", first_call)
    options = ["--model", "mlp", "--tiny", "--rounds", "1", "--no-inductor"]
    benchmark("compile_time", *options, "--output", "figures.json", codes=(0, 1))
    seconds = json.loads(Path("figures.json").read_text())["seconds"]["turbine"]
    assert seconds["warm"][0] < seconds["cold"][0]


@benchmarks
def test_serving_is_measured_without_onnx_runtime(
    benchmark: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    serving = importlib.import_module("serving")
    monkeypatch.setattr(serving, "HIDDEN", 32)
    monkeypatch.setattr(serving, "LONG_ROWS", 64)
    printed = benchmark("serving", "--seconds", "0.05", "--clients", "1", "3")
    tables = [table.splitlines() for table in printed.strip().split("\n\n")]
    systems = len({1, torch.get_num_threads()})
    assert [len(rows) for rows in tables] == [1 + 2 * systems, 2 + systems, 1 + 2 * systems]


KERNELS = sorted(path.stem for path in (ROOT / "examples" / "kernels").glob("*.py"))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_examples_match_pytorch(
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = importlib.import_module(f"examples.kernels.{name}")
    if not request.config.getoption("--sweep"):
        monkeypatch.setattr(example, "DTYPES", example.DTYPES[:2])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert example.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.endswith("same as PyTorch") for line in lines)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_examples_are_short(name: str) -> None:
    assert (ROOT / "examples" / "kernels" / f"{name}.py").read_text().count("\n") < 60


def test_the_readme_example_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    Path("readme.py").write_text("\n".join(blocks))
    runpy.run_path("readme.py")
    assert capsys.readouterr().out == "(input: float32[8, 16]) -> float32[8, 4]\n"


@pytest.fixture
def figures(benchmark: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Measures rows in this process and returns the printed table."""
    models = importlib.import_module("models")

    def measure(name: str, options: Namespace) -> Any:
        figures = models.measure(name, options)
        return {system: models.Figure(**figure) for system, figure in figures.items()}

    monkeypatch.setattr(models, "measure_in_process", measure)
    return partial(benchmark, "models", "--tiny", "--seconds", "0", "--output", "figures.json")


@benchmarks
def test_the_benchmark_sorts_rows_and_keeps_earlier_ones(
    figures: Callable[..., str],
) -> None:
    figures("--rows", "mlp", "--systems", "artifact")
    printed = figures("--rows", "pointwise_64", "--systems", "compile")
    rows = json.loads(Path("figures.json").read_text())["rows"]
    assert {name: sorted(row) for name, row in rows.items()} == {
        "mlp": ["artifact", "eager"],
        "pointwise_64": ["compile", "eager"],
    }
    assert all(figure["error"] < 1e-4 for row in rows.values() for figure in row.values())
    ratios = {
        name: row["eager"]["median"] / row[system]["median"]
        for (name, row), system in zip(rows.items(), ("artifact", "compile"), strict=True)
    }
    lines = [line.split()[0] for line in printed.splitlines()]
    assert lines == ["row", *sorted(ratios, key=ratios.__getitem__), "geometric", "training"]
    assert "mlp" in Path("figures.svg").read_text()


def test_a_wrong_result_fails_the_benchmark(
    figures: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = importlib.import_module("systems")
    monkeypatch.setitem(systems.SYSTEMS, "artifact", lambda example: lambda: [torch.ones(2, 8)])
    printed = figures("--rows", "mlp", "--systems", "artifact", codes=(1,))
    assert "mlp, artifact: wrong by" in printed


@benchmarks
def test_the_call_benchmark_compares_with_eager(benchmark: Callable[..., str]) -> None:
    printed = benchmark("call_overhead", "--seconds", "0", "--no-inductor")
    assert "turbine, torch tensors" in printed
    assert "eager PyTorch" in printed


@pytest.fixture
def model_table(monkeypatch: pytest.MonkeyPatch, benchmark: Callable[..., str]) -> Any:
    """benchmarks/model_table.py with a small row, one that crashes, and a page of its own."""
    pytest.importorskip("transformers", reason="an extra, `models`")
    found = importlib.import_module("model_table")
    row = importlib.import_module("real_models").Row
    rows = {"mlp": row("MLP", "2 rows", zoo.TINY["mlp"]), "lost": row("Lost", "", lambda: None)}
    monkeypatch.setattr(found, "ROWS", rows)
    monkeypatch.setattr(found, "PAGE", Path("page.md"))
    Path("page.md").write_text(f"before\n{found.BEGIN}old\n{found.END}after\n")

    def run_jobs(start: Callable[[], Any], jobs: Any, **_: Any) -> Any:
        measure = start()
        return [(job, measure(job) if job == "mlp" else Crash("gone\nfar")) for job in jobs]

    monkeypatch.setattr(child_processes, "run_jobs", run_jobs)
    return found


def test_the_table_of_models_says_what_fails_first(
    model_table: Any, benchmark: Callable[..., str]
) -> None:
    options = ["--seconds", "0", "--output", "figures.json"]
    printed = benchmark("model_table", *options, codes=(1,)).splitlines()
    assert [line.split()[0] for line in printed] == ["model", "Lost", "MLP"]
    page = Path("page.md").read_text()
    assert page.startswith(f"before\n{model_table.BEGIN}figures, ")
    assert page.endswith(f"{model_table.END}after\n")
    assert re.search(r"^\| Lost \|  \| no \| no \|.*\| gone \|$", page, re.M)
    assert re.search(r"^\| MLP \| 2 rows \| yes \| yes \| [\d.]+e-\d+ \|", page, re.M)
    figures = json.loads(Path("figures.json").read_text())["rows"]
    assert all(figures["mlp"][name] < 1e-5 for name in ("error", "packed_error"))


def test_a_wrong_answer_fails_the_table_of_models(
    model_table: Any, benchmark: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_table, "ERROR_LIMIT", 0.0)
    monkeypatch.setattr(model_table, "compare", lambda found, expected: 0.25)
    benchmark("model_table", "--rows", "mlp", "--seconds", "0", "--output", "f.json", codes=(1,))
    assert json.loads(Path("f.json").read_text())["rows"]["mlp"]["failure"] == "wrong by 2.5e-01"


def test_embeddings_are_measured_without_onnx_runtime(
    benchmark: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="an extra, `models`")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    embeddings = importlib.import_module("sentence_embeddings")
    monkeypatch.setattr(embeddings, "COUNT", 4)
    monkeypatch.setattr(embeddings, "ARTIFACTS", {"turbine": None})
    printed = benchmark("sentence_embeddings", "--random", "--batch", "2", "--seconds", "0")
    head, eager, ours = (line.split() for line in printed.splitlines())
    assert head[0] == "system"
    assert (eager[0], eager[-1]) == ("PyTorch", "1.00000")
    assert (ours[0], ours[-1]) == ("turbine", "1.00000")


def _torchrun(folder: Path, example: str, *options: str) -> str:
    """What an example prints that two processes run."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return _python(folder, *torchrun, str(ROOT / "examples" / example), *options)


def _python(folder: Path, *arguments: str) -> str:
    """What a Python process prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
