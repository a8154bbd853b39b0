"""Keep figures of a GPU in a file: those of a section in, beside other sections in results/ out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "triton", "iree-base-runtime")

Figures = Mapping[str, Mapping[str, float]]


def keep(section: str, figures: Figures, path: Path | None = None) -> None:
    """Write the figures of a section, by row and system; rows not measured now keep theirs."""
    path = path or RESULTS / f"{gpu_name()}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {"gpu": torch.cuda.get_device_name()}
    known |= {"versions": {package: version(package) for package in PACKAGES}}
    sections = known.setdefault("sections", {})
    sections[section] = sections.get(section, {}) | {
        name: {system: float(f"{value:.4g}") for system, value in row.items()}
        for name, row in figures.items()
    }
    path.write_text(json.dumps(known, indent=1) + "\n")


def gpu_name() -> str:
    """This machine's GPU as a file name: "h200"."""
    name = torch.cuda.get_device_name().lower().removeprefix("nvidia")
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")
