"""The `turbine` command: arguments, stdout, stderr and exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import ml_dtypes
import numpy
import pytest
import torch
from torch import nn

from tests.cli.conftest import Answer, Turbine
from tests.jobs_here import answer_here
from turbine import aot, config, progress, tables, zoo
from turbine.cli import doctor, options
from turbine.cli.main import verbs
from turbine.runtime import container, run_trace
from turbine.zoo.example import Example


def shell(*words: str, before: str = "", **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a child process, after a line of Python."""
    code = f"{before}\nimport sys\nfrom turbine.cli.main import main\nsys.exit(main())"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **settings)


def expected(x: float) -> list[float]:
    return [2 * x + w for w in (0.0, 1.0, 2.0)]


# The command as a whole


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom turbine.cli.main import main\nmain(['run', '--help'])\n"
    code += "print([n for n in ('torch', 'iree.runtime', 'iree.compiler', 'numpy') "
    code += "if n in sys.modules])"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "[]"


def test_the_module_runs_as_a_command() -> None:
    command = [sys.executable, "-m", "turbine.cli.main", "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("turbine ")


def test_examples_in_help_texts_run(turbine: Turbine, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_here(monkeypatch)
    monkeypatch.setattr(zoo, "lenet", one_layer)  # tests/project/test_models.py has LeNet
    assert turbine("compile", "turbine.zoo:lenet", "-o", "lenet.mlir").code == 0
    with config.override(trace_dir="traces"):
        run_trace.kernel("scale", None, b"code")
    examples = [shlex.split(turbine(verb, "--help").out.splitlines()[-1]) for verb in verbs()]
    assert [words[:2] for words in examples] == [["turbine", verb] for verb in verbs()]
    codes = {words[1]: turbine(*words[1:], *BRIEFLY.get(words[1], ())).code for words in examples}
    assert codes == dict.fromkeys(verbs(), 0)


def one_layer() -> Example:
    """Takes the images of LeNet and compiles quickly."""
    return Example(nn.Sequential(nn.Linear(28, 2)).eval(), (torch.ones(16, 1, 28, 28),))


# Words behind an example that would go on for long: a later option wins.
BRIEFLY = {"bench": ["--seconds", "0.1"], "coverage": ["--forms="], "fuzz": ["--minutes", "0.001"]}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "usage: turbine"),
        ("inspekt x", "unknown verb 'inspekt'; valid: inspect,"),
        ("run", "required: ARTIFACT"),
        ("bench m.turbine --seconds soon", "invalid float value"),
        ("run m.turbine --size batch", "'batch' is not NAME=VALUE"),
        ("run m.turbine --inp x.npy", "unrecognized arguments"),
    ],
)
def test_bad_usage_is_exit_code_2(turbine: Turbine, line: str, told: str) -> None:
    answer = turbine(*line.split())
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cache --set cache=maybe", "option cache='maybe' is not of type bool"),
        ("cache --set cahe=1", "unknown option 'cahe'; valid: cache,"),
        ("cache --set cache_limit_mb=much", "option cache_limit_mb='much' is not of type int"),
    ],
)
def test_a_bad_option_is_an_error(turbine: Turbine, line: str, told: str) -> None:
    answer = turbine(*line.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {told}")


def test_an_interrupt_is_exit_code_130(turbine: Turbine) -> None:
    answer = turbine("compile", "cli_models:interrupted", "-o", "x.turbine")
    assert (answer.code, answer.out) == (130, "")


def test_a_closed_pipe_prints_no_traceback(compiled: Callable[[str], str]) -> None:
    command = [sys.executable, "-m", "turbine.cli.main", "inspect", compiled("example")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (141, b"")


def test_options_come_from_the_signature() -> None:
    taken: list[Any] = []

    def verb(
        name: Annotated[str, "a name"],
        *,
        file: Annotated[Path, "a file", "-f"],
        count: Annotated[int | None, "a count"] = None,
        how: Annotated[Literal["fast", "slow"], "a way"] = "slow",
        tag: Annotated[tuple[str, ...], "tags"] = (),
        be_loud: Annotated[bool, "a switch"] = False,
    ) -> int:
        taken.extend([name, file, count, how, tag, be_loud])
        return 7

    parser = ArgumentParser()
    options.add_options(parser, verb)
    words = "n -f x --tag a --tag b --be-loud --count 3"
    assert options.call(verb, parser.parse_args(words.split())) == 7
    assert taken == ["n", Path("x"), 3, "slow", ("a", "b"), True]
    assert "tags (repeatable)" in parser.format_help()


# run


def results(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    found: list[dict[str, Any]] = json.loads(answer.out)
    return found


def test_run_reads_a_file_and_saves_the_result(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    numpy.save("x.npy", numpy.full((2, 3), 4, numpy.float32))
    answer = turbine("run", compiled("example"), "--input", "x.npy", "--output", "y.npy")
    assert answer.code == 0
    assert answer.out.startswith("result: float32[2, 3]\n[[ 8.  9. 10.]")
    assert numpy.load("y.npy").tolist() == [expected(4)] * 2


def test_run_takes_several_inputs_and_constants(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    words = shlex.split("--input 2x3xf32=5 --input 2x3xf32=2 --input 2x3xf32=10 --json")
    difference, flag = results(turbine("run", compiled("three"), *words))
    assert difference["name"] == "result['difference']"
    assert difference["values"] == [[-15.0] * 3] * 2
    assert flag == {"name": "result['flag']", "value": True}


def test_run_reads_an_npz_by_name(turbine: Turbine, compiled: Callable[[str], str]) -> None:
    full = {name: numpy.full((2, 3), value, numpy.float32) for name, value in PAIR.items()}
    numpy.savez("inputs.npz", **full)  # type: ignore[arg-type]
    answer = turbine("run", compiled("three"), "--input", "inputs.npz", "--json")
    assert results(answer)[0]["values"] == [[-15.0] * 3] * 2


PAIR = {"scale": 10.0, "second": 2.0, "first": 5.0}


def test_run_reads_bfloat16_saved_by_numpy(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    numpy.save("b.npy", numpy.full((2, 3), 1.5, ml_dtypes.bfloat16))
    words = ["--input", "b.npy", "--output", "c.npz", "--json"]
    (result,) = results(turbine("run", compiled("bfloat"), *words))
    assert (result["dtype"], result["values"]) == ("bfloat16", [[4.5] * 3] * 2)
    with numpy.load("c.npz") as saved:
        assert saved["arr_0"].view(ml_dtypes.bfloat16).tolist() == [[4.5] * 3] * 2


def test_run_generates_deterministic_inputs(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    first, second = (turbine("run", compiled("dynamic"), "--json") for _ in range(2))
    assert results(first)[0]["shape"] == [2, 3]
    assert first == second


def test_run_shows_mutated_inputs(turbine: Turbine, compiled: Callable[[str], str]) -> None:
    answer = turbine("run", compiled("writes"), "--input", "2x3xf32=1", "--json")
    shown = {result["name"]: result["values"] for result in results(answer)}
    assert shown == {"result": [[4.0] * 3] * 2, "x (written)": [[2.0] * 3] * 2}


def test_json_of_odd_floats_is_valid(turbine: Turbine, compiled: Callable[[str], str]) -> None:
    answer = turbine("run", compiled("example"), "--input", "2x3xf32=-inf", "--json")
    assert results(answer)[0]["values"] == [["-Infinity"] * 3] * 2


def test_run_takes_sizes_of_dynamic_inputs(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    path = compiled("dynamic")
    (symbol,) = json.loads(turbine("inspect", path, "--json").out)["functions"]["main"]["symbols"]
    answer = turbine("run", path, "--size", f"{symbol}=5", "--json")
    assert results(answer)[0]["shape"] == [5, 3]
    assert "out of range" in turbine("run", path, "--size", f"{symbol}=9").err
    assert "unknown size 'nosuch'" in turbine("run", path, "--size", "nosuch=9").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--input absent.npy", "cannot read absent.npy"),
        ("--input cli_models.py", "cannot read input 'cli_models.py'"),
        ("--input 2x3xf33", "input '2x3xf33': unknown dtype 'f33'; valid: f32,"),
        ("--input 2x3xui8=300", "input '2x3xui8=300': the value is not a valid uint8"),
        ("--input 2x4xf32", "argument 'x' has size 4 along axis 1, expected 3"),
        ("--input 2x3xf64", "argument 'x' has dtype float64, expected float32"),
        ("--input 2x3xf32 --input 2x3xf32", "2 inputs given, the program takes 1"),
        ("--size batch=3", "no size is dynamic"),
        ("--size batch=3 --input 2x3xf32", "--size and --input together"),
        ("--output y.txt", "unknown output suffix '.txt'"),
        ("--output a.npy --output b.npy", "too many --output files: files=2 tensors=1"),
    ],
)
def test_invalid_input_of_run_is_explained(
    turbine: Turbine, compiled: Callable[[str], str], words: str, told: str
) -> None:
    answer = turbine("run", compiled("example"), *words.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {told}")


@pytest.mark.parametrize("verb", ["run", "bench", "inspect"])
def test_files_that_are_not_artifacts_are_rejected(turbine: Turbine, verb: str) -> None:
    assert "error: cannot open absent.turbine" in turbine(verb, "absent.turbine").err
    answer = turbine(verb, "cli_models.py")
    assert (answer.code, answer.out) == (1, "")
    assert "error: not a turbine artifact" in answer.err


def test_run_and_bench_need_no_torch(folder: Path, compiled: Callable[[str], str]) -> None:
    path, no_torch = compiled("example"), "import sys; sys.modules['torch'] = None"
    ran = shell("run", path, "--input", "2x3xf32=1", "--json", before=no_torch, cwd=folder)
    assert json.loads(ran.stdout)[0]["values"] == [expected(1)] * 2
    assert shell("bench", path, "--seconds", "0", before=no_torch, cwd=folder).returncode == 0
    refused = shell("compile", "cli_models:two", "-o", "x.turbine", before=no_torch, cwd=folder)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: compiling needs torch")


# bench, inspect, cache, doctor


def test_bench_prints_figures(turbine: Turbine, compiled: Callable[[str], str]) -> None:
    figures = json.loads(turbine("bench", compiled("example"), "--seconds", "0.05", "--json").out)
    assert 0 < figures["min_ms"] <= figures["median_ms"] <= figures["p90_ms"]
    assert turbine("bench", compiled("example"), "--seconds", "0").out.count("\n") == 2
    assert "seconds=-1.0" in turbine("bench", compiled("example"), "--seconds", "-1").err


def test_bench_compares_with_other_systems(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    words = ["bench", compiled("dynamic"), "--seconds", "0.01", "--compare"]
    answer = turbine(*words, "eager", "--json")
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)["systems"]
    assert list(rows) == ["artifact", "eager"]
    assert all(row["median_ms"] > 0 and row["calls"] >= 5 for row in rows.values())
    shown = turbine(*words, "eager", "--model", "cli_models:refuses")
    assert shown.code == 1
    assert "eager cannot run the model: not today" in shown.err
    assert shown.out.splitlines()[1].endswith("1.00")
    assert "unknown system 'eagr'; valid: eager" in turbine(*words, "eagr").err


def test_bench_asks_for_the_model_of_an_artifact(turbine: Turbine) -> None:
    aot.export(nn.ReLU(), args=(torch.ones(2),)).compile("relu.turbine")
    answer = turbine("bench", "relu.turbine", "--compare", "eager")
    assert "does not say which model it was compiled from\n  hint: add --model" in answer.err
    assert (
        turbine("bench", "relu.turbine", "--compare", "eager", "--model", "torch.nn:ReLU").code == 0
    )


def test_inspect_describes_an_artifact(turbine: Turbine, compiled: Callable[[str], str]) -> None:
    answer = turbine("inspect", compiled("dynamic"), "--verify")
    assert answer.code == 0
    for line in (
        "name ",
        "function main ",
        "strategy ",
        "driver ",
        "weight:w ",
        "ok   all checksums",
    ):
        assert f"\n{line}" in f"\n{answer.out}"
    assert " 2 to 8\n" in answer.out


def test_inspect_fits_a_screen(turbine: Turbine) -> None:
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))).eval()
    aot.export(layers, args=(torch.ones(1, 4),)).compile("deep.turbine")
    short, full = (
        turbine("inspect", "deep.turbine").out,
        turbine("inspect", "deep.turbine", "--all").out,
    )
    assert len(short.splitlines()) <= 23  # and the command
    assert "\n36 more, listed by --all " in short
    assert "weight:19.bias" in full
    assert container.open_file(Path("deep.turbine")).manifest["target"]["features"] in full


def test_doctor_fits_a_terminal(turbine: Turbine, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 300
    monkeypatch.setattr(doctor, "CHECKS", {"long": lambda: long})
    assert long in turbine("doctor").out
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert turbine("doctor").out == f"ok   long           {'x' * 36} ...\n"
    assert long in turbine("doctor", "--all").out


def test_inspect_finds_corruption(turbine: Turbine, compiled: Callable[[str], str]) -> None:
    whole = Path(compiled("example")).read_bytes()
    Path("damaged.turbine").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    answer = turbine("inspect", "damaged.turbine", "--verify")
    assert answer.code == 1
    assert answer.out.endswith("FAIL weight:w is damaged: its checksum does not match\n")
    assert turbine("inspect", "damaged.turbine").code == 0


def test_inspect_finds_a_missing_archive(turbine: Turbine) -> None:
    turbine("compile", "cli_models:two", "-o", "gone.turbine", "--archive", "gone.irpa")
    assert turbine("inspect", "gone.turbine", "--verify").code == 0
    Path("gone.irpa").unlink()
    answer = turbine("inspect", "gone.turbine", "--verify", "--json")
    assert (answer.code, json.loads(answer.out)["damage"]) == (
        1,
        {"gone.irpa": "no archive at gone.irpa"},
    )


def test_inspect_opens_artifacts_of_other_cpus(
    turbine: Turbine, compiled: Callable[[str], str]
) -> None:
    ours = container.open_file(Path(compiled("example")))
    target = {"kind": "cpu", "chip": "u74", "features": "+v", "architecture": "riscv64"}
    sections = [(name, ours.bytes_of(name)) for name in ours.sections]
    container.save(Path("other.turbine"), {**ours.manifest, "target": target}, sections)
    assert "cpu:u74 riscv64" in turbine("inspect", "other.turbine", "--verify").out
    assert turbine("run", "other.turbine").code == 1


def test_cache_lists_and_clears(turbine: Turbine, tmp_path: Path) -> None:
    elsewhere = ["--set", f"cache_dir={tmp_path}"]
    turbine("compile", "cli_models:two", "-o", "c.turbine", *elsewhere)
    listed = json.loads(turbine("cache", "--json", *elsewhere).out)["entries"]
    shown = turbine("cache", *elsewhere).out
    assert "tiled" in shown
    assert "two for cpu:" in shown  # the model, or the name that the export was given
    assert turbine("cache", "--clear", *elsewhere).out == f"removed {len(listed)}\n"
    assert turbine("cache", *elsewhere).out.startswith("0 kept, 0 B of 4.0 GiB in ")


def test_cache_and_doctor_name_the_seed(turbine: Turbine, tmp_path: Path) -> None:
    absent, here = tmp_path / "absent", tmp_path / "seed"
    here.mkdir(mode=0o700)
    shown = turbine("cache", "--set", f"cache_seed_dir={here}").out
    assert f"entries of {here} are read too" in shown
    for seed, ok in ((here, True), (absent, False)):
        found = turbine("doctor", "--json", "--set", f"cache_seed_dir={seed}", "--set", "cache=0")
        [finding] = [f for f in json.loads(found.out) if f["name"] == "cache"]
        assert finding["ok"] is ok
        assert str(seed) in finding["text"]


def test_doctor_reports_failures(turbine: Turbine) -> None:
    findings = turbine("doctor", "--json", "--set", "cache_dir=/dev/null/cache", "--set", "cache=0")
    failed = [finding["name"] for finding in json.loads(findings.out) if not finding["ok"]]
    assert findings.code == 1
    assert "cache" in failed
    assert "end to end" not in failed


# What the verbs share


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "written"),
    [(Terminal(), "\r\x1b[Kwaiting ... 0 s\r\x1b[K"), (io.StringIO(), "waiting ... 0 s\n")],
)
def test_progress_is_printed_late_and_erased(stream: io.StringIO, written: str) -> None:
    with contextlib.redirect_stderr(stream), progress.progress("waiting", delay=0.02):
        while not stream.getvalue():
            time.sleep(0.01)
    assert stream.getvalue() == written


def test_progress_inside_of_other_progress_is_not_shown() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        with progress.progress("outer", delay=0.01), progress.progress("inner", delay=0):
            while not stream.getvalue():
                time.sleep(0.01)
        with progress.progress("next", delay=0.01):
            while "next" not in stream.getvalue():
                time.sleep(0.01)
    assert stream.getvalue() == "outer ... 0 s\nnext ... 0 s\n"


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_the_library_shows_its_progress_on_a_terminal(
    stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LIBRARY_DELAY", 0)
    with contextlib.redirect_stderr(stream):
        aot.export(nn.ReLU(), args=(torch.ones(7),)).compile(cache=False)
    text = stream.getvalue()
    words = ("turbine is exporting ReLU", "turbine is compiling ReLU for cpu:host")
    assert [word in text for word in words] == [shown, shown]


def test_progress_is_silent_when_quick() -> None:
    with contextlib.redirect_stderr(Terminal()) as stream, progress.progress("waiting"):
        pass
    assert stream.getvalue() == ""


def test_quantities_are_formatted() -> None:
    sizes = [tables.bytes_text(n) for n in (0, 1023, 1536, 5 * 2**20, 2**42)]
    assert sizes == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "4096.0 GiB"]
    ages = [tables.age_text(s) for s in (-1, 59, 60, 7200, 200000)]
    assert ages == ["0 s", "59 s", "1 min", "2 h", "2 d"]
