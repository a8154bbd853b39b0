"""The module that procedures are traced into, and the current line of the user's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from turbine import errors
from turbine.capture import work
from turbine.capture.program import Program, Weight
from turbine.capture.quantization import Quantizer
from turbine.capture.traits import DeviceTensorTrait
from turbine.capture.weights import identity
from turbine.lower.emission import TargetQuery
from turbine.lower.weights import WeightBuilder
from turbine.mlir.ir import Location, Type
from turbine.signature import Range, Signature


@dataclass(frozen=True)
class Function:
    """A function of the module that procedures can call."""

    name: str
    signature: Signature
    input_types: list[Type]
    result_types: list[Type]


@dataclass
class Trace:
    """A module under construction."""

    weights: WeightBuilder
    target: TargetQuery
    quantizer: Quantizer | None = None  # packs the weights of what is captured
    shape_expressions: bool = False  # whether programs say how their dynamic sizes depend
    functions: dict[Any, Function] = field(default_factory=dict)  # by what they were made from
    in_progress: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # symbol -> what has it
    limits: Mapping[str, Range] = field(default_factory=dict)  # of the procedure's named sizes
    conditions: list[str] = field(default_factory=list)  # on those, that every call has to meet
    load: float = 0.0
    _known: dict[tuple[Any, ...], Weight] = field(default_factory=dict)

    def claim(self, name: str, owner: str) -> None:
        """Reserve a name of the module; an error names who has it."""
        other = self.names.setdefault(name, owner)
        if other != owner:
            raise errors.ProcedureError(
                f"{other} and {owner} are both named {name!r} in the module",
                hint="give one of them another name",
            )

    def unique(self, wanted: str, owner: str) -> str:
        """Reserve a unique name."""
        name, count = wanted, 0
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names[name] = owner
        return name

    @contextmanager
    def sizes_within(self, limits: Mapping[str, Range]) -> Iterator[None]:
        """Trace a procedure whose sizes have these names; names of another mean others."""
        before = self.limits, self.conditions
        self.limits, self.conditions = limits, []
        yield
        self.limits, self.conditions = before

    def know(self, weight: Weight) -> None:
        """Use the weight for its tensor wherever that is used."""
        self._known[identity(weight.tensor)] = weight

    def weight_of(self, tensor: torch.Tensor, name: str) -> Weight:
        """The weight of a tensor that a procedure uses directly."""
        return self._adopt(Weight(name, tensor.detach(), device=DeviceTensorTrait.get(tensor)))

    def adopt(self, program: Program, prefix: str) -> Program:
        """The program with weights of this module, packed if they are to be.

        There is one for each tensor, by names not taken.
        """
        self.load += work.load(program.graph.graph)
        weights = {
            placeholder: self._adopt(weight, prefix)
            for placeholder, weight in program.weights.items()
        }
        adopted = replace(program, weights=weights)
        if self.quantizer is None:
            return adopted
        packed = self.quantizer(adopted)
        known = {weight.name for weight in weights.values()}
        for weight in packed.weights.values():
            if weight.name not in known:
                self.claim(weight.name, f"the packed weight {weight.name}")
        return packed

    @property
    def packed_names(self) -> set[str]:
        """The weights that were packed; some may also be used unpacked."""
        return set() if self.quantizer is None else self.quantizer.packed_names

    def _adopt(self, weight: Weight, prefix: str = "") -> Weight:
        known = self._known.get(identity(weight.tensor))
        if known is None:
            wanted = weight.name if weight.name not in self.names else f"{prefix}.{weight.name}"
            name = self.unique(wanted, f"a weight of {prefix}")
            known = replace(weight, name=name)
            self.know(known)
        if weight.mutable and not known.mutable:
            raise errors.ProcedureError(
                f"{weight.name} is written by {prefix or 'a procedure'}, "
                f"but the module holds it as {known.name}, which is not mutable",
                hint="declare it with export_buffers(module, mutable=True)",
            )
        return known


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def current() -> Trace | None:
    """The current module, if a procedure is being traced."""
    return _current.get()


def require(what: str) -> Trace:
    """The current module; an error if `what` is used outside of a procedure."""
    trace = _current.get()
    if trace is None:
        raise errors.ProcedureError(
            f"{what} was used outside of a procedure",
            hint="compile the module and use the artifact: its functions and its .state",
        )
    return trace


@contextmanager
def enter_trace(trace: Trace) -> Iterator[None]:
    """Trace into a module in a `with` block."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


_PACKAGE = str(Path(__file__).parents[1])


def line() -> str:
    """The line of the user's code that is running, as file:line."""
    file, number = _frame()
    return f"{file}:{number}"


def here() -> Location:
    """The line of the user's code that is running."""
    file, number = _frame()
    return Location.file(file, number, 0)


def _frame() -> tuple[str, int]:
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) or "/torch/" in file or file.endswith("contextlib.py")


def line_of(error: BaseException) -> str | None:
    """The innermost line of the user's code that an exception came through."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _is_ours(file):
            places.append(f"{file}:{trace.tb_lineno}")
        trace = trace.tb_next
    return places[-1] if places else None
