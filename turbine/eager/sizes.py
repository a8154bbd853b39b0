"""Programs that differ in sizes alone, and what their sizes have in common.

PyTorch gives sizes as ints, so that a trace does not say where the 64 of `x.view(64, -1)` is from.
Two programs with the same ops do: if the batch of one is 64 and of the other 48, and so are these
arguments, the argument is taken for the batch. Code for that is used where all ints agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from turbine.eager.layouts import Layout, layout_of
from turbine.eager.storage import Ref
from turbine.eager.trace_tree import Number, Op, Program

# PyTorch compiles other code for axes of size 0 and 1.
_LEAST_SIZE = 2


class Axis(NamedTuple):
    """An axis of an input."""

    input: int
    axis: int


class Form(NamedTuple):
    """A program without its sizes, with the axes and the arguments that are ints."""

    structure: Any
    axes: tuple[Axis, ...]
    ints: tuple[int, ...]  # the sizes of the axes, then the arguments


class Size(NamedTuple):
    """An int of a program, as a number times sizes of axes, plus a number."""

    factor: int
    axes: tuple[Axis, ...]
    offset: int = 0


def form_of(program: Program) -> Form:
    """What a program is apart from its sizes, and these."""
    structure: list[Any] = [program.outputs]
    axes: list[Axis] = []
    ints: list[int] = []
    for number, tensor in enumerate(program.inputs):
        layout = layout_of(tensor)
        order = _dense_order(layout)
        structure.append((layout.dtype, order) if order is not None else layout)
        if order is not None:
            axes += [Axis(number, axis) for axis in range(len(order))]
            ints += layout.size
    for op in program.ops:
        structure.append(id(op.target))
        for one in (*op.args, *op.kwargs.items()):
            _describe(one, structure, ints)
    return Form(tuple(structure), tuple(axes), tuple(ints))


def _dense_order(layout: Layout) -> tuple[int, ...] | None:
    """The axes from the outermost to the innermost, if the memory is dense."""
    order = sorted(range(len(layout.size)), key=lambda axis: -layout.stride[axis])
    step = 1
    for axis in reversed(order):
        if layout.stride[axis] != step:
            return None
        step *= layout.size[axis]
    return tuple(order) if not layout.offset else None


def _describe(argument: Any, structure: list[Any], ints: list[int]) -> None:
    if type(argument) is int:
        structure.append(int)
        ints.append(argument)
    elif isinstance(argument, (list, tuple)):
        structure.append(len(argument))
        for one in argument:
            _describe(one, structure, ints)
    elif isinstance(argument, Number):
        structure.append(Number)
    else:
        structure.append(argument if isinstance(argument, Ref) else repr(argument))


@dataclass(frozen=True)
class Pattern:
    """What the ints of programs with one structure are, in terms of the sizes that vary."""

    axes: tuple[Axis, ...]
    varying: tuple[Axis, ...]
    ints: tuple[int | Size, ...]

    def fits(self, form: Form) -> bool:
        """Whether a program has the sizes of the pattern."""
        known = dict(zip(form.axes, form.ints, strict=False))
        if any(known[axis] < _LEAST_SIZE for axis in self.varying):
            return False
        return all(
            found == (one if isinstance(one, int) else _value(one, known))
            for found, one in zip(form.ints, self.ints, strict=True)
        )

    def ops(self, program: Program) -> list[Op]:
        """The ops of a program with sizes in place of ints."""
        left = iter(self.ints[len(self.axes) :])
        return [
            op._replace(
                args=[_replace(one, left) for one in op.args],
                kwargs={name: _replace(one, left) for name, one in op.kwargs.items()},
            )
            for op in program.ops
        ]

    def symbols(self) -> set[Axis]:
        """The axes whose sizes vary."""
        pairs = zip(self.axes, self.ints, strict=False)
        return {axis for axis, one in pairs if isinstance(one, Size)}


def fake_tensors(arguments: Sequence[Tensor], pattern: Pattern | None) -> list[FakeTensor]:
    """Arguments as fake tensors; sizes that vary are symbols."""
    symbols = pattern.symbols() if pattern is not None else set()
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(number: int, tensor: Tensor) -> FakeTensor:
        kinds = [
            DimDynamic.DUCK if Axis(number, axis) in symbols else DimDynamic.STATIC
            for axis in range(tensor.dim())
        ]
        return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(kinds))

    return [fake(number, tensor) for number, tensor in enumerate(arguments)]


def find_pattern(forms: Sequence[Form]) -> Pattern | None:
    """What the ints of several programs with one structure have in common."""
    axes = forms[0].axes
    columns = list(zip(*(form.ints for form in forms), strict=True))
    varying: dict[Axis, tuple[int, ...]] = {}
    found: list[int | Size] = []
    for place, column in enumerate(columns):
        is_axis = place < len(axes)
        one = column[0] if len({*column}) == 1 else _explain(column, varying, is_axis)
        if one is None and is_axis and min(column) >= _LEAST_SIZE:
            varying[axes[place]] = column
            one = Size(1, (axes[place],))
        if one is None:
            return None
        found.append(one)
    if len({column[-1] for column in varying.values()}) < len(varying):
        return None  # PyTorch takes equal sizes in the last, which is compiled, for one
    return Pattern(axes, tuple(varying), tuple(found))


def _explain(
    column: tuple[int, ...], varying: dict[Axis, tuple[int, ...]], is_axis: bool
) -> Size | None:
    """What an int that differs between programs is; an axis is the same as another, or its own."""
    for axis, sizes in varying.items():
        if column == sizes:
            return Size(1, (axis,))
    if is_axis:
        return None
    for count in (1, 2):
        for axes in combinations_with_replacement(varying, count):
            columns = [varying[axis] for axis in axes]
            products = [math.prod(sizes) for sizes in zip(*columns, strict=True)]
            factor, rest = divmod(column[0], products[0])
            if not rest and column == tuple(factor * one for one in products):
                return Size(factor, axes)
    for axis, sizes in varying.items():
        pairs = [(a, b) for a, b in zip(sizes, column, strict=True) if a != sizes[0]]
        factor, rest = divmod(pairs[0][1] - column[0], pairs[0][0] - sizes[0])
        offset = column[0] - factor * sizes[0]
        if not rest and column == tuple(factor * one + offset for one in sizes):
            return Size(factor, (axis,), offset)
    return None


def _value(size: Size, known: dict[Axis, int]) -> int:
    return size.factor * math.prod(known[axis] for axis in size.axes) + size.offset


def _replace(argument: Any, left: Iterator[int | Size]) -> Any:
    if type(argument) is int:
        return next(left)
    if type(argument) is list:
        return [_replace(one, left) for one in argument]
    return argument
