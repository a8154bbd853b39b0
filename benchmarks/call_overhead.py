"""Time one call of a graph so small that calling it is all it costs: four ops on 64 elements.

Prints microseconds per call, and where those of a turbine artifact go. Blocks of calls take turns;
a time is the median or the best of all blocks, and they agree on a quiet machine.

    python benchmarks/call_overhead.py --seconds 5
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as iree
import torch
from timing import Call, Timing, round_robin, warn_if_busy
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack, to_dlpack

import turbine
from turbine.runtime import container
from turbine.runtime import device as devices
from turbine.runtime.artifact import Artifact
from turbine.runtime.variants import CODE

ELEMENTS = 64
BLOCK = 50
DLPACK_CPU = 1
GOAL_US = 25.0
# Another torch.compile backend over IREE on a graph of four ops; not measured by this script.
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
        floor = floor_calls(path, artifact, x, y)
    with torch.inference_mode():
        torch.testing.assert_close(artifact(x, y), model(x, y))
        calls = whole_calls(model, artifact, x, y, inductor=not options.no_inductor)
        timings = round_robin({**calls, **floor}, seconds=options.seconds, block=BLOCK)
    print(f"{'us per call':30}{'median':>8}{'best':>8}")
    for name in calls:
        print(f"{name:30}{1e6 * timings[name].median:8.1f}{1e6 * timings[name].best:8.1f}")
    print(f"{'another backend over IREE':30}{MEASURED_ELSEWHERE_US:8.1f}  (measured elsewhere)")
    print(f"{TORCH_CALL + ', goal':30}{GOAL_US:8.1f}")
    print(breakdown(timings, floor))
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


def floor_calls(path: Path, artifact: Artifact, x: Tensor, y: Tensor) -> dict[str, Call]:
    """What no call can do without, straight on IREE and on a second copy of the loaded program."""
    instance, device = devices.instance(), devices.device(artifact.driver)
    module = iree.VmModule.wrap_buffer(instance, container.open_file(path).bytes_of(CODE))
    context = iree.VmContext(instance, [iree.create_hal_module(instance, device), module])
    function = module.lookup_function(artifact.function().name)

    def share() -> list[Any]:
        return [device.from_dlpack_capsule(to_dlpack(tensor)) for tensor in (x, y)]

    def invoke() -> Any:
        inputs, results = iree.VmVariantList(len(views)), iree.VmVariantList(1)
        for view in views:
            inputs.push_ref(view)
        context.invoke(function, inputs, results)
        return results

    def take() -> Tensor:
        view = results.get_as_object(0, iree.HalBufferView)
        return from_dlpack(device.create_dlpack_capsule(view, DLPACK_CPU, 0))

    views = share()
    results = invoke()
    return {"share two tensors": share, "invoke": invoke, "take the result": take}


def breakdown(timings: Mapping[str, Timing], floor: Iterable[str]) -> str:
    """One line: IREE's share of a call at its best, and what turbine adds to it."""
    steps = {name: 1e6 * timings[name].best for name in floor}
    added = 1e6 * timings[TORCH_CALL].best - sum(steps.values())
    listed = ", ".join(f"{name} {us:.1f}" for name, us in steps.items())
    return f"best of turbine: {listed}, checks and bookkeeping {added:.1f}"


if __name__ == "__main__":
    sys.exit(main())
