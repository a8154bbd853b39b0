"""Write a kernel as MLIR around its PTX, for programs of IREE on NVIDIA GPUs.

Note [Arguments of PTX]
IREE passes the addresses of tensors, then numbers of 32 bits. Triton adds two addresses of scratch
memory at the end, which the code of our kernels does not use: they are taken out of its list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from turbine import errors
from turbine.algebra import ONE, Expr
from turbine.dump import dump
from turbine.kernel.backends.iree.launch import Launch, buffer_type, dtype_of, write_function
from turbine.kernel.backends.iree.launch import Layout as Operands
from turbine.kernel.backends.triton import compilation, module
from turbine.kernel.backends.triton.module import LARGE, Argument, Code, Layout
from turbine.kernel.backends.triton.schedule import Options
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import MOST_ALARMS
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.trace.types import BufferType
from turbine.target import Target

_WARP = 32
# Bytes of shared memory that a program may have, by compute capability.
_SHARED = {80: 163 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10}
_LEAST_SHARED = 99 << 10


def write(
    program: KernelProgram,
    facts: Facts,
    name: str,
    target: Target,
    options: Options | None = None,
) -> str:
    """Write a module whose function `name` returns the outputs and in-out buffers."""
    capability = _capability(target)
    operands = Operands(program, facts)
    shared = _SHARED.get(capability, _LEAST_SHARED)
    code = module.write(program, facts, _layout(program, facts, operands), shared, options)
    dump(program.name, {"kernel.py": lambda: code.text})
    aligned = [argument for argument in code.arguments if _is_aligned(argument, facts)]
    compiled = compilation.compile_code(code, compilation.nvidia_target(capability), aligned)
    operands.report = code.report
    operands.alarm_words = _product(program.grid) * 2 + MOST_ALARMS
    scratch = [
        (dtype_of(type).mlir, _product(type.shape))
        for type in map(buffer_type, operands.temporaries)
    ]
    sizes = [argument.size for argument in code.arguments if argument.size is not None]
    launch = Launch(f"@{name}_code::@{code.name}", sizes, "i32", scratch=scratch)
    executable = _write_executable(program, code, compiled, f"{name}_code")
    function = write_function(program, operands, launch, name)
    return "\n".join(["module {", *executable, *function, "}"])


def _capability(target: Target) -> int:
    """The compute capability of a chip, 90 for sm_90."""
    if target.capability is None:
        raise errors.UnknownTarget(
            f"kernels are not compiled for {target.text}",
            hint="name the chip by its compute capability, such as cuda:sm_80",
        )
    return target.capability


def _layout(program: KernelProgram, facts: Facts, operands: Operands) -> Layout:
    """What the code assumes of a call: sizes that are not static may be large."""
    open_tiles = module.tile_sizes(program, facts)
    if open_tiles:
        listed = ", ".join(map(str, open_tiles))
        raise errors.KernelError(
            f"kernel {program.name} has tiles of dynamic sizes: {listed}",
            where=program.place,
            hint="in programs for GPUs, tiles have static sizes: export with static shapes there, "
            "or loop over blocks",
        )
    return Layout(is_wide=_may_be_large(program, facts, operands), is_embedded=True)


def _may_be_large(program: KernelProgram, facts: Facts, operands: Operands) -> bool:
    """Whether indices may need 64 bits."""
    if operands.sizes:
        return True
    types = [p.type for p in program.parameters if isinstance(p.type, BufferType)]
    grid = _product(program.grid)  # each program has temporaries of its own
    counts = [_product(t.shape) * (grid if t.usage == "temporary" else ONE) for t in types]
    largest = max((count.evaluate(facts.known) for count in counts), default=0)
    return max(largest, module.largest_offset(program, facts.known)) >= LARGE


def _is_aligned(argument: Argument, facts: Facts) -> bool:
    """Whether an argument is a multiple of 16: the memory of tensors is."""
    if argument.size is not None:
        return facts.divisors.get(argument.size, 1) % compilation.ALIGNMENT == 0
    return argument.type.startswith("*")


def _product(factors: Sequence[Expr]) -> Expr:
    return prod(factors, start=ONE)


def _write_executable(program: KernelProgram, code: Code, compiled: Any, name: str) -> list[str]:
    metadata = compiled.metadata
    if metadata.global_scratch_size:
        raise errors.KernelError(
            f"kernel {program.name} needs scratch memory of Triton's",
            where=program.place,
            hint="this is a limit of kernels in exported programs; call it on CUDA tensors instead",
        )
    ptx = _without_scratch(compiled.asm["ptx"], code.name)
    bindings = [argument for argument in code.arguments if argument.type.startswith("*")]
    numbers = len(code.arguments) - len(bindings)
    # Indirect: IREE then records commands once, and not in each call.
    binding = "#hal.pipeline.binding<storage_buffer, Indirect>"
    data = ptx.encode() + b"\0"
    target = '#hal.executable.target<"cuda", "cuda-nvptx-fb">'
    return [
        f"hal.executable.source private @{name} <{{objects = #hal.executable.objects<{{{target} = "
        f'[#hal.executable.object<{{path = "{name}.ptx", '
        f'data = dense<"0x{data.hex()}"> : vector<{len(data)}xi8>}}>]}}>}}> {{',
        f"hal.executable.export public @{code.name} ordinal(0) layout(#hal.pipeline.layout<"
        f"constants = {numbers}, bindings = [{', '.join([binding] * len(bindings))}]>) "
        "count(%device: !hal.device, %n: index) -> (index, index, index) {",
        "  %one = arith.constant 1 : index",
        "  hal.return %n, %one, %one : index, index, index",
        f"}} <{{workgroup_local_memory = {metadata.shared} : index, "
        f"workgroup_size = [{metadata.num_warps * _WARP} : index, 1 : index, 1 : index]}}>",
        "}",
    ]


def _without_scratch(ptx: str, name: str) -> str:
    """PTX without the addresses of scratch memory: see Note [Arguments of PTX]."""
    head = re.search(rf"\.entry {re.escape(name)}\((.*?)\n\)", ptx, re.DOTALL)
    assert head is not None, "PTX without an entry"
    *kept, one, other = head[1].split(",")
    unused = [parameter.split()[-1] for parameter in (one, other)]
    assert not any(f"[{parameter}" in ptx for parameter in unused), "scratch memory is used"
    return ptx[: head.start(1)] + ",".join(kept) + ptx[head.end(1) :]
