"""Time the way from a new process to the first result, and the memory it takes.

Each measurement is a process of its own: an artifact on numpy arrays where torch cannot be
imported, and the same model in eager PyTorch. Prints a table of medians; memory is the most that
the process had resident, with the pages of the mapped files that it touched.

    python benchmarks/startup.py --models lenet,resnet18 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from timing import warn_if_busy

from turbine.tables import table

PARTS = ("import", "load", "first call", "next call")
# Programs of child processes; `part` ends a part of the start.
BEFORE = """
import json, sys, time
started, seconds = time.perf_counter(), []
def part():
    seconds.append(time.perf_counter() - started - sum(seconds))
"""
ARTIFACT = """
sys.modules["torch"] = None
import numpy
import turbine.runtime.artifact
arguments = [numpy.zeros(shape, dtype) for shape, dtype in json.loads(sys.argv[2])]
part()
model = turbine.load(sys.argv[1])
"""
EAGER = """
import torch
from turbine import zoo
part()
example = zoo.MODELS[sys.argv[1]]()
arguments, model = example.args, example.model.eval()
torch.set_grad_enabled(False)
"""
AFTER = """
part()
model(*arguments)
part()
model(*arguments)
part()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([*seconds, int(peak.split()[1]) / 1024]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    rows = [("model", *(f"{name} ms" for name in (*PARTS, "start to result")), "memory MiB")]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models.split(","):
            file, inputs = compile_model(name, Path(folder))
            words = {
                f"{name}, artifact": (ARTIFACT, str(file), inputs),
                f"{name}, eager": (EAGER, name),
            }
            rows += [
                row(label, *command, rounds=options.rounds) for label, command in words.items()
            ]
    print(table(rows, right=range(1, len(rows[0]))))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="lenet,resnet18", help="models of the zoo")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    return parser.parse_args(arguments)


def compile_model(name: str, folder: Path) -> tuple[Path, str]:
    """An artifact of a model of the zoo, and the types of its arguments as JSON."""
    import turbine
    from turbine import zoo

    example = zoo.MODELS[name]()
    exported = turbine.aot.export(example.model.eval(), args=example.args, kwargs=example.kwargs)
    exported.compile(folder / f"{name}.turbine")
    tensors = [spec for spec in exported.signature.inputs if spec.kind == "tensor"]
    return folder / f"{name}.turbine", json.dumps([(spec.shape, spec.dtype) for spec in tensors])


def row(label: str, program: str, *words: str, rounds: int) -> tuple[str, ...]:
    """The medians of the rounds, as text; the first, which fills the page cache, is left out."""
    code = f"{BEFORE}{program}{AFTER}"
    figures = []
    for _ in range(rounds + 1):
        print(f"{label} ...", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, check=True
        )
        figures.append(json.loads(done.stdout))
    *seconds, memory = (statistics.median(column) for column in zip(*figures[1:], strict=True))
    times = [*seconds, sum(seconds[:3])]
    return label, *(f"{second * 1e3:.1f}" for second in times), f"{memory:.0f}"


if __name__ == "__main__":
    sys.exit(main())
