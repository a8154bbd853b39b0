"""IREE's command line tools read our files and compute the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine.aot.output import ExportOutput
from turbine.runtime.archive import open_archive

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.linear(x)), count + 1


def exported(weights: str) -> ExportOutput:
    return turbine.aot.export(Net(), args=(X, torch.tensor([3])), weights=weights)


@pytest.fixture(scope="module")
def external() -> ExportOutput:
    return exported("external")


def tool(name: str, *arguments: str | Path) -> str:
    """What a tool prints; it stands beside the interpreter."""
    command = [Path(sys.executable).parent / name, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def run_module(folder: Path, *flags: str | Path) -> tuple[Tensor, Tensor]:
    """The results of iree-run-module on X and 3."""
    numpy.save(folder / "x.npy", X.numpy())
    tool(
        "iree-run-module",
        "--device=local-sync",
        "--function=main",
        f"--input=@{folder / 'x.npy'}",
        "--input=1xi64=3",
        f"--output=@{folder / 'y.npy'}",
        f"--output=@{folder / 'count.npy'}",
        *flags,
    )
    return (
        torch.from_numpy(numpy.load(folder / "y.npy")),
        torch.from_numpy(numpy.load(folder / "count.npy")),
    )


def assert_same(found: tuple[Tensor, Tensor]) -> None:
    expected, count = Net()(X, torch.tensor([3]))
    torch.testing.assert_close(found[0], expected.detach())
    assert torch.equal(found[1], count)


def test_iree_run_module_runs_a_vmfb_with_external_weights(
    external: ExportOutput, tmp_path: Path
) -> None:
    artifact = external.compile(tmp_path / "net.vmfb")
    assert_same(artifact(X, torch.tensor([3])))
    assert {path.name for path in tmp_path.iterdir()} == {"net.vmfb", "net.irpa"}
    found = run_module(
        tmp_path,
        f"--module={tmp_path / 'net.vmfb'}",
        f"--parameters=model={tmp_path / 'net.irpa'}",
    )
    assert_same(found)


def test_iree_run_module_runs_a_vmfb_with_embedded_weights(tmp_path: Path) -> None:
    exported("inline").compile(tmp_path / "net.vmfb")
    assert [path.name for path in tmp_path.iterdir()] == ["net.vmfb"]
    assert_same(run_module(tmp_path, f"--module={tmp_path / 'net.vmfb'}"))


def test_vmfb_and_weights_are_extracted_from_an_artifact(
    external: ExportOutput, tmp_path: Path
) -> None:
    artifact = external.compile(tmp_path / "net.turbine", archive=tmp_path / "weights.irpa")
    written = artifact.save_vmfb(tmp_path / "apart.vmfb")
    assert written == [tmp_path / "apart.vmfb", tmp_path / "apart.irpa"]
    code, weights = written
    found = run_module(tmp_path, f"--module={code}", f"--parameters=model={weights}")
    assert_same(found)
    found = run_module(
        tmp_path, f"--module={code}", f"--parameters=model={tmp_path / 'weights.irpa'}"
    )
    assert_same(found)


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc"])
def test_iree_compile_compiles_saved_ir(
    suffix: str, external: ExportOutput, tmp_path: Path
) -> None:
    external.save_mlir(tmp_path / f"net{suffix}")
    external.compile(tmp_path / "weights.vmfb")
    tool(
        "iree-compile",
        tmp_path / f"net{suffix}",
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=generic",
        "-o",
        tmp_path / "net.vmfb",
    )
    found = run_module(
        tmp_path,
        f"--module={tmp_path / 'net.vmfb'}",
        f"--parameters=model={tmp_path / 'weights.irpa'}",
    )
    assert_same(found)


def test_iree_dump_parameters_reads_our_archives(external: ExportOutput, tmp_path: Path) -> None:
    external.compile(tmp_path / "net.turbine", archive=tmp_path / "net.irpa")
    listing = tool("iree-dump-parameters", f"--parameters=model={tmp_path / 'net.irpa'}")
    entries = open_archive(tmp_path / "net.irpa").entries
    assert {name: entry.text for name, entry in entries.items()} == {
        "linear.weight": "float32[3, 4]",
        "linear.bias": "float32[3]",
    }
    assert all(name in listing for name in entries)


def test_archives_written_by_iree_are_read(external: ExportOutput, tmp_path: Path) -> None:
    """Converted, and with one repeated value in place of data."""
    external.compile(tmp_path / "net.turbine", archive=tmp_path / "net.irpa")
    before = {k: bytes(v.data) for k, v in open_archive(tmp_path / "net.irpa").entries.items()}
    tool(
        "iree-convert-parameters",
        f"--parameters={tmp_path / 'net.irpa'}",
        f"--output={tmp_path / 'copy.irpa'}",
    )
    after = {k: bytes(v.data) for k, v in open_archive(tmp_path / "copy.irpa").entries.items()}
    assert after == before
    tool(
        "iree-convert-parameters",
        f"--parameters={tmp_path / 'net.irpa'}",
        "--splat=linear.bias=f32=1",
        f"--output={tmp_path / 'splat.irpa'}",
    )
    entries = open_archive(tmp_path / "splat.irpa").entries
    repeated = numpy.frombuffer(bytes(entries["linear.bias"].data), numpy.float32)
    assert sorted(entries) == ["linear.bias", "linear.weight"]
    assert repeated.size > 0
    assert set(repeated.tolist()) == {1.0}
