"""A model, and archives of its weights in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turbine.aot import ParameterArchive, ParameterArchiveBuilder

X = torch.linspace(-1, 1, 96).reshape(3, 32)


class Net(nn.Module):
    """Sizes are whole blocks of the quantized formats."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Linear(32, 64)
            self.second = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(x)))
        return found


def tensors(path: Path) -> dict[str, Tensor]:
    return {key: entry.as_tensor() for key, entry in ParameterArchive(path).items()}


def save(path: Path, state: dict[str, Tensor]) -> Path:
    builder = ParameterArchiveBuilder()
    for name, tensor in state.items():
        builder.add_tensor(name, tensor)
    builder.save(path)
    return path


def save_gguf(path: Path, state: dict[str, Tensor], kinds: dict[str, str] | None = None) -> Path:
    """Write tensors as the gguf package does; those with a kind are quantized."""
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "long" * 10])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_name("Net")
    for name, tensor in state.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Swapping.


WRITERS: dict[str, Callable[[Path, dict[str, Tensor]], object]] = {
    ".irpa": save,
    ".safetensors": lambda path, state: save_file(state, path),
    ".gguf": save_gguf,
}
