"""Measure the memory bandwidth and the f32 throughput of this machine.

Note [Measured peak]
Each core runs a loop of fma in registers, as wide as the target's vectors, with enough independent
chains to hide their latency. No clock rate or number of units is assumed, so this works on any CPU.
The best of many short runs counts, since other processes can only slow a run down. A matmul of
PyTorch is timed too and counts if it is faster: its library may use instructions that the target
does not have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from turbine import dtypes
from turbine.compiler import host, pipeline
from turbine.kernel.backends.iree.module import DISPATCH_ATTRIBUTES
from turbine.runtime.device import TASK
from turbine.runtime.tensor_call import TensorCall
from turbine.signature import Slot
from turbine.target import Target

# Independent fma chains of a core, and iterations of a workgroup.
_CHAINS, _ITERATIONS = 12, 50_000
_GROUPS_PER_CORE = 4
_COPIED, _MULTIPLIED = 2**24, 512


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of this machine."""

    bandwidth: float  # bytes per second, read and written
    operations: float  # of f32 per second; Note [Measured peak]
    cores: int


@cache
def peaks() -> Peaks:
    """Measure the peaks, once in a process."""
    cores = len(os.sched_getaffinity(0))
    source, copied = torch.ones(_COPIED), torch.empty(_COPIED)
    copying = best_seconds(lambda: copied.copy_(source))
    operations = max(_measure_fma(cores), _measure_matmul())
    return Peaks(2 * 4 * _COPIED / copying, operations, cores)


def best_seconds(call: Callable[[], object], at_most: float = 0.3) -> float:
    """The shortest time of repeated calls."""
    call()
    best, total = float("inf"), 0.0
    while total < at_most:
        started = time.perf_counter()
        call()
        seconds = time.perf_counter() - started
        best, total = min(best, seconds), total + seconds
    return best


def _measure_matmul() -> float:
    """Operations per second of torch.mm."""
    one = torch.ones(_MULTIPLIED, _MULTIPLIED)
    product = torch.empty_like(one)
    return 2 * _MULTIPLIED**3 / best_seconds(lambda: torch.mm(one, one, out=product))


def _measure_fma(cores: int) -> float:
    """Operations per second of fma in registers, on all cores."""
    target, groups = host.default_target(), _GROUPS_PER_CORE * cores
    code = pipeline.compile_ir(loop_text(target, groups).encode(), target)
    results = [Slot(dtypes.from_torch_name("float32"))]
    call = TensorCall.load(code.data, TASK, "main", [], results)
    operations = 2 * _CHAINS * _lanes(target) * _ITERATIONS * groups
    return operations / best_seconds(lambda: call([]))


def _lanes(target: Target) -> int:
    return target.vector_bytes // 4


def loop_text(target: Target, groups: int) -> str:
    """A dispatch whose workgroups run independent chains of fma and store their sums."""
    vector, places = f"vector<{_lanes(target)}xf32>", range(_CHAINS)
    starts = [f"%start{i} = arith.constant dense<{i}.0> : {vector}" for i in places]
    carried = ", ".join(f"%x{i} = %start{i}" for i in places)
    types = ", ".join([vector] * _CHAINS)
    steps = [line for i in places for line in _step(target, i, vector)]
    sums = [f"%sum1 = arith.addf %loop#0, %loop#1 : {vector}"]
    sums += [f"%sum{i} = arith.addf %sum{i - 1}, %loop#{i} : {vector}" for i in places[2:]]
    given = ", ".join(f"%y{i}" for i in places)
    return "\n".join(
        [
            "stream.executable private @code {",
            "stream.executable.export public @code workgroups(%n: index)"
            " -> (index, index, index) {",
            "  %one = arith.constant 1 : index",
            "  stream.return %n, %one, %one : index, index, index",
            "}",
            "builtin.module {",
            "func.func @code(%iterations: index, %bound: !stream.binding)"
            f" attributes {{{DISPATCH_ATTRIBUTES}}} {{",
            "%workgroup = stream.dispatch.workgroup.id[0] : index",
            "%c0 = arith.constant 0 : index",
            "%c1 = arith.constant 1 : index",
            "%integer = arith.index_castui %iterations : index to i64",
            "%number = arith.uitofp %integer : i64 to f32",
            f"%one = vector.broadcast %number : f32 to {vector}",
            f"%other = arith.constant dense<0.3> : {vector}",
            f"%out = stream.binding.subspan %bound[%c0] : !stream.binding -> memref<{groups}xf32>",
            *starts,
            f"%loop:{_CHAINS} = scf.for %i = %c0 to %iterations step %c1"
            f" iter_args({carried}) -> ({types}) {{",
            *steps,
            f"scf.yield {given} : {types}",
            "}",
            *sums,
            f"%total = vector.reduction <add>, %sum{_CHAINS - 1} : {vector} into f32",
            f"memref.store %total, %out[%workgroup] : memref<{groups}xf32>",
            "return",
            "}",
            "}",
            "}",
            f"func.func public @main() -> tensor<{groups}xf32> {{",
            f"%constant = arith.constant {_ITERATIONS} : index",
            # Without a barrier IREE would run the dispatch once, when the module is loaded.
            "%iterations = util.optimization_barrier %constant : index",
            f"%groups = arith.constant {groups} : index",
            "%made = flow.dispatch @code::@code[%groups](%iterations)"
            f" : (index) -> tensor<{groups}xf32>",
            f"return %made : tensor<{groups}xf32>",
            "}",
        ]
    )


def _step(target: Target, place: int, vector: str) -> list[str]:
    x, y = f"%x{place}", f"%y{place}"
    if target.architecture == "aarch64" or "+fma" in target.features.split(","):
        return [f"{y} = math.fma %one, %other, {x} : {vector}"]
    # Two instructions; the product depends on the loop, or it would be hoisted.
    times = f"%t{place}"
    return [
        f"{times} = arith.mulf {x}, %other : {vector}",
        f"{y} = arith.addf {times}, %one : {vector}",
    ]
