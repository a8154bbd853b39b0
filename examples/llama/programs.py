"""Export the decoder as one artifact with two entry points, its weights in a safetensors file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from examples.llama.decoder import Decoder, Size
from turbine.aot import ExportOutput, FxProgramsBuilder


def export(model: Decoder, size: Size) -> ExportOutput:
    """`prefill` takes any number of tokens, `decode` one; both share weights and the cache."""
    builder = FxProgramsBuilder(model)
    tokens = {0: Dim("tokens", min=2, max=size.length)}

    @builder.export_program(args=(torch.arange(8),), dynamic_shapes={"tokens": tokens})
    def prefill(module: Decoder, tokens: Tensor) -> Tensor:
        return module.prefill(tokens)

    @builder.export_program(args=(torch.arange(1),))
    def decode(module: Decoder, tokens: Tensor) -> Tensor:
        return module.decode(tokens)

    return turbine.aot.export(builder, module_name="llama")


def compile_to(folder: Path, model: Decoder, size: Size, bits: int | None = None) -> Path:
    """Write the artifact and return its place; float weights go to a safetensors file beside it."""
    output = export(model, size)
    if bits is not None:
        path = folder / f"llama_int{bits}.turbine"
        turbine.aot.quantize(output, bits=bits, group_size=32).compile(path)
        return path
    weights = folder / "llama.safetensors"
    save_weights(weights, model)
    output.compile(folder / "llama.turbine", archive=weights)
    return folder / "llama.turbine"


def save_weights(path: Path, model: nn.Module) -> None:
    """Parameters by their names, and the constants a program needs beside them."""
    from safetensors.torch import save_file

    constants = {name: b for name, b in model.named_buffers() if name == "frequencies"}
    save_file({**dict(model.named_parameters()), **constants}, path)
