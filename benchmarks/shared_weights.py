"""Memory and start of processes that serve one artifact on a machine.

Each process loads the same file, calls it and waits; the memory of all of them is their PSS, in
which a page that n processes share counts 1/n for each.

    python benchmarks/shared_weights.py --processes 1 4
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from timing import warn_if_busy

import turbine
from turbine import zoo
from turbine.tables import table

CHILD = """
import sys, time
import numpy, turbine, turbine.runtime.artifact
path, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
started = time.perf_counter()
artifact = turbine.load(path, threads=1)
loaded = time.perf_counter()
artifact(numpy.zeros((rows, width), "float32"))
print((loaded - started) * 1e3, (time.perf_counter() - loaded) * 1e3, flush=True)
sys.stdin.readline()
lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
fields = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines}
print(fields["Pss:"], fields["Private_Dirty:"], flush=True)
sys.stdin.readline()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--features", type=int, default=2048)
    options = parser.parse_args(arguments)
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.turbine"
        width = options.features
        example = zoo.mlp(batch=options.rows, features=width, hidden=4 * width)
        turbine.aot.export(example.model, args=example.args).compile(path)
        print(f"a file of {path.stat().st_size / 2**20:.0f} MiB")
        rows = [measure(path, options, count) for count in options.processes]
    names = ("processes", "load ms", "first call ms", "all MiB", "of each alone MiB")
    print(table([names, *rows], right=set(range(len(names)))))
    return 0


def measure(path: Path, options: argparse.Namespace, count: int) -> tuple[str, ...]:
    """Start processes, and let all of them look at their memory while all of them have it."""
    words = [sys.executable, "-c", CHILD, str(path), str(options.rows), str(options.features)]
    children = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    times = [read(child) for child in children]
    for child in children:
        proceed(child)
    sizes = [read(child) for child in children]
    for child in children:
        proceed(child)
        child.communicate()
    load, first = (statistics.median(column) for column in zip(*times, strict=True))
    pss, dirty = zip(*sizes, strict=True)
    shown = (load, first, sum(pss), statistics.mean(dirty))
    return str(count), f"{load:.1f}", *(f"{value:.0f}" for value in shown[1:])


def read(child: subprocess.Popen[str]) -> list[float]:
    assert child.stdout is not None
    return [float(word) for word in child.stdout.readline().split()]


def proceed(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


if __name__ == "__main__":
    sys.exit(main())
