"""Inputs of a model to export: texts in, an example call and its dynamic sizes out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turbine import errors
from turbine.cli import arguments

if TYPE_CHECKING:
    import torch
    from numpy.random import Generator

_HOW = (
    "write ids:batch[1..64]x128xi64: the argument's name, sizes and a dtype; a dynamic size has a "
    "name without the letter x, and its range follows in brackets"
)
_DIM = re.compile(r"(?P<size>\d+)|(?P<name>[A-Za-z_]\w*)(?:\[(?P<least>\d*)\.\.(?P<most>\d*)\])?")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*):(?P<rest>.+)")
_SIZES = re.compile(
    r"(?P<sizes>(?:(?:\d+|[A-WYZa-wyz_][A-WYZa-wyz_0-9]*(?:\[\d*\.\.\d*\])?)x)*)(?P<rest>.*)"
)
_LEAST_EXAMPLE = 2  # torch.export takes 0 and 1 for fixed sizes


@dataclass(frozen=True)
class Size:
    """A dynamic size: its name and the range that the user gave."""

    name: str
    least: int | None
    most: int | None


@dataclass(frozen=True)
class ExampleInput:
    """One --input: the argument's name, if it has one, the text of an example, and its sizes."""

    given: str
    name: str | None
    text: str
    sizes: dict[int, Size]  # by axis


def parse(texts: Sequence[str]) -> list[ExampleInput]:
    """The inputs that the texts describe; sizes of one name have one example."""
    known: dict[str, Size] = {}
    return [_parse(text, known) for text in texts]


def call_arguments(model: torch.nn.Module, inputs: Sequence[ExampleInput]) -> dict[str, Any]:
    """The args, kwargs and dynamic_shapes for an export of the model."""
    random = arguments.generator()
    values = [to_tensor(_read(one, random)) for one in inputs]
    names = [one.name for one in inputs]
    args = tuple(value for name, value in zip(names, values, strict=True) if name is None)
    kwargs = {name: value for name, value in zip(names, values, strict=True) if name is not None}
    _check(model, inputs, args, kwargs)
    found = {"args": args, "kwargs": kwargs}
    if any(one.sizes for one in inputs):
        found["dynamic_shapes"] = _dynamic_shapes(model, inputs)
    return found


def _parse(text: str, known: dict[str, Size]) -> ExampleInput:
    named = _NAMED.fullmatch(text)
    name, rest = (None, text) if named is None else (named["name"], named["rest"])
    found = _SIZES.fullmatch(rest)
    assert found is not None
    sizes, examples = {}, []
    for axis, word in enumerate(found["sizes"].split("x")[:-1]):
        dim = _DIM.fullmatch(word)
        assert dim is not None
        if dim["size"] is not None:
            examples.append(word)
            continue
        sizes[axis] = _size(text, dim, known)
        examples.append(str(_example(sizes[axis], list(known))))
    return ExampleInput(text, name, "x".join([*examples, found["rest"]]), sizes)


def _size(text: str, dim: re.Match[str], known: dict[str, Size]) -> Size:
    """A dynamic size; a range that is given once holds wherever the name is."""
    least, most = (int(dim[end]) if dim[end] else None for end in ("least", "most"))
    size = Size(dim["name"], least, most)
    before = known.get(size.name)
    if (least, most) == (None, None) and before is not None:
        return before
    if before is not None and before != size:
        raise errors.ArgumentError(
            f"input {text!r}: {_range(size)}, and before {_range(before)}",
            hint="give the range of a size once",
        )
    if most is not None and most < max(least or 0, _LEAST_EXAMPLE):
        raise errors.ArgumentError(
            f"input {text!r}: {_range(size)} has no size that can vary",
            hint=f"write a range up to {_LEAST_EXAMPLE} or more, or a number",
        )
    known[size.name] = size
    return size


def _range(size: Size) -> str:
    ends = ("" if end is None else str(end) for end in (size.least, size.most))
    return f"{size.name}[{'..'.join(ends)}]"


def _example(size: Size, names: Sequence[str]) -> int:
    """A size in the range, another for each name: equal ones might be taken for one size."""
    wanted = max(size.least or 0, _LEAST_EXAMPLE) + names.index(size.name)
    return wanted if size.most is None else min(wanted, size.most)


def _read(one: ExampleInput, random: Generator) -> Any:
    try:
        return arguments.read(one.text, random)
    except errors.ArgumentError as error:
        if not one.sizes and one.name is None and "[" not in one.given:
            raise
        raise errors.ArgumentError(f"cannot read input {one.given!r}", hint=_HOW) from error


def _check(
    model: torch.nn.Module,
    inputs: Sequence[ExampleInput],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    signature = inspect.signature(model.forward)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in kwargs:
        if not takes_any and name not in signature.parameters:
            raise errors.ExportError(
                f"{type(model).__name__}: {errors.unknown('argument', name, signature.parameters)}",
                hint="name an argument of forward, as in ids:batch[1..64]x128xi64, or none",
            )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise errors.ExportError(
            f"{type(model).__name__} takes {signature}, {len(inputs)} inputs given: {error}",
            hint="give one --input per argument, such as --input 1x3x224x224xf32",
        ) from error


def _dynamic_shapes(model: torch.nn.Module, inputs: Sequence[ExampleInput]) -> dict[str, Any]:
    """What torch.export calls dynamic_shapes: a Dim for each axis, by argument."""
    from torch.export import Dim

    made: dict[str, Any] = {}
    for size in (size for one in inputs for size in one.sizes.values()):
        made.setdefault(size.name, Dim(size.name, min=size.least, max=size.most))
    axes = [{axis: made[size.name] for axis, size in one.sizes.items()} for one in inputs]
    by_place = [a for a, one in zip(axes, inputs, strict=True) if one.name is None]
    by_name = {one.name: a for a, one in zip(axes, inputs, strict=True) if one.name is not None}
    signature = inspect.signature(model.forward)
    bound = signature.bind(*by_place, **by_name).arguments
    keywords = next(
        (p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None
    )
    return {**bound, **bound.pop(keywords, {})} if keywords is not None else dict(bound)


def to_tensor(value: Any) -> Any:
    """An array as a tensor, by its bytes: numpy and torch share no bfloat16."""
    import numpy
    import torch

    from turbine import dtypes

    if isinstance(value, int):
        return value
    raw = torch.from_numpy(value.reshape(-1).view(numpy.uint8))
    return raw.view(dtypes.of_numpy(value.dtype).torch).reshape(value.shape)
