"""What is set of a kernel: its block sizes, and how it runs on a GPU, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from turbine import errors
from turbine.kernel.backends.triton.schedule import Options
from turbine.kernel.program.signature import KernelSignature
from turbine.kernel.trace.tracer import symbol_name

# Block sizes and options by name, {"BM": 64, "num_warps": 4}.
Configuration = Mapping[str, int]
OPTIONS = tuple(field.name for field in fields(Options))
_MOST_WARPS = 32


def parse(signature: KernelSignature, given: Mapping[Any, int] | None) -> dict[str, int]:
    """What a user gives by symbol or by name, checked as far as the kernel need not be traced."""
    named = {symbol_name(symbol): value for symbol, value in (given or {}).items()}
    for name, value in named.items():
        problem, hint = _problem(name, value)
        if problem is not None:
            raise errors.KernelError(
                f"{signature.kernel}: {problem}", where=signature.place, hint=hint
            )
    return named


def _problem(name: str, value: Any) -> tuple[str | None, str]:
    """Why a value cannot be, and what can."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if name not in OPTIONS:
        hint = "a block has a positive number of elements"
        return None if is_count else f"the block size {name} is {value!r}", hint
    if name == "num_warps":
        is_count = is_count and value <= _MOST_WARPS and value & (value - 1) == 0
        return None if is_count else f"{name} is {value!r}", "it is a power of two, 1 to 32"
    return None if is_count else f"{name} is {value!r}", "it is a positive number"


def blocks_of(configuration: Configuration) -> dict[str, int]:
    """The block sizes."""
    return {name: value for name, value in configuration.items() if name not in OPTIONS}


def options_of(configuration: Configuration) -> Options:
    """The options."""
    return Options(**{name: configuration[name] for name in OPTIONS if name in configuration})


def text(configuration: Configuration) -> str:
    """A configuration in a line: "BM=64 BN=128 num_warps=4"."""
    return " ".join(f"{name}={value}" for name, value in configuration.items())
