"""Programs on several devices: placement of arguments and weights, and execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import aot, errors
from turbine.aot import DeviceAffinity, DeviceTensorTrait

programs = pytest.mark.sweep(1, "programs")

SECOND = "#hal.device.promise<@__device_1>"
X, Y = torch.randn(2, 64), torch.randn(2, 64)


class Halves(nn.Module):
    """A layer on each of two devices, and a count of calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(1))
        for parameter in self.second.parameters():
            DeviceTensorTrait(1).set(parameter)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls.add_(1)
        found: Tensor = self.second(self.first(x)) + y + self.calls
        return found


@pytest.fixture(scope="module")
def halves() -> Halves:
    torch.manual_seed(0)
    return Halves().requires_grad_(False)


@pytest.fixture(scope="module")
def output(halves: Halves) -> aot.ExportOutput:
    return aot.export(halves, args=(X, Y), arg_device={1: DeviceAffinity(1, [0])})


def test_arguments_and_weights_are_placed_in_ir(output: aot.ExportOutput) -> None:
    text = output.text()
    assert "%arg0: !torch.vtensor<[2,64],f32>," in text
    placed = "{iree.abi.affinity = #hal.device.promise<@__device_1, [0]>}"
    assert f"%arg1: !torch.vtensor<[2,64],f32> {placed}" in text
    assert f"@second.weight {{stream.affinity = {SECOND}}}" in text
    assert text.count("stream.affinity") == 2


@pytest.mark.run
@pytest.mark.parametrize("limit", [0.0, 1e9], ids=["local-task", "local-sync"])
def test_programs_on_two_devices_match_pytorch(
    limit: float, halves: Halves, output: aot.ExportOutput, tmp_path: Path
) -> None:
    halves.calls.zero_()
    with turbine.config.override(sync_limit_mflop=limit):
        output.compile(tmp_path / "halves.turbine")
        artifact = turbine.load(tmp_path / "halves.turbine")
    assert artifact.target.devices == 2
    for _ in range(2):
        torch.testing.assert_close(artifact(X, Y), halves(X, Y))
    assert artifact.state["calls"] == 2


@programs
@pytest.mark.run
def test_a_device_may_hold_only_weights(halves: Halves) -> None:
    layer = halves.second
    torch.testing.assert_close(aot.export(layer, args=(X,)).compile()(X), layer(X))


@programs
def test_a_missing_device_is_named(output: aot.ExportOutput) -> None:
    artifact = output.compile(target="cuda:sm_80")
    with pytest.raises(errors.ArtifactTargetError, match="cuda"):
        artifact.check_runs_here()


def test_packed_weights_stay_on_their_device(output: aot.ExportOutput) -> None:
    assert f"@second.weight.scales {{stream.affinity = {SECOND}}}" in aot.quantize(output).text()


@programs
def test_weights_on_a_device_are_not_constants(halves: Halves) -> None:
    text = aot.export(halves, args=(X, Y), weights="inline").text()
    assert f"@second.weight {{stream.affinity = {SECOND}}}" in text
    assert "@first.weight" not in text


PLACED = torch.ones(4)
DeviceTensorTrait(1).set(PLACED)


class Placed(aot.CompiledModule):
    """Functions and globals that say where they are."""

    held = aot.export_global(PLACED)
    program = aot.ExportTargetDef(
        torch.export.export(nn.ReLU(), (torch.ones(4),)),
        argument_device_affinities={0: DeviceAffinity(1)},
    )

    @aot.CompiledModule.signature_info(arg_device={1: DeviceAffinity(1)})
    def add(self, a=aot.AbstractTensor(4), b=aot.AbstractTensor(4)):  # type: ignore[no-untyped-def]
        return self.sum(a, b, self.held)

    @aot.jittable
    def sum(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a + b + c


@programs
@pytest.mark.run
def test_members_of_compiled_modules_are_placed() -> None:
    output = aot.export(Placed)
    text = output.text()
    assert f"@held {{stream.affinity = {SECOND}}}" in text
    placed = f"{{iree.abi.affinity = {SECOND}}}"
    assert f"@add(%arg0: tensor<4xf32>, %arg1: tensor<4xf32> {placed})" in text
    assert f"@program(%arg0: tensor<4xf32> {placed})" in text
    artifact = output.compile()
    assert torch.equal(artifact.add(PLACED, PLACED), 3 * PLACED)
    assert torch.equal(artifact.program(-PLACED), 0 * PLACED)


def test_programs_of_a_builder_are_placed() -> None:
    builder = aot.FxProgramsBuilder(nn.ReLU())

    @builder.export_program(args=(PLACED,), arg_device={0: DeviceAffinity(1)})
    def forward(module: nn.Module, x: Tensor) -> Any:
        return module(x)

    assert f"{{iree.abi.affinity = {SECOND}}}" in aot.export(builder).text()


def test_an_unknown_argument_position_is_rejected(halves: Halves) -> None:
    with pytest.raises(errors.ExportError, match="places argument 2, but there are 2"):
        aot.export(halves, args=(X, Y), arg_device={2: DeviceAffinity(1)})
