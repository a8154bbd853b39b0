"""Traces of kernels and calls in a folder, and `turbine trace`."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from turbine import config
from turbine.cli.main import main
from turbine.compat import debugging
from turbine.runtime import Launchable, run_trace

SOURCE = """
func.func @scale(%x: tensor<2x3xf32>, %by: f32) -> tensor<2x3xf32> {
  %e = tensor.empty() : tensor<2x3xf32>
  %s = linalg.fill ins(%by : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
  %0 = arith.mulf %x, %s : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "new" / "traces"
    with config.override(trace_dir=path):
        yield path


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / run_trace.CALLS).read_text().splitlines()]


# Kernels and calls


def test_without_a_folder_nothing_is_written_or_computed() -> None:
    asked: list[str] = []
    assert run_trace.folder() is None
    assert run_trace.kernel("scale", lambda: asked.append("ir") or "", b"code") is None  # type: ignore[func-returns-value]
    assert asked == []


def test_a_traced_kernel_has_ir_and_code(folder: Path) -> None:
    assert run_trace.kernel("turbine::scale/1.5", lambda: "module {}", b"code") is not None
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {
        "turbine__scale_1.5.mlir": b"module {}",
        "turbine__scale_1.5.vmfb": b"code",
    }


def test_kernels_of_one_name_have_separate_files(folder: Path) -> None:
    first, again, other = (run_trace.kernel("scale", None, code) for code in (b"a", b"a", b"b"))
    assert first == again == folder / "scale"
    assert other is not None
    assert other.name.startswith("scale-")
    assert sorted(path.read_bytes() for path in folder.iterdir()) == [b"a", b"b"]


def test_each_call_is_one_line(folder: Path) -> None:
    label = run_trace.kernel("scale", None, b"code")
    assert label is not None
    args = [torch.ones(2, 3), numpy.ones(4, "int8"), 5, 2.5, torch.ones((), dtype=torch.bfloat16)]
    run_trace.call(label, args, 1.25)
    (row,) = calls(folder)
    assert (row["kernel"], row["ms"]) == ("scale", 1.25)
    assert row["args"] == ["float32[2, 3]", "int8[4]", "int", "float", "bfloat16[]"]


def test_calls_are_logged_to_the_folder_at_load_time(tmp_path: Path, folder: Path) -> None:
    label = run_trace.kernel("scale", None, b"code")
    assert label is not None
    with config.override(trace_dir=tmp_path / "other"):
        run_trace.call(label, [], 1)
    thread = threading.Thread(target=lambda: run_trace.call(label, [], 2))
    thread.start()
    thread.join()
    assert [row["ms"] for row in calls(folder)] == [1, 2]
    assert not (tmp_path / "other").exists()


def test_concurrent_writers_do_not_interleave_lines(folder: Path) -> None:
    program = """
    import sys, threading
    from pathlib import Path
    import numpy
    from turbine import config
    from turbine.runtime import tracing
    config.set(trace_dir=sys.argv[1])
    label = tracing.kernel("scale", lambda: "module {}", b"code" * 100_000)
    arguments = [numpy.ones((2, 3))] * 50
    def work():
        for step in range(100):
            tracing.call(label, arguments, step)
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(folder)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    rows = calls(folder)
    assert sorted(row["ms"] for row in rows) == sorted([*range(100)] * 12)
    assert {len(row["args"]) for row in rows} == {50}
    files = [run_trace.CALLS, "scale.mlir", "scale.vmfb"]
    assert sorted(path.name for path in folder.iterdir()) == files


def test_an_unwritable_folder_does_not_fail_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with config.override(trace_dir=tmp_path / "file" / "folder"):
        label = run_trace.kernel("scale", None, b"code")
        assert label is not None
        run_trace.call(label, [], 1)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"cannot trace {label}",
        f"cannot trace a call of {label}",
    ]


def test_a_launchable_is_traced(folder: Path) -> None:
    launchable = Launchable.jit_compile(SOURCE, entry_point="scale")
    x = torch.ones(2, 3)
    for _ in range(3):
        launchable(x, 2)
    assert (folder / "scale.mlir").read_text() == SOURCE
    again = Launchable.from_file(folder / "scale.vmfb", entry_point="scale")
    assert torch.equal(again(x, 3), 3 * x)
    rows = calls(folder)
    assert [row["args"] for row in rows] == [["float32[2, 3]", "int"]] * 4
    assert all(0 < row["ms"] < 10_000 for row in rows)


def test_the_iree_turbine_flag_sets_the_folder(tmp_path: Path) -> None:
    with config.override(debug=f"-asserts, runtime_trace_dir={tmp_path},log_level=info"):
        assert run_trace.folder() == tmp_path
        assert debugging.flags.runtime_trace_dir == str(tmp_path)
        with config.override(trace_dir=tmp_path / "option"):
            assert run_trace.folder() == tmp_path / "option"


def test_the_iree_turbine_tracer_writes_kernels(folder: Path) -> None:
    assert run_trace.tracer.enabled
    name = run_trace.tracer.save_jit_kernel_artifacts(
        cache_key="a::b", module_asm=b"module {}", binary=memoryview(b"code")
    )
    assert (name, (folder / "a__b.mlir").read_text()) == ("a__b", "module {}")


# Tensors


def test_tensors_of_one_key_are_numbered(folder: Path) -> None:
    for value in range(3):
        run_trace.trace_tensor("layer/0", torch.full((2,), float(value)).requires_grad_())
    names = ["layer_0.npy", "layer_0-1.npy", "layer_0-2.npy"]
    assert [numpy.load(folder / name).tolist() for name in names] == [[0, 0], [1, 1], [2, 2]]


def test_tensors_of_every_dtype_are_written(folder: Path) -> None:
    run_trace.trace_tensor("strided", torch.arange(6).reshape(2, 3).t())
    run_trace.trace_tensor("conjugated", torch.tensor([1 + 2j]).conj())
    run_trace.trace_tensor("array", numpy.arange(3))
    run_trace.trace_tensor("bfloat16", torch.tensor([1.5], dtype=torch.bfloat16))
    assert numpy.load(folder / "strided.npy").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert numpy.load(folder / "conjugated.npy").tolist() == [1 - 2j]
    assert numpy.load(folder / "array.npy").tolist() == [0, 1, 2]
    assert numpy.load(folder / "bfloat16.npy").tobytes() == b"\xc0\x3f"


def test_without_a_folder_tensors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, run_trace.log.name)
    run_trace.trace_tensor("x", torch.ones(2))
    assert [record.message for record in caplog.records] == ["x: tensor([1., 1.])"]


def test_a_callback_replaces_files(folder: Path) -> None:
    seen: list[str] = []
    before = run_trace.set_tensor_callback(lambda key, tensor: seen.append(key))
    run_trace.trace_tensor("ours", torch.ones(2))
    debugging.trace_tensor_callback = lambda key, tensor: seen.append(f"old {key}")
    run_trace.trace_tensor("ours", torch.ones(2))
    run_trace.set_tensor_callback(None)
    assert before is run_trace.tensor_callback() is debugging.trace_tensor_callback
    assert before is debugging.default_trace_tensor_callback
    assert seen == ["ours", "old ours"]
    assert not folder.exists()


# The command


@pytest.fixture
def traced(folder: Path) -> Path:
    slow = run_trace.kernel("slow", lambda: "module {}", b"slow")
    quick = run_trace.kernel("quick", None, b"quick")
    run_trace.kernel("unused", None, b"unused")
    assert slow is not None
    assert quick is not None
    for ms in (1, 2, 9):
        run_trace.call(slow, [torch.ones(2, 3), 1], ms)
    for size in range(5):
        run_trace.call(quick, [torch.ones(size)], 0.5)
    return folder


def test_the_table_has_a_row_for_each_kernel(
    traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(traced)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        "kernel calls total ms median ms arguments files".split(),
        "slow 3 12.000 2.000 (float32[2, 3], int) slow.mlir slow.vmfb".split(),
        "quick 5 2.500 0.500 (float32[0]); (float32[1]); (float32[2]); 2 more quick.vmfb".split(),
        "unused 0 0.000 0.000 unused.vmfb".split(),
    ]


def test_kernels_are_printed_as_json(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(traced), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kernels"][0] == {
        "name": "slow",
        "calls": 3,
        "total_ms": 12,
        "median_ms": 2,
        "shapes": {"float32[2, 3], int": 3},
        "files": ["slow.mlir", "slow.vmfb"],
    }


def test_invalid_lines_are_skipped(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (traced / run_trace.CALLS).open("ab") as file:
        file.write(b'{"kernel": "slow", "args": 5}\n[]\n\xff\n{"kernel": "sl')
    assert main(["trace", str(traced), "--json"]) == 0
    told = capsys.readouterr()
    assert [kernel["calls"] for kernel in json.loads(told.out)["kernels"]] == [3, 5, 0]
    assert told.err.startswith("4 lines of")


@pytest.mark.parametrize("name", ["absent", "empty", "file"])
def test_a_folder_without_a_trace_is_an_error(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["trace", str(tmp_path / name)]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.splitlines()[0]) == (
        "",
        f"error: {tmp_path / name} is not a folder with a trace",
    )
