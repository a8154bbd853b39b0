"""The signature of a kernel: annotations of a function in, parameters and sizes out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Union, get_args, get_origin

from turbine import dtypes, errors
from turbine.algebra import Symbol
from turbine.dtypes import Dtype
from turbine.kernel.trace.types import (
    DTYPES,
    BufferType,
    DtypeSymbol,
    OptionalType,
    ScalarType,
    dtype_name,
    fits,
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel's function."""

    name: str
    type: BufferType | ScalarType
    is_optional: bool = False
    default: Any = inspect.Parameter.empty

    @property
    def is_passed(self) -> bool:
        """Whether the caller passes it: outputs and temporaries are allocated."""
        return isinstance(self.type, ScalarType) or self.type.usage in ("input", "inout")

    @property
    def usage(self) -> str | None:
        """How a buffer is used; None for a number."""
        return self.type.usage if isinstance(self.type, BufferType) else None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class KernelSignature:
    """The parameters of a kernel."""

    kernel: str
    parameters: tuple[Parameter, ...]
    place: str | None = None

    @property
    def passed(self) -> list[Parameter]:
        """The parameters that a caller passes, in order."""
        return [p for p in self.parameters if p.is_passed]

    def of_call(self) -> inspect.Signature:
        """The Python signature of a call, as help() and editors show it."""
        passed: list[inspect.Parameter] = []
        # From the end: a default is valid only if all later parameters have one.
        for p in reversed(self.passed):
            default = None if p.is_optional else p.default
            if passed and passed[0].default is inspect.Parameter.empty:
                default = inspect.Parameter.empty
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            passed.insert(
                0, inspect.Parameter(p.name, kind, default=default, annotation=str(p.type))
            )
        outputs = [str(p.type) for p in self.parameters if p.usage == "output"]
        gives = f"tuple[{', '.join(outputs)}]" if len(outputs) > 1 else "".join(outputs) or "None"
        return inspect.Signature(passed, return_annotation=gives)

    @property
    def buffers(self) -> list[Parameter]:
        """The parameters that are tensors."""
        return [p for p in self.parameters if isinstance(p.type, BufferType)]

    @property
    def size_symbols(self) -> frozenset[Symbol]:
        """The sizes that are inferred from the argument shapes."""
        shapes = [p.type.shape for p in self.passed if isinstance(p.type, BufferType)]
        return frozenset().union(*(size.symbols for shape in shapes for size in shape))


def parse(function: Callable[..., Any]) -> KernelSignature:
    """Read the annotations of a kernel's function."""
    name = function.__name__
    place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    annotations = _annotations(function, place)
    parameters = tuple(
        _parameter(name, parameter, annotations.get(parameter.name), place)
        for parameter in inspect.signature(function).parameters.values()
    )
    if not any(isinstance(p.type, BufferType) and p.type.usage != "input" for p in parameters):
        raise errors.KernelError(
            f"kernel {name} writes nothing",
            where=place,
            hint="give it an OutputBuffer or an InOutBuffer",
        )
    return KernelSignature(name, parameters, place)


def _annotations(function: Callable[..., Any], place: str) -> dict[str, Any]:
    closed = inspect.getclosurevars(function).nonlocals
    try:
        return inspect.get_annotations(function, eval_str=True, locals=dict(closed))
    except NameError as error:
        raise errors.KernelError(
            f"the annotations of kernel {function.__name__} have an undefined name: {error}",
            where=place,
            hint="leave out `from __future__ import annotations`, or define the symbols globally",
        ) from error


def _parameter(kernel: str, parameter: inspect.Parameter, annotation: Any, place: str) -> Parameter:
    type, is_optional = _without_none(annotation)
    is_optional |= parameter.default is None
    if isinstance(type, Dtype):
        type = ScalarType(type)
    if not isinstance(type, (BufferType, ScalarType)):
        raise errors.KernelError(
            f"argument {parameter.name} of kernel {kernel} is annotated with {annotation!r}",
            where=place,
            hint="tkl.InputBuffer[M, N, tkl.f32] for a tensor, tkl.f32 for a number",
        )
    return Parameter(parameter.name, type, is_optional, parameter.default)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """The type of an optional parameter, and whether it is optional."""
    if isinstance(annotation, OptionalType):
        return annotation.of, True
    if get_origin(annotation) is not Union:
        return annotation, False
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return (kinds[0] if len(kinds) == 1 else annotation), len(kinds) == 1


def resolve_dtypes(signature: KernelSignature, args: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The parameters of a call, with the dtypes of the tensors that are passed."""
    known: dict[str, tuple[Dtype, str]] = {}
    for parameter in signature.passed:
        given = args.get(parameter.name)
        if isinstance(parameter.type, BufferType) and given is not None:
            _bind_dtype(signature, parameter, given, known)
    present = []
    for parameter in signature.parameters:
        if parameter.is_passed and args.get(parameter.name) is None:
            continue
        present.append(_with_dtype(signature, parameter, known))
        _check_fill(signature, present[-1])
    return tuple(present)


def _check_fill(signature: KernelSignature, parameter: Parameter) -> None:
    type = parameter.type
    if not isinstance(type, BufferType) or type.fill is None:
        return
    assert isinstance(type.dtype, Dtype)
    if not fits(type.fill, type.dtype):
        raise errors.KernelError(
            f"{signature.kernel}: {parameter} is filled with {type.fill}, which is out of range "
            f"for {dtype_name(type.dtype)}",
            where=signature.place,
        )


def _bind_dtype(
    signature: KernelSignature,
    parameter: Parameter,
    given: Any,
    known: dict[str, tuple[Dtype, str]],
) -> None:
    assert isinstance(parameter.type, BufferType)
    actual = dtypes.of_torch(given.dtype)
    if actual not in DTYPES.values():
        raise errors.KernelError(
            f"{signature.kernel}: {parameter.name} was given a tensor of {actual.name}, which "
            "kernels do not compute with",
            where=signature.place,
            hint=f"there are {', '.join(DTYPES)}",
        )
    wanted, source = parameter.type.dtype, None
    if isinstance(wanted, DtypeSymbol):
        wanted, source = known.setdefault(wanted.name, (actual, parameter.name))
    if actual != wanted:
        told = "" if source is None else f" ({parameter.type.dtype} is that of {source})"
        raise errors.KernelError(
            f"{signature.kernel}: {parameter.name} is {parameter.type}, a tensor of "
            f"{dtype_name(wanted)}{told}, and was given one of {actual.name}",
            where=signature.place,
            hint=f"pass {parameter.name}.to(torch.{wanted.name})",
        )


def _with_dtype(
    signature: KernelSignature, parameter: Parameter, known: Mapping[str, tuple[Dtype, str]]
) -> Parameter:
    type = parameter.type
    if isinstance(type, ScalarType) or isinstance(type.dtype, Dtype):
        return parameter
    if type.dtype.name not in known:
        raise errors.KernelError(
            f"{signature.kernel}: cannot infer the element type {type.dtype} of {parameter.name}",
            where=signature.place,
            hint="add an input of that type, or use a fixed one",
        )
    return replace(parameter, type=replace(type, dtype=known[type.dtype.name][0]))


def check_open(
    signature: KernelSignature, needed: Collection[Symbol], sizes: Collection[Symbol]
) -> None:
    """Raise if a size cannot be inferred."""
    open_ = sorted({str(symbol) for symbol in needed} - {str(symbol) for symbol in sizes})
    if open_:
        given = ", ".join(f"{name}=64" for name in open_)
        raise errors.KernelError(
            f"{signature.kernel}: cannot infer {', '.join(open_)}",
            where=signature.place,
            hint=f"give it to the kernel, {signature.kernel}.using({given}), "
            "or in the decorator, blocks={...}",
        )
