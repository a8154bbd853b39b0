"""Run a kernel's graph with torch, one program after the other.

This is slow and meant for debugging. Out-of-bounds and uninitialized elements read as nan. It is an
error if two programs write one element, or if one reads an element that another writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from turbine.algebra import Symbol
from turbine.dtypes import Dtype
from turbine.kernel.backends.interpret import accesses, regions
from turbine.kernel.backends.interpret.frame import Frame, Watch
from turbine.kernel.backends.interpret.memory import Memory
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.trace.types import BufferType, tensor_of

_RULES = accesses.RULES | regions.RULES


def run(
    program: KernelProgram,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
    watch: Watch | None = None,
) -> dict[str, Tensor]:
    """Run every program of the grid; returns outputs by name, and updates in-out buffers."""
    memories = run_in_memory(program, sizes, args, watch)
    return {p.name: memories[p.name].tensor for p in program.of_usage("output")}


def run_in_memory(
    program: KernelProgram,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
    watch: Watch | None = None,
) -> dict[str, Memory]:
    """Run every program of the grid; returns its buffers."""
    memories = {}
    for parameter in program.parameters:
        if isinstance(parameter.type, BufferType):
            shape = [size.evaluate(sizes) for size in parameter.type.shape]
            given = args.get(parameter.name)
            memories[parameter.name] = Memory.of(parameter.name, parameter.type, given, shape)
    grid = [count.evaluate(sizes) for count in program.grid]
    for number, ids in enumerate(itertools.product(*map(range, grid))):
        _reset_temporaries(memories, program, sizes)
        _run_one(program, sizes, args, memories, (number, ids), watch)
    return memories


def _reset_temporaries(
    memories: dict[str, Memory], program: KernelProgram, sizes: Mapping[Symbol, int]
) -> None:
    """Allocate the temporaries of the next program."""
    for parameter in program.of_usage("temporary"):
        assert isinstance(parameter.type, BufferType)
        shape = [size.evaluate(sizes) for size in parameter.type.shape]
        memories[parameter.name] = Memory.of(parameter.name, parameter.type, None, shape)


def _run_one(
    program: KernelProgram,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
    memories: dict[str, Memory],
    where: tuple[int, tuple[int, ...]],
    watch: Watch | None,
) -> None:
    number, ids = where
    known = dict(sizes)
    known.update({Symbol(f"program_id({a})", "program", a): i for a, i in enumerate(ids)})
    frame = Frame(known, number, ids, _RULES, watch)
    for parameter, node in zip(program.parameters, program.graph.nodes, strict=False):
        if parameter.name in memories:
            frame.values[node] = memories[parameter.name]
            continue
        dtype = parameter.type.dtype
        assert isinstance(dtype, Dtype)
        frame.values[node] = tensor_of(args[parameter.name], dtype)
    frame.run(program.graph)
