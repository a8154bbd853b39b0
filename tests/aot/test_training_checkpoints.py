"""Checkpoints of training steps: resuming, in PyTorch and without it, and bad files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedulers

import turbine
from examples import train_on_device
from tests.aot.training import (
    adamw,
    batches,
    check_weights,
    eager_step,
    exported_mlp,
    mlp,
    numbers,
)
from turbine import errors
from turbine.zoo import convnet
from turbine.zoo.example import Example

pytestmark = pytest.mark.sweep(1)


def test_resuming_in_another_artifact_continues_bit_for_bit(tmp_path: Path) -> None:
    exported, data = exported_mlp(), batches(6)
    one, path = exported.compile(), tmp_path / "c.safetensors"
    for batch in data[:3]:
        one.train_step(*batch)
    one.save_checkpoint(path)
    expected = [float(one.train_step(*batch)) for batch in data[3:]]
    other = exported.compile()
    other.load_checkpoint(path)
    assert [float(other.train_step(*batch)) for batch in data[3:]] == expected
    assert numbers(one) == numbers(other)
    assert [*tmp_path.iterdir()] == [path]


def test_checkpoints_go_to_pytorch_and_back(tmp_path: Path) -> None:
    artifact, data, path = exported_mlp().compile(), batches(6), tmp_path / "c.safetensors"
    for batch in data[:3]:
        artifact.train_step(*batch)
    artifact.save_checkpoint(path)
    model = mlp(hidden=16)
    optimizer = optim.AdamW(model.parameters(), lr=1.0)
    turbine.aot.read_checkpoint(path, model, optimizer)
    for batch in data[3:5]:
        expected = eager_step(model, optimizer, *batch)
        torch.testing.assert_close(artifact.train_step(*batch), expected)
    check_weights(artifact, model)
    turbine.aot.write_checkpoint(path, model, optimizer)
    again = exported_mlp().compile()
    again.load_checkpoint(path)
    torch.testing.assert_close(again.train_step(*data[5]), eager_step(model, optimizer, *data[5]))
    check_weights(again, model)
    assert int(again.state["trainer.step"]) == 6


def test_training_with_a_scheduler_goes_on_in_pytorch(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, optim.Optimizer, schedulers.StepLR]:
        model = mlp()
        optimizer = adamw([*model.parameters()])
        return model, optimizer, schedulers.StepLR(optimizer, 2, 0.5)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        for model, optimizer, scheduler in trainings:
            eager_step(model, optimizer, *batch)
            scheduler.step()

    exported, data, path = make(), batches(8), tmp_path / "c.safetensors"
    artifact = turbine.aot.export_training_step(
        exported[0],
        nn.CrossEntropyLoss(),
        optimizer=exported[1],
        scheduler=exported[2],
        args=data[0],
        predict_args=(),
    ).compile()
    reference, resumed = make(), make()
    trainings = [reference]
    for batch in data[:4]:
        artifact.train_step(*batch)
        step(batch)
    artifact.save_checkpoint(path)
    resumed[2].load_state_dict(reference[2].state_dict())
    turbine.aot.read_checkpoint(path, resumed[0], resumed[1])
    assert resumed[1].param_groups[0]["lr"] == reference[1].param_groups[0]["lr"] == 0.0025
    trainings.append(resumed)
    for batch in data[4:]:
        step(batch)
    pairs = zip(resumed[0].parameters(), reference[0].parameters(), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_checkpoints_are_safetensors_files_with_the_names_of_pytorch(tmp_path: Path) -> None:
    artifact, path = exported_mlp().compile(), tmp_path / "c.safetensors"
    artifact.train_step(*batches(1)[0])
    artifact.save_checkpoint(path)
    found = json.loads(path.read_bytes()[8:].split(b"}}", 1)[0] + b"}}")
    assert {*mlp().state_dict()} < {*found}
    assert {"optimizer.0.weight.exp_avg", "optimizer.2.bias.step", "trainer.step"} < {*found}


_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy, turbine
artifact = turbine.load(sys.argv[1])
artifact.load_checkpoint(sys.argv[2])
x = numpy.linspace(-1, 1, 48, dtype=numpy.float32).reshape(6, 8)
losses = [float(artifact.train_step(x, numpy.arange(6) % 4)) for _ in range(3)]
assert losses[2] < losses[1] < losses[0], losses
artifact.save_checkpoint(sys.argv[2])
print(losses)
"""


def test_training_needs_no_pytorch(tmp_path: Path) -> None:
    path, state = tmp_path / "m.turbine", tmp_path / "c.safetensors"
    artifact = exported_mlp().compile(save_to=path)
    artifact.save_checkpoint(state)
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(path), str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    x = torch.linspace(-1, 1, 48).reshape(6, 8)
    losses = [float(artifact.train_step(x, torch.arange(6) % 4)) for _ in range(3)]
    assert json.loads(done.stdout) == losses


def one_layer() -> Example:
    """Takes the images of LeNet and compiles quickly."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
    return Example(model, (torch.ones(1, 1, 28, 28),))


def test_the_example_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(convnet, "lenet", one_layer)  # test_training_step.py trains LeNet
    for _ in range(2):
        assert train_on_device.main(["--folder", str(tmp_path), "--steps", "6", "--quiet"]) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith("steps 0 to 6: loss ")
    assert second.startswith("steps 6 to 12: loss ")
    assert second.endswith("torch: None")
    assert "polyline" in (tmp_path / "loss.svg").read_text()


def test_checkpoints_of_other_models_change_nothing(tmp_path: Path) -> None:
    artifact, path = exported_mlp().compile(), tmp_path / "c.safetensors"
    artifact.train_step(*batches(1)[0])
    before = numbers(artifact)
    other = mlp(hidden=12)
    turbine.aot.write_checkpoint(path, other, adamw([*other.parameters()]))
    with pytest.raises(
        errors.ParameterError, match=r"0\.weight of type float32\[12, 8\]"
    ) as raised:
        artifact.load_checkpoint(path)
    assert "0.bias of type float32[12], expected float32[16]; 2.weight of" in raised.value.fact
    assert raised.value.fact.endswith(" and 4 more")
    with pytest.raises(errors.ParameterError, match=r"0\.weight is \[12, 8\].*; 2\.weight is"):
        turbine.aot.read_checkpoint(path, mlp(), adamw([*mlp().parameters()]))
    deeper = nn.Sequential(*mlp(), nn.Linear(4, 4))
    turbine.aot.write_checkpoint(path, deeper, adamw([*deeper.parameters()]))
    with pytest.raises(errors.ParameterError, match=r"it also has 3\.bias"):
        artifact.load_checkpoint(path)
    with pytest.raises(errors.ParameterError, match="another model"):
        turbine.aot.read_checkpoint(path, mlp())
    with pytest.raises(errors.ParameterError, match=r"c\.safetensors"):
        artifact.load_checkpoint(tmp_path / "c.pt")
    with pytest.raises(errors.TurbineError, match=r"none\.safetensors"):
        artifact.load_checkpoint(tmp_path / "none.safetensors")
    assert numbers(artifact) == before
