"""Place kernels in exported programs, for a fixed target."""

from __future__ import annotations

from torch import Tensor, nn

import turbine
from turbine.capture.program import Program
from turbine.library import place_kernels
from turbine.target import Target

AVX512 = Target("cpu", "skylake-avx512", "+avx512f", "x86_64")
NEON = Target("cpu", "neoverse-n1", "", "aarch64")


def exported(model: nn.Module, *args: Tensor, dynamic_shapes: object = None) -> Program:
    return turbine.aot.export(model.eval(), args=args, dynamic_shapes=dynamic_shapes).program


def placed(program: Program, target: Target = NEON) -> Program:
    """The program with kernels, or as it is if there are none for it."""
    found = place_kernels({"main": program}, lambda: target)
    return program if found is None else found["main"]


def count(program: Program, *ops: object) -> int:
    return sum(node.target in ops for node in program.graph.graph.nodes)
