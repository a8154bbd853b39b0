"""Recommend from tables that are larger than memory has to be: they stay in a mapped archive.

    python -m examples.recipes.recommend --rows 1000000        # eight tables, 1 GB together

The model is a DLRM: users have features and bags of categories, and each category is a row of a
table. The artifact has the code, the archive beside it the tables. A process without PyTorch maps
the archive and answers; the program prints its memory, and compares the answers with PyTorch's.
With each row Linux maps what lies around it, and takes it back when others need memory.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

import turbine
from turbine import tables

ERROR_LIMIT = 1e-5
TABLES, FEATURES, WIDTH, BAG = 8, 13, 32, 4


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.serve is not None:
        print(json.dumps(serve(options.serve, options.users, options.calls)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        expected = compile_to(Path(folder), options)
        size = (Path(folder) / "tables.irpa").stat().st_size
        found = serve_in_process(Path(folder), options)
    print(f"tables of {tables.bytes_text(size)} in the archive, {WIDTH} floats a row")
    print(tables.table(memory_rows(found["memory"]), right=(1, 2)))
    print(f"{options.users / found['seconds']:.0f} users/s, in calls of {options.users}")
    error = max(abs(a - b) for a, b in zip(found["scores"], expected, strict=True))
    print(f"the probabilities differ from PyTorch's by {error:.1e}")
    return 0 if error <= ERROR_LIMIT else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="of each of eight tables")
    parser.add_argument("--users", type=int, default=64, help="in a call")
    parser.add_argument("--calls", type=int, default=100, help="each with other users")
    parser.add_argument("--folder", type=Path, help="where the files are while it runs")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if min(options.rows, options.users, options.calls) < 1:
        parser.error("--rows, --users and --calls are at least 1")
    return options


def compile_to(folder: Path, options: argparse.Namespace) -> list[float]:
    """Write artifact, archive and requests; return what PyTorch answers to the first one."""
    import torch

    from turbine.zoo.recommender import embeddingbag

    sizes = {"tables": TABLES, "dense": FEATURES, "dim": WIDTH, "bag": BAG}
    example = embeddingbag(batch=options.users, rows=options.rows, **sizes)
    exported = turbine.aot.export(example.model, args=example.args)
    exported.compile(folder / "recommend.turbine", archive=folder / "tables.irpa")
    dense, ids, offsets = example.args
    numpy.savez(folder / "request.npz", dense=dense, ids=ids, offsets=offsets, rows=options.rows)
    with torch.inference_mode():
        scores: list[float] = example.model(*example.args).tolist()
    return scores


def serve_in_process(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a process says that has only the files."""
    command = [sys.executable, __file__, "--serve", str(folder)]
    command += ["--users", str(options.users), "--calls", str(options.calls)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def serve(folder: Path, users: int, calls: int) -> dict[str, Any]:
    """Answer requests, and watch the memory."""
    memory = {"at first": read_memory()}
    artifact = turbine.load(folder / "recommend.turbine")
    memory["loaded"] = read_memory()
    request = numpy.load(folder / "request.npz")
    dense, ids, offsets = (list(request[name]) for name in ("dense", "ids", "offsets"))
    scores = artifact(numpy.stack(dense), ids, offsets)
    memory["after a call"] = read_memory()
    random = numpy.random.default_rng(0)
    seconds = []
    for _ in range(calls):
        others = draw(random, int(request["rows"]), ids)
        started = time.perf_counter()
        artifact(numpy.stack(dense), others, offsets)
        seconds.append(time.perf_counter() - started)
    memory["at the end"] = read_memory()
    return {
        "memory": memory,
        "scores": scores.tolist(),
        "seconds": sorted(seconds)[len(seconds) // 2],
    }


def draw(random: numpy.random.Generator, rows: int, like: Sequence[Any]) -> list[Any]:
    """Categories of other users."""
    return [random.integers(rows, size=len(ids)) for ids in like]


def read_memory() -> list[int]:
    """Bytes of memory that the process has for itself, and pages of mapped files."""
    status = Path("/proc/self/status").read_text()
    return [1024 * int(kb) for kb in re.findall(r"^Rss(?:Anon|File):\s+(\d+) kB", status, re.M)]


def memory_rows(memory: dict[str, list[int]]) -> list[list[str]]:
    rows = [["", "its own", "mapped"]]
    return rows + [[name, *map(tables.bytes_text, sizes)] for name, sizes in memory.items()]


if __name__ == "__main__":
    sys.exit(main())
