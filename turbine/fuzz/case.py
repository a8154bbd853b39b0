"""A random program, how it is compiled, and the outcome."""

from __future__ import annotations

from dataclasses import dataclass

from turbine.fuzz.program import RandomProgram

COMPILE = "compile"
COMPILE_DYNAMIC = "compile dynamic"
EXPORT = "export"
EXPORT_DYNAMIC = "export dynamic"
KERNEL = "kernel"


@dataclass(frozen=True)
class Case:
    """A program, how it is compiled, and the second size of its dynamic axis."""

    program: RandomProgram
    mode: str
    other_size: int | None = None
    raises: bool = False  # eager PyTorch refuses the arguments
    guard: bool = False  # arguments and results are between guard pages
    library_calls: str = "never"  # the option: "always" partitions programs differently


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: `problem` is None if the answers agree."""

    problem: str | None = None
    refused: str | None = None  # why there was nothing to compare


AGREES = Outcome()
