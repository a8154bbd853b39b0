"""The definition of a kernel: its parameters, its traced programs, and the sizes of a call."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import Symbol
from turbine.kernel.call import configuration as configurations
from turbine.kernel.call import machines
from turbine.kernel.call.autograd import Gradient
from turbine.kernel.call.choices import Choice, Choices, Tune, Types, check_used, parse_tune
from turbine.kernel.call.launcher import Key
from turbine.kernel.program import program as programs
from turbine.kernel.program import signature as signatures
from turbine.kernel.program.blocks import sizes_of_products
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import KernelSignature
from turbine.kernel.program.size_inference import bind_sizes
from turbine.kernel.trace.op import describe
from turbine.kernel.trace.tracer import Buffer, Tile, symbol_name
from turbine.kernel.trace.types import BufferType, ScalarType, dtype_name, fits

Function = Callable[..., Any]
# The program of a call, its sizes, and the facts that its code depends on.
Call = tuple[KernelProgram, dict[Symbol, int], Key]


class Definition:
    """A function to trace, with its grid, block sizes, and what tuning found."""

    def __init__(
        self,
        function: Function,
        grid: Sequence[Any],
        blocks: Mapping[Any, int] | None,
        specialize: Collection[Any],
        tune: Tune | None,
    ) -> None:
        self.function = function
        self.grid = tuple(grid)
        self.signature: KernelSignature = signatures.parse(function)
        self.__name__ = function.__name__
        self.given = configurations.parse(self.signature, blocks)
        self.blocks = configurations.blocks_of(self.given)
        self.candidates, table = parse_tune(self.signature, tune)
        self.choices = Choices(self.signature, self.given, table)
        self.specialized = frozenset(map(symbol_name, specialize))
        _check_specialized(self.signature, self.specialized)
        self.gradient: Gradient | None = None
        self.last_call: Call | None = None
        self._programs: dict[Types, KernelProgram] = {}
        self._lock = threading.RLock()

    def bind_arguments(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, in the order of the kernel's, with defaults."""
        passed = self.signature.passed
        names = [p.name for p in passed]
        wrong = [name for name in keywords if name not in names]
        if wrong:
            what = errors.unknown(f"argument of {self.__name__}", wrong[0], names)
            hint = "outputs are not passed: the call returns them"
            raise errors.KernelError(what, where=self.signature.place, hint=hint)
        if len(args) > len(names):
            raise errors.KernelError(
                f"{self.__name__} takes {len(names)} arguments, {', '.join(names)}, and was given "
                f"{len(args)}",
                where=self.signature.place,
                hint="outputs are not passed: the call returns them",
            )
        given = {**dict(zip(names, args, strict=False)), **keywords}
        place = self.signature.place
        return {p.name: _check_argument(self.__name__, p, given, place) for p in passed}

    def resolve_call(self, named: Mapping[str, Any], device: str = "cpu") -> Call:
        """The program of a call, its sizes, and the facts that its code depends on."""
        program, types = self.program(named), self.types_of(named)
        known = {Symbol(name): value for name, value in self.blocks.items()}
        sizes = bind_sizes(self.signature, named, known)
        machine = partial(machines.of_arguments, named, device)
        choice = self.choices.of_call(program, types, sizes, device, machine)
        sizes = {**choice.sizes, **sizes}
        signatures.check_open(self.signature, program.size_symbols, sizes)
        return program, sizes, self._key(types, program, sizes, choice)

    def on_device(self, call: Call, device: str) -> Call:
        """A call with the block sizes that are chosen for another kind of device."""
        program, sizes, key = call
        choice = self.choice_of(call, device)
        sizes = {**sizes, **choice.sizes}
        return program, sizes, self._key(key.present, program, sizes, choice)

    def choice_of(self, call: Call, device: str = "cpu") -> Choice:
        """What is chosen for a call, on this machine."""
        program, sizes, key = call
        machine = partial(machines.of_arguments, {}, device)
        return self.choices.of_call(program, key.present, sizes, device, machine)

    def _key(
        self, types: Types, program: KernelProgram, sizes: Mapping[Symbol, int], choice: Choice
    ) -> Key:
        fixed = {*self.own_sizes(program), *sizes_of_products(program)}
        static = {s: v for s, v in sizes.items() if s in fixed or s.name in self.specialized}
        numbers = tuple(sorted((s.name, value) for s, value in static.items()))
        return Key(types, numbers, choice.options, choice.source)

    def types_of(self, named: Mapping[str, Any]) -> Types:
        """The arguments that are passed, and their dtypes."""
        return tuple(
            (p.name, str(named[p.name].dtype) if isinstance(p.type, BufferType) else "number")
            for p in self.signature.passed
            if named[p.name] is not None
        )

    def program(self, named: Mapping[str, Any]) -> KernelProgram:
        """The kernel traced for these arguments and their types; traced once for each."""
        types = self.types_of(named)
        if types not in self._programs:
            with self._lock:
                present = signatures.resolve_dtypes(self.signature, named)
                traced = programs.trace(self.signature, present, self.grid, self.function)
                check_used(self.signature, self.given, traced)
                self._programs[types] = traced
        return self._programs[types]

    def own_sizes(self, program: KernelProgram, device: str = "cpu") -> dict[Symbol, int]:
        """The block sizes: those that the user set, and the default of others."""
        given = {Symbol(name): value for name, value in self.blocks.items()}
        chosen = {
            s: block.size for s, block in self.choices.default_blocks(program, device).items()
        }
        return {**chosen, **given}

    def check_blocks(self, blocks: Mapping[str, int]) -> None:
        """Raise for block sizes of symbols that the traced kernel does not have."""
        for program in self._programs.values():
            check_used(self.signature, blocks, program)


def _check_specialized(signature: KernelSignature, names: Collection[str]) -> None:
    inferred = {symbol.name for symbol in signature.size_symbols}
    for name in names:
        if name not in inferred:
            raise errors.KernelError(
                errors.unknown(f"size of the tensors of kernel {signature.kernel}", name, inferred),
                where=signature.place,
                hint="specialize= names symbols in the types of arguments",
            )


def _check_argument(
    kernel: str, parameter: Any, given: Mapping[str, Any], place: str | None
) -> Any:
    """An argument of a call, checked against its parameter."""
    value = given.get(parameter.name, parameter.default)
    if value is parameter.default and value is not None and parameter.name not in given:
        if value is _EMPTY and not parameter.is_optional:
            raise errors.KernelError(
                f"{kernel} was called without {parameter}", where=place, hint="pass it"
            )
        value = None if value is _EMPTY else value
    if value is None:
        if parameter.is_optional:
            return None
        raise errors.KernelError(f"{kernel}: {parameter} is None", where=place, hint="pass it")
    if isinstance(parameter.type, BufferType):
        if isinstance(value, Tensor):
            return value
        inside = isinstance(value, (Tile, Buffer))
        raise errors.KernelError(
            f"{kernel}: {parameter} was given {describe(value)}",
            where=place,
            hint="a kernel does not call another, but functions that are not kernels"
            if inside
            else "pass a torch.Tensor",
        )
    return _number(kernel, parameter, value, place)


_EMPTY = inspect.Parameter.empty


def _number(kernel: str, parameter: Any, value: Any, place: str | None) -> Any:
    assert isinstance(parameter.type, ScalarType)
    kind = parameter.type.dtype.kind
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    allowed: dict[str, tuple[type, ...]] = {
        "float": (int, float, torch.SymInt, torch.SymFloat),
        "bool": (bool, torch.SymBool),
    }
    known = value if isinstance(value, (int, float)) else 0
    if isinstance(value, allowed.get(kind, (int, torch.SymInt))) and fits(
        known, parameter.type.dtype
    ):
        return value
    raise errors.KernelError(
        f"{kernel}: {parameter} was given {value!r}",
        where=place,
        hint=f"pass a number that is {dtype_name(parameter.type.dtype)}",
    )
