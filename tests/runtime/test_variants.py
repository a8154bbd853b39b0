"""Artifacts with code for several CPUs run the best that the machine's CPU has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import errors, target
from turbine.cli.main import main
from turbine.compiler import host
from turbine.runtime import container, variants
from turbine.target import Target

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Counting(nn.Module):
    """A linear layer that counts its calls."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        result: Tensor = self.linear(x) + self.count
        return result


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for any CPU of this architecture, and for this one."""
    path = tmp_path_factory.mktemp("variants") / "both.turbine"
    output = turbine.aot.export(Counting(), args=(X,))
    output.compile(path, target=["cpu:generic", "cpu"])
    return path


@pytest.fixture
def bare_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that lacks a feature of all code but the generic one's."""

    def missing(wanted: Target) -> list[str]:
        return [] if wanted.chip == "generic" else ["avx9"]

    monkeypatch.setattr(target, "missing_features", missing)


def assert_counts(artifact: turbine.Artifact) -> None:
    expected = Counting().linear(X).detach()
    for count in (1, 2):
        torch.testing.assert_close(artifact(X), expected + count)


def test_the_variant_with_the_most_features_runs(both: Path) -> None:
    loaded = turbine.load(both)
    assert loaded.target == host.resolve(target.parse("cpu"))
    assert loaded.manifest["target"]["chip"] == loaded.target.chip
    assert_counts(loaded)


@pytest.mark.usefixtures("bare_cpu")
def test_a_cpu_without_the_features_runs_another_variant(both: Path) -> None:
    loaded = turbine.load(both)
    assert loaded.target.chip == "generic"
    assert_counts(loaded)


@pytest.mark.usefixtures("bare_cpu")
def test_a_saved_copy_keeps_every_variant(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turbine.load(both).save(tmp_path / "copy.turbine")
    monkeypatch.undo()
    loaded = turbine.load(tmp_path / "copy.turbine")
    assert loaded.target.chip != "generic"
    assert_counts(loaded)


def test_weights_are_stored_once(both: Path) -> None:
    sections = sorted(container.open_file(both).sections)
    assert sections == ["code", "code:1", "weight:linear.bias", "weight:linear.weight"]


def test_an_artifact_that_fits_in_no_variant_says_what_each_lacks(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "missing_features", lambda wanted: [f"{wanted.chip}9"])
    chip = host.resolve(target.parse("cpu")).chip
    with pytest.raises(errors.ArtifactTargetError) as caught:
        turbine.load(both)
    assert caught.value.fact == (
        "compiled for generic; this CPU lacks generic9; "
        f"compiled for {chip}; this CPU lacks {chip}9"
    )


def test_an_artifact_of_an_earlier_release_has_one_variant(both: Path) -> None:
    manifest = container.open_file(both).manifest
    old = {key: manifest[key] for key in ("target", "strategy")}
    (only,) = variants.from_json(old)
    assert (only.code, only.target.chip) == ("code", "generic")


def test_a_target_named_twice_is_compiled_once(tmp_path: Path) -> None:
    output = turbine.aot.export(nn.ReLU(), args=(X,))
    artifact = output.compile(tmp_path / "relu.turbine", target=["cpu", "cpu:host"])
    assert artifact.manifest["variants"] == []


def test_only_cpus_share_an_artifact(tmp_path: Path) -> None:
    output = turbine.aot.export(nn.ReLU(), args=(X,))
    for wanted in (["cpu", "cuda:sm_80"], []):
        with pytest.raises(errors.UnknownTarget, match="in one artifact"):
            output.compile(target=wanted)
    with pytest.raises(errors.ConfigError, match=r"2 targets in .*\.vmfb"):
        output.compile(tmp_path / "relu.vmfb", target=["cpu:generic", "cpu"])


@pytest.mark.skipif(target.host_architecture() != "x86_64", reason="names of x86 CPUs")
def test_an_unknown_cpu_gets_the_nearest_names() -> None:
    with pytest.raises(errors.UnknownTarget, match="unknown CPU 'x86-64-w3'; valid: x86-64-v3, "):
        host.resolve(target.parse("cpu:x86_64_w3"))


def test_inspect_lists_every_target(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(both)]) == 0
    shown = capsys.readouterr().out
    assert "\ntarget 1" in shown
    assert f"cpu:generic {target.host_architecture()}\n" in shown
    assert "\ntarget 2" in shown
