"""Time the decode step of a Llama-style block with weights of 32, 8 and 4 bits.

Prints a row for each: milliseconds of a call (best and median), how many times faster than the
float32 artifact by the best times, bytes of weights, the peak of resident memory that loading and
calling added, and the error of the result against float32. All take turns in one process.

    python benchmarks/quantized_block.py --dim 2048 --hidden 5632 --rows 1 --seconds 10
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from timing import Call, round_robin, warn_if_busy

import turbine
from turbine import tables
from turbine.aot import ExportOutput
from turbine.zoo.decoder import LlamaBlock

# Runs in a process of its own: how much the peak of resident memory rises.
_PEAK = r"""
import re, sys
from pathlib import Path
import numpy, turbine
def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
turbine.load(sys.argv[1])(numpy.ones(2, dtype=numpy.float32))
x = numpy.ones((1, int(sys.argv[3]), int(sys.argv[4])), dtype=numpy.float32)
before = peak()
turbine.load(sys.argv[2])(x)
print(peak() - before)
"""


def main() -> None:
    options = _options()
    warn_if_busy()
    torch.manual_seed(0)
    block = LlamaBlock(options.dim, options.hidden, options.dim // 64, options.dim // 256).eval()
    x = torch.randn(1, options.rows, options.dim)
    whole = turbine.aot.export(block, args=(x,))
    outputs = {"float32": whole}
    for bits in (8, 4):
        for size in options.groups:
            name = f"{bits} bits by {size}"
            outputs[name] = turbine.aot.quantize(whole, bits=bits, group_size=size)
    print(tables.table(_rows(block, x, outputs, options), right=range(1, 7)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=5632)
    parser.add_argument("--rows", type=int, default=1, help="tokens at once")
    parser.add_argument("--groups", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--seconds", type=float, default=10)
    return parser.parse_args()


def _rows(
    block: LlamaBlock,
    x: torch.Tensor,
    outputs: dict[str, ExportOutput],
    options: argparse.Namespace,
) -> list[tuple[str, ...]]:
    head = ("weights", "best ms", "median", "x float32", "bytes", "peak memory", "error")
    rows = [head]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        expected = block(x)
        paths = {name: Path(folder) / f"{i}.turbine" for i, name in enumerate(outputs)}
        artifacts = {name: out.compile(paths[name]) for name, out in outputs.items()}
        calls: dict[str, Call] = {"eager": lambda: block(x)}
        for name, artifact in artifacts.items():
            calls[name] = lambda artifact=artifact: artifact(x)
        times = round_robin(calls, seconds=options.seconds)
        for name, time in times.items():
            ratio = times["float32"].best / time.best
            row = (name, f"{time.best * 1e3:.2f}", f"{time.median * 1e3:.2f}", f"{ratio:.2f}")
            if name not in artifacts:
                rows.append((*row, "", "", ""))
                continue
            count = sum(fact["length"] for fact in artifacts[name].manifest["weights"])
            error = ((artifacts[name](x) - expected).norm() / expected.norm()).item()
            peak = tables.bytes_text(_peak(paths[name], Path(folder), x))
            rows.append((*row, tables.bytes_text(count), peak, f"{error:.1e}"))
    return rows


def _peak(path: Path, folder: Path, x: torch.Tensor) -> int:
    tiny = folder / "tiny.turbine"
    if not tiny.exists():
        turbine.aot.export(torch.nn.ReLU(), args=(torch.ones(2),)).compile(tiny)
    command = [sys.executable, "-c", _PEAK, str(tiny), str(path), *map(str, x.shape[1:])]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
