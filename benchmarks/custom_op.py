"""Time a cached call of a custom op on 64 elements beside one of PyTorch's own ops.

Prints microseconds per call. Blocks of calls take turns; a time is the median or the best of all
blocks, and they agree on a quiet machine. An op as a class is timed by whoever has the import path
of iree-turbine, which is Turbine unless iree-turbine comes first on it:

    python benchmarks/custom_op.py --seconds 5
    pip install --no-deps --target peer iree-turbine
    PYTHONPATH=peer python benchmarks/custom_op.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timing import Call, round_robin, warn_if_busy
from torch import Tensor

from turbine import ops

ELEMENTS = 64
BLOCK = 50
GOAL_US = 20.0
PYTORCH = "torch.add"


@ops.custom_op("benchmark::scaled_add(Tensor x, Tensor y, float alpha=1.0) -> Tensor")
def scaled_add(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    return x + alpha * y


@torch.library.custom_op("benchmark::plain", mutates_args=())
def plain(x: Tensor, y: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.add(x, y, alpha=alpha)


def class_form() -> tuple[str, Callable[..., Tensor]]:
    """An op as scripts for iree-turbine declare it, and whose it is."""
    from iree.compiler.dialects import arith
    from iree.turbine.runtime.op_reg import CustomOp, def_library

    @CustomOp.register(library=def_library("benchmark_class"))  # type: ignore[misc]
    class add(CustomOp):  # type: ignore[misc]
        signature = "add(Tensor x, Tensor y) -> (Tensor)"

        def select(self, selection: Any) -> None:
            x = selection.arg_tensor(0)
            selection.arg_tensor(1)
            selection.return_new_tensor(list(x.t.shape), x.t.dtype)

        def generate(self, selection: Any, builder: Any) -> None:
            builder.yield_results(arith.addf(*builder.arg_bindings))

    owner = "turbine" if CustomOp.__module__.startswith("turbine.") else "iree-turbine"
    return f"torch.ops, class of {owner}", torch.ops.benchmark_class.add


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent calling")
    options = parser.parse_args(arguments)
    warn_if_busy()
    x, y = torch.randn(2, ELEMENTS).unbind(0)
    torch.testing.assert_close(scaled_add(x, y, 2.0), x + 2 * y)
    calls: dict[str, Call] = {
        PYTORCH: lambda: torch.add(x, y, alpha=2.0),
        "the op as it was declared": lambda: scaled_add(x, y, 2.0),
        "torch.ops": lambda: torch.ops.benchmark.scaled_add(x, y, 2.0),
        "torch.library.custom_op in Python": lambda: torch.ops.benchmark.plain(x, y, 2.0),
    }
    name, class_op = class_form()
    torch.testing.assert_close(class_op(x, y), x + y)
    calls[name] = lambda: class_op(x, y)
    timings = round_robin(calls, seconds=options.seconds, block=BLOCK)
    base = timings[PYTORCH]
    print(f"{'us per call':36}{'median':>8}{'best':>8}{'over torch.add':>16}")
    for name, timing in timings.items():
        over = 1e6 * (timing.best - base.best)
        print(f"{name:36}{1e6 * timing.median:8.1f}{1e6 * timing.best:8.1f}{over:16.1f}")
    print(f"{'goal':36}{'':16}{GOAL_US:16.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
