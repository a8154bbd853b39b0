"""Time the first call of a compiled model: cold, and in a new process that finds a filled cache.

Each measurement is a process of its own. In every round turbine and Inductor start with empty
cache folders ("cold") and then again with what the cold start left there ("warm"). Prints a table
and writes the same figures as JSON; a time is from `torch.compile` to the first result.

    python benchmarks/compile_time.py --model resnet18 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from timing import warn_if_busy

from turbine.tables import table

BACKENDS = ("turbine", "inductor")
RESULTS = Path(__file__).resolve().parent / "results" / "compile_time.json"
# What a warm start has to gain for turbine; below it the exit code says so.
WARM_GAIN = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.first_call is not None:
        print(first_call(options.first_call, options))
        return 0
    warn_if_busy()
    taken = measure(options)
    print(table([("backend", "cold s", "warm s", "cold / warm", "best"), *map(row, taken.items())]))
    both = [taken[backend]["cold"] for backend in BACKENDS if taken[backend]["cold"]]
    if len(both) == len(BACKENDS):
        ours, theirs = map(statistics.median, both)
        print(f"cold: turbine takes {ours / theirs:.2f} of Inductor's time")
    save(taken, options)
    return 0 if gain(taken["turbine"]) >= WARM_GAIN else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet18", help="a model of the zoo")
    parser.add_argument("--tiny", action="store_true", help="the model at test size")
    parser.add_argument("--training", action="store_true", help="with the gradients")
    parser.add_argument("--rounds", type=int, default=3, help="cold and warm starts of each")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--first-call", choices=BACKENDS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


Taken = dict[str, dict[str, list[float]]]


def measure(options: argparse.Namespace) -> Taken:
    taken: Taken = {backend: {"cold": [], "warm": []} for backend in BACKENDS}
    for number in range(options.rounds):
        for backend in BACKENDS[: 1 if options.no_inductor else None]:
            with tempfile.TemporaryDirectory() as folder:
                for start in ("cold", "warm"):
                    print(f"round {number + 1}, {backend}, {start} ...", file=sys.stderr)
                    seconds = in_new_process(backend, folder, options)
                    if seconds is not None:
                        taken[backend][start].append(seconds)
    return taken


def in_new_process(backend: str, folder: str, options: argparse.Namespace) -> float | None:
    caches = {
        "TURBINE_CACHE_DIR": f"{folder}/turbine",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    flags = [f"--{name}" for name in ("tiny", "training") if vars(options)[name]]
    command = [__file__, "--first-call", backend, "--model", options.model, *flags]
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | caches,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"no figure for {backend} (Inductor needs a C++ compiler)", file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def first_call(backend: str, options: argparse.Namespace) -> float:
    """Seconds from `torch.compile` to the first result, all imports done before."""
    import torch

    import turbine.dynamo
    from turbine import zoo

    assert turbine.dynamo
    example = (zoo.TINY if options.tiny else zoo.MODELS)[options.model]()
    example.model.train(options.training)
    started = time.perf_counter()
    with torch.set_grad_enabled(options.training):
        result = torch.compile(example.model, backend=backend)(*example.args, **example.kwargs)
        if options.training:
            result.sum().backward()
    return time.perf_counter() - started


def row(item: tuple[str, dict[str, list[float]]]) -> tuple[str, ...]:
    backend, taken = item
    if not taken["cold"] or not taken["warm"]:
        return backend, "-", "-", "-", "-"
    cold, warm = statistics.median(taken["cold"]), statistics.median(taken["warm"])
    best = min(taken["cold"]) / min(taken["warm"])
    return backend, f"{cold:.2f}", f"{warm:.2f}", f"{cold / warm:.1f}", f"{best:.1f}"


def gain(taken: dict[str, list[float]]) -> float:
    if not taken["cold"] or not taken["warm"]:
        return 0.0
    return statistics.median(taken["cold"]) / statistics.median(taken["warm"])


def save(taken: Taken, options: argparse.Namespace) -> None:
    report = {
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count()},
        "load": os.getloadavg()[0],
        "model": options.model,
        "tiny": options.tiny,
        "training": options.training,
        "seconds": taken,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"figures written to {options.output}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
