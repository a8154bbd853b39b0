"""Print a kernel as GPUs run it: Triton source, Triton's IR, PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from turbine import errors
from turbine.kernel.backends.triton import compilation, module
from turbine.kernel.backends.triton.module import Code
from turbine.kernel.call.definition import Definition
from turbine.kernel.call.gpu_launcher import aligned_names, is_aligned, layout_of
from turbine.kernel.call.launcher import facts_of

# What is compiled for where there is no GPU.
_CAPABILITY = 90


def code_for(kernel: Definition, args: Sequence[Any]) -> tuple[Code, frozenset[str]]:
    """The code for arguments, of any device; without any, for those of the last call."""
    if args:
        named = kernel.bind_arguments(args, {})
        call = kernel.resolve_call(named, "cuda")
    elif kernel.last_call is not None:
        named = {}
        call = kernel.on_device(kernel.last_call, "cuda")
    else:
        given = ", ".join(p.name for p in kernel.signature.passed)
        raise errors.KernelError(
            f"the code of {kernel.__name__} for a GPU depends on its arguments",
            where=kernel.signature.place,
            hint=f"call it first, or pass them: {kernel.__name__}.text(stage, {given})",
        )
    program, sizes, key = call
    facts = facts_of(program, sizes, dict(key.static))
    layout = layout_of(program, facts, sizes, named)
    code = module.write(program, facts, layout, options=key.options)
    return code, aligned_names(program, sizes, named)


def source_text(kernel: Definition, args: Sequence[Any]) -> str:
    """The Triton source."""
    return code_for(kernel, args)[0].text


def _compiled(stage: str) -> Callable[[Definition, Sequence[Any]], str]:
    def text(kernel: Definition, args: Sequence[Any]) -> str:
        code, aligned = code_for(kernel, args)
        on_gpu = any(isinstance(arg, Tensor) and arg.is_cuda for arg in args)
        target = compilation.current_target() if on_gpu else compilation.nvidia_target(_CAPABILITY)
        known = [argument for argument in code.arguments if is_aligned(argument, aligned)]
        found: str = compilation.compile_code(code, target, known).asm[stage]
        return found

    return text


STAGES: dict[str, Callable[[Definition, Sequence[Any]], str]] = {
    "triton": source_text,
    "ttir": _compiled("ttir"),
    "ptx": _compiled("ptx"),
}
