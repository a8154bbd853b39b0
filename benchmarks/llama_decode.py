"""Decode with the Llama example: eager PyTorch, and artifacts with weights of 32, 8 and 4 bits.

Prints tokens a second (by the best and the median step), how many times faster than eager, bytes
of weights, and the peak of resident memory that a process without PyTorch adds to load and decode.
All steps take turns in one process.

    python benchmarks/llama_decode.py --width 1024 --layers 4 --seconds 20
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from timing import round_robin, warn_if_busy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import turbine
from examples.llama.decoder import Decoder, Size, decoder
from examples.llama.programs import compile_to
from turbine import tables

PROMPT = torch.arange(16)
LONGEST = 128  # steps of a conversation
# Runs in a process of its own: how much the peak of resident memory rises.
_PEAK = r"""
import re, sys
from pathlib import Path
import numpy, turbine
def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
turbine.load(sys.argv[1])(numpy.ones(2, dtype=numpy.float32))
before = peak()
artifact = turbine.load(sys.argv[2])
artifact.prefill(numpy.arange(16))
for _ in range(4):
    artifact.decode(numpy.arange(1))
print(peak() - before)
"""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    size = Size(
        width=options.width,
        hidden=options.width * 11 // 4,
        layers=options.layers,
        heads=options.width // 64,
        key_heads=max(options.width // 256, 1),
    )
    model = decoder(size)
    with tempfile.TemporaryDirectory() as folder:
        kinds = {name: BITS[name] for name in options.kinds}
        places = {name: compile_to(Path(folder), model, size, bits) for name, bits in kinds.items()}
        print(tables.table(rows(model, places, Path(folder), options), right=range(1, 6)))
    return 0


BITS = {"float32": None, "int8": 8, "int4": 4}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 64")
    parser.add_argument("--kinds", nargs="+", choices=BITS, default=list(BITS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    return parser.parse_args(arguments)


def rows(
    model: Decoder, places: dict[str, Path], folder: Path, options: argparse.Namespace
) -> list[tuple[str, ...]]:
    artifacts = {name: turbine.load(path) for name, path in places.items()}
    steps = {"eager": step(model.prefill, model.decode)}
    for name, artifact in artifacts.items():
        steps[name] = step(artifact.prefill, artifact.decode)
    times = round_robin(steps, seconds=options.seconds)
    shown = [("weights", "tokens/s", "median", "x eager", "bytes", "peak memory")]
    for name, time in times.items():
        ratio = times["eager"].best / time.best
        row = (name, f"{1 / time.best:.0f}", f"{1 / time.median:.0f}", f"{ratio:.2f}")
        if name not in artifacts:
            held = sum(parameter.nbytes for parameter in model.parameters())
            shown.append((*row, tables.bytes_text(held), ""))
            continue
        held = sum(fact["length"] for fact in artifacts[name].manifest["weights"])
        peak = tables.bytes_text(peak_memory(places[name], folder))
        shown.append((*row, tables.bytes_text(held), peak))
    return shown


def step(prefill: Callable[..., object], decode: Callable[..., object]) -> Callable[[], object]:
    """One token more; a conversation that is full begins anew."""
    count = 0

    def one_more() -> object:
        nonlocal count
        if count % LONGEST == 0:
            prefill(PROMPT)
        count += 1
        return decode(PROMPT[:1])

    return one_more


def peak_memory(path: Path, folder: Path) -> int:
    tiny = folder / "tiny.turbine"
    if not tiny.exists():
        turbine.aot.export(torch.nn.ReLU(), args=(torch.ones(2),)).compile(tiny)
    command = [sys.executable, "-c", _PEAK, str(tiny), str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
