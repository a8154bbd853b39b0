"""The definition of a kernel: its parameters, its traced programs, and the sizes of a call."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import Symbol
from turbine.kernel.call.autograd import Gradient
from turbine.kernel.call.launcher import Key
from turbine.kernel.program import program as programs
from turbine.kernel.program import signature as signatures
from turbine.kernel.program.blocks import Block, choose_blocks, sizes_of_products
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
    """A function to trace, with its grid and block sizes."""

    def __init__(
        self,
        function: Function,
        grid: Sequence[Any],
        blocks: Mapping[Any, int] | None,
        specialize: Collection[Any],
    ) -> None:
        self.function = function
        self.grid = tuple(grid)
        self.signature: KernelSignature = signatures.parse(function)
        self.__name__ = function.__name__
        self.blocks = {symbol_name(symbol): value for symbol, value in (blocks or {}).items()}
        _check_blocks(self.signature, self.blocks)
        self.specialized = frozenset(map(symbol_name, specialize))
        _check_specialized(self.signature, self.specialized)
        self.gradient: Gradient | None = None
        self.last_call: Call | None = None
        self._programs: dict[tuple[tuple[str, str], ...], KernelProgram] = {}
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
        program = self.program(named)
        sizes = bind_sizes(self.signature, named, self.own_sizes(program, device))
        signatures.check_open(self.signature, program.size_symbols, sizes)
        return program, sizes, self._key(self._types(named), program, sizes)

    def on_device(self, call: Call, device: str) -> Call:
        """A call with the block sizes that are chosen for another kind of device."""
        program, sizes, key = call
        sizes = {**sizes, **self.own_sizes(program, device)}
        return program, sizes, self._key(key.present, program, sizes)

    def _key(
        self, types: tuple[tuple[str, str], ...], program: KernelProgram, sizes: dict[Symbol, int]
    ) -> Key:
        fixed = {*self.own_sizes(program), *sizes_of_products(program)}
        static = {s: v for s, v in sizes.items() if s in fixed or s.name in self.specialized}
        return Key(types, tuple(sorted((s.name, value) for s, value in static.items())))

    def _types(self, named: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (p.name, str(named[p.name].dtype) if isinstance(p.type, BufferType) else "number")
            for p in self.signature.passed
            if named[p.name] is not None
        )

    def program(self, named: Mapping[str, Any]) -> KernelProgram:
        """The kernel traced for these arguments and their types; traced once for each."""
        types = self._types(named)
        if types not in self._programs:
            with self._lock:
                present = signatures.resolve_dtypes(self.signature, named)
                traced = programs.trace(self.signature, present, self.grid, self.function)
                _check_used(self.signature, self.blocks, traced)
                self._programs[types] = traced
        return self._programs[types]

    def own_sizes(self, program: KernelProgram, device: str = "cpu") -> dict[Symbol, int]:
        """The block sizes: those that the user set, and those that are chosen."""
        given = {Symbol(name): value for name, value in self.blocks.items()}
        chosen = {s: block.size for s, block in self.chosen_blocks(program, device).items()}
        return {**chosen, **given}

    def chosen_blocks(self, program: KernelProgram, device: str = "cpu") -> dict[Symbol, Block]:
        """The block sizes that the user left open, with reasons."""
        chosen = choose_blocks(program, self.signature.size_symbols, device)
        return {s: block for s, block in chosen.items() if s.name not in self.blocks}

    def check_blocks(self, blocks: Mapping[str, int]) -> None:
        """Raise for block sizes of symbols that the traced kernel does not have."""
        for program in self._programs.values():
            _check_used(self.signature, blocks, program)


def _check_blocks(signature: KernelSignature, blocks: Mapping[str, int]) -> None:
    for name, value in blocks.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise errors.KernelError(
                f"{signature.kernel}: the block size {name} is {value!r}",
                where=signature.place,
                hint="a block has a positive number of elements",
            )


def _check_used(
    signature: KernelSignature, blocks: Mapping[str, int], program: KernelProgram
) -> None:
    """Raise for block sizes of unknown symbols."""
    names = {symbol.name for symbol in program.size_symbols}
    for name in blocks:
        if name not in names:
            raise errors.KernelError(
                errors.unknown(f"size of kernel {signature.kernel}", name, names),
                where=signature.place,
                hint="blocks= and using() give numbers to the symbols of a kernel",
            )


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
