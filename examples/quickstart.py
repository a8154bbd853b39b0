"""Export, compile, save, load and run two models, and compare each with PyTorch.

python examples/quickstart.py          # ResNet-18 and a small GPT-2
python examples/quickstart.py --tiny   # the same at test size, in seconds
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import turbine
from turbine import zoo
from turbine.zoo import Example

ERROR_LIMIT = 1e-4
ROUNDS = 15


@dataclass(frozen=True)
class Row:
    name: str
    error: float
    eager_ms: float
    turbine_ms: float
    megabytes: float


def main() -> int:
    catalog = zoo.TINY if "--tiny" in sys.argv[1:] else zoo.MODELS
    with tempfile.TemporaryDirectory() as folder:
        rows = [run(name, catalog[name](), Path(folder)) for name in ("resnet18", "gpt2")]
    print(f"{'model':10}{'max error':>10}{'eager ms':>10}{'turbine ms':>12}{'ratio':>7}{'MB':>7}")
    for row in rows:
        print(
            f"{row.name:10}{row.error:10.1e}{row.eager_ms:10.2f}{row.turbine_ms:12.2f}"
            f"{row.eager_ms / row.turbine_ms:7.2f}{row.megabytes:7.1f}"
        )
    return 0 if all(row.error <= ERROR_LIMIT for row in rows) else 1


def run(name: str, example: Example, folder: Path) -> Row:
    # A PyTorch model and example arguments in; IR that can be read, saved and compiled out.
    say(f"{name}: exporting")
    exported = turbine.aot.export(example.model, args=example.args)
    say(f"{name}: {exported.signature.text()}")

    # One file with the code, the weights and the signature.
    say(f"{name}: compiling")
    path = folder / f"{name}.turbine"
    exported.compile(save_to=path)

    # Loading needs neither the model nor the compiler, nor even PyTorch (see no_torch.py).
    artifact = turbine.load(path)

    say(f"{name}: comparing with PyTorch")
    with torch.inference_mode():
        expected = example.model(*example.args)
        found = artifact(*example.args)
        eager_ms, turbine_ms = milliseconds(
            lambda: example.model(*example.args),
            lambda: artifact(*example.args),
        )
    megabytes = path.stat().st_size / 2**20
    return Row(name, max_error(found, expected), eager_ms, turbine_ms, megabytes)


def max_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def milliseconds(*calls: Callable[[], object]) -> list[float]:
    """The median time of each call; they take turns, so that other work falls on all of them."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, times in zip(calls, taken, strict=True):
            started = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - started))
    return [statistics.median(times) for times in taken]


def say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
