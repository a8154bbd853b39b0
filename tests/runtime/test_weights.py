"""Weights of every dtype and size keep their bits in every storage option."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import turbine
from tests.commit_seed import Drawn
from turbine import dtypes, errors

SHAPES = {"empty": (0, 3), "scalar": (), "one": (1, 1), "small": (2, 3), "large": (48, 40)}


class Turned(torch.nn.Module):
    """Gives back each of its buffers, of these dtypes and every shape, with the axes reversed."""

    def __init__(self, rows: Sequence[dtypes.Dtype]) -> None:
        super().__init__()
        for row, (name, shape) in itertools.product(rows, SHAPES.items()):
            self.register_buffer(f"{name}_{row.name}", random_bits(shape, row.torch))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        axes = {name: list(reversed(range(b.dim()))) for name, b in self.named_buffers()}
        turned = {n: b.permute(axes[n]).contiguous() for n, b in self.named_buffers()}
        return {"x": x + 1, **turned}


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    row = dtypes.of_torch(dtype)
    generator = torch.Generator().manual_seed(0)
    high = 2 if row.kind == "bool" else 256
    count = torch.Size(shape).numel() * row.itemsize
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


PLACES = ("external", "global", "inline")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("place", PLACES)
def test_weights_of_every_dtype_keep_their_bits(place: str, drawn: Drawn) -> None:
    model, x = Turned(drawn(dtypes.TABLE, 7)), torch.zeros(2)
    found = turbine.aot.export(model, args=(x,), weights=place).compile()(x)
    for name, expected in model(x).items():
        assert found[name].dtype == expected.dtype, name
        assert found[name].shape == expected.shape, name
        assert torch.equal(bits(found[name]), bits(expected)), name


def test_tied_weights_are_stored_once() -> None:
    embedding = torch.nn.Embedding(16, 8)
    head = torch.nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    output = turbine.aot.export(torch.nn.Sequential(embedding, head), args=(torch.arange(3),))
    assert len(output.compile().weight_names) == 1


def test_an_unknown_weights_option_lists_the_valid_ones() -> None:
    with pytest.raises(turbine.errors.ConfigError, match="external, global, inline"):
        turbine.aot.export(torch.nn.Linear(2, 2), args=(torch.ones(1, 2),), weights="cloud")


def test_iree_names_of_targets_are_accepted(tmp_path: Path) -> None:
    output = turbine.aot.export(torch.nn.ReLU(), args=(torch.ones(2),))
    output.compile(tmp_path / "relu.vmfb", target_backends="llvm-cpu")
    assert (tmp_path / "relu.vmfb").stat().st_size
    with pytest.raises(errors.ConfigError, match="unknown target backend 'llvm_cpu'"):
        output.compile(target_backends="llvm_cpu")
    with pytest.raises(errors.ConfigError, match="one target backend at a time"):
        output.compile(target="cpu", target_backends=["llvm-cpu"])


def test_a_suffix_of_another_format_is_rejected(tmp_path: Path) -> None:
    output = turbine.aot.export(torch.nn.ReLU(), args=(torch.ones(2),))
    artifact = output.compile()
    for write, name, told in (
        (output.compile, "relu.mlir", r"\.mlir is for IR as text, which ExportOutput.save_mlir"),
        (output.compile, "relu.pt2", r"\.pt2 is for a program of PyTorch"),
        (output.save_mlir, "relu.turbine", r"\.turbine is for an artifact"),
        (artifact.save, "relu.vmfb", r"\.vmfb is for code .*Artifact.save_vmfb"),
        (artifact.save_vmfb, "relu.turbine", r"\.turbine is for an artifact"),
    ):
        with pytest.raises(errors.ConfigError, match=told):
            write(tmp_path / name)
    artifact.save(tmp_path / "relu.release-1")
    assert [path.name for path in tmp_path.iterdir()] == ["relu.release-1"]
