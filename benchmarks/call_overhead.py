"""Time one call of a graph so small that calling it is all it costs: four ops on 64 elements.

Prints microseconds per call, and where those of a turbine artifact go. Blocks of calls take turns;
times are medians over blocks.

    python benchmarks/call_overhead.py --seconds 5
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import iree.runtime
import torch
from timing import Call, Timing, round_robin, warn_if_busy
from torch import Tensor, nn

import turbine
from turbine import dtypes
from turbine.runtime import container, torch_buffers
from turbine.runtime.artifact import CODE, Artifact
from turbine.runtime.executable import Executable

ELEMENTS = 64
BLOCK = 200
GOAL_US = 25.0
# Another torch.compile backend over IREE on a graph of this size, from a machine unlike this one.
MEASURED_ELSEWHERE_US = 313.0


class FourOps(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((x + y) * x - y).relu()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    x, y = torch.randn(2, ELEMENTS).unbind(0)
    model = FourOps()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "four_ops.turbine"
        artifact = turbine.aot.export(model, args=(x, y)).compile(path)
        pieces = piece_calls(path, artifact, x, y)
    with torch.inference_mode():
        torch.testing.assert_close(artifact(x, y), model(x, y))
        calls = whole_calls(model, artifact, x, y, inductor=not options.no_inductor)
        timings = round_robin({**calls, **pieces}, seconds=options.seconds, block=BLOCK)
    for name in calls:
        print(f"{name:34}{microseconds(timings[name]):8.1f} us")
    print(f"{'another backend over IREE':34}{MEASURED_ELSEWHERE_US:8.1f} us (measured elsewhere)")
    print(f"{'goal for turbine, torch tensors':34}{GOAL_US:8.1f} us")
    print(breakdown(timings, pieces))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent calling")
    parser.add_argument("--no-inductor", action="store_true", help="leave torch.compile out")
    return parser.parse_args(arguments)


TORCH_CALL = "turbine, torch tensors"


def whole_calls(
    model: nn.Module, artifact: Artifact, x: Tensor, y: Tensor, *, inductor: bool
) -> dict[str, Call]:
    """The ways to call the graph, by name."""
    a, b = x.numpy(), y.numpy()
    calls: dict[str, Call] = {
        TORCH_CALL: lambda: artifact(x, y),
        "turbine, numpy arrays": lambda: artifact(a, b),
        "eager PyTorch": lambda: model(x, y),
    }
    if inductor:
        compiled = torch.compile(model)
        try:
            compiled(x, y)
        except RuntimeError as error:
            print(f"no Inductor figure: {error}", file=sys.stderr)
        else:
            calls["torch.compile, Inductor"] = lambda: compiled(x, y)
    return calls


def piece_calls(path: Path, artifact: Artifact, x: Tensor, y: Tensor) -> dict[str, Call]:
    """The steps of a call that can be taken alone, on a second copy of the loaded program."""
    contents = container.open_file(path)
    function = artifact.manifest["function"]
    executable = Executable(contents.bytes_of(CODE), artifact.driver, lambda: [], function)
    device, dtype = executable.device, dtypes.named("float32")
    arguments = [torch_buffers.to_view(device, tensor, dtype) for tensor in (x, y)]
    results = executable.invoke(arguments, 1)
    view = results.get_as_object(0, iree.runtime.HalBufferView)
    return {
        "import two tensors": lambda: [torch_buffers.to_view(device, t, dtype) for t in (x, y)],
        "invoke": lambda: executable.invoke(arguments, 1),
        "export the result": lambda: torch_buffers.from_view(device, view, dtype),
    }


def breakdown(timings: Mapping[str, Timing], pieces: Iterable[str]) -> str:
    """One line: the steps, and what is left of a whole call for checks and bookkeeping."""
    steps = {name: microseconds(timings[name]) for name in pieces}
    steps["checks and the rest"] = microseconds(timings[TORCH_CALL]) - sum(steps.values())
    return "of a turbine call: " + ", ".join(f"{name} {us:.1f}" for name, us in steps.items())


def microseconds(timing: Timing) -> float:
    return 1e6 * timing.median


if __name__ == "__main__":
    sys.exit(main())
