"""Compile an export whose weights are packed, or left as they are."""

from pathlib import Path

import turbine
from turbine.aot import ExportOutput


def compile_packed(exported: ExportOutput, path: Path, bits: int | None) -> None:
    """Write an artifact; without bits, its weights are those of the export."""
    packed = exported if bits is None else turbine.aot.quantize(exported, bits=bits)
    packed.compile(path)
