"""Write the body of a kernel as Triton source: nodes in, statements out.

Note [Axes of Triton tensors]
A tile becomes a Triton tensor that has only the axes along which its elements differ: axes of size
1 and broadcast axes are left out, and a tile without others is a scalar. Operands get the axes of a
result by `x[:, None]`. Triton's sizes are powers of two, so an axis is padded; its last lanes are
masked off like those outside of a buffer.

Note [Narrow indices]
Indices of the language have 64 bits. Sizes below `SMALL` bound the sums and products of sizes,
program ids and lanes, and those that stay below 2**31 are computed with 32 bits.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from torch import fx

from turbine import errors
from turbine.algebra import ONE, Atom, Expr, Extreme, Quotient, Symbol, is_never_negative
from turbine.dtypes import Dtype
from turbine.kernel.backends.triton import elements
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.lang.products import dot
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import Alarm, Site
from turbine.kernel.program.program import nodes_of
from turbine.kernel.trace.op import Op, arguments
from turbine.kernel.trace.types import BOOL, I64, TileType, dtype_name
from turbine.kernel.trace.validity import Bound

# Sizes of narrow code are below it: see Note [Narrow indices].
SMALL = 1 << 28
_NARROW = 1 << 31
# Triton's limit for the elements of a tensor.
_LARGEST_TILE = 1 << 20
# Along the contraction of a dot, and along its other axes.
_LEAST_OF_DOT, _LEAST_OF_BYTES = 16, 32
_RESERVED = {"tl", "triton", "libdevice", "program", "range", "float", "alarms", "log"}


@dataclass(frozen=True)
class Condition:
    """A condition on lanes: code for a tensor with these axes."""

    axes: tuple[int, ...]
    text: str

    def moved(self, axis_of: Callable[[int], int]) -> Condition:
        """The condition on a view of the tile; axes keep their order."""
        return Condition(tuple(map(axis_of, self.axes)), self.text)


@dataclass(frozen=True)
class Value:
    """A tile as code for a tensor with some of its axes: see Note [Axes of Triton tensors]."""

    text: str
    axes: tuple[int, ...]
    dtype: Dtype
    number: bool | int | float | None = None  # of a constant
    most: int | None = None  # for integers, the largest magnitude, if it is known
    # If lanes that fail one of some conditions are known to be 0: those conditions.
    zero_unless: frozenset[Condition] | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether indices have 32 bits: see Note [Narrow indices]."""
        return self.dtype == I64 and self.most is not None and self.most < _NARROW

    def moved(self, text: str, axis_of: Callable[[int], int]) -> Value:
        """A view of the tile; the axes that are present keep their order."""
        zero = self.zero_unless
        moved = None if zero is None else frozenset(one.moved(axis_of) for one in zero)
        return replace(self, text=text, axes=tuple(map(axis_of, self.axes)), zero_unless=moved)


@dataclass(frozen=True)
class Source:
    """A buffer of the kernel: its pointer, and the size and stride along each axis."""

    name: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    dtype: Dtype
    needs_barrier: bool  # whether programs read what they have written


Rule = Callable[["Emitter", fx.Node], Any]
RULES: dict[Op, Rule] = {}


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Register the rule of ops."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


@dataclass
class Emitter:
    """Writes the code of one kernel."""

    kernel: str
    facts: Facts
    padded: Mapping[Expr, int]  # powers of two for sizes of tiles that are not static
    is_wide: bool  # whether indices may need 64 bits
    sources: dict[fx.Node, Source] = field(default_factory=dict)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    symbols: dict[Symbol, str] = field(default_factory=dict)  # texts of counters and sizes
    sizes: list[Symbol] = field(default_factory=list)  # sizes that the code takes
    functions: dict[str, str] = field(default_factory=dict)  # texts of functions that it calls
    alarms: list[Alarm] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    names: set[str] = field(default_factory=lambda: set(_RESERVED))
    lanes: dict[int, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    least: Mapping[Expr, int] = field(default_factory=dict)  # of sizes that dots multiply
    number: str = "program"  # of the program, row by row
    line: str | None = None  # of the user, for the node that is written
    _indent: str = "    "
    _shown: str | None = None  # the line in the last comment

    # Text

    def emit(self, text: str) -> None:
        """Write a statement."""
        self.lines.append(self._indent + text)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Write the statements of a block below its head."""
        self.emit(head)
        before, self._indent = self._indent, self._indent + "    "
        self._shown = None
        yield
        self._indent, self._shown = before, None

    def name(self, wanted: str) -> str:
        """A name that nothing else has."""
        found, count = wanted, 0
        while found in self.names or keyword.iskeyword(found):
            count += 1
            found = f"{wanted}_{count}"
        self.names.add(found)
        return found

    def assign(self, wanted: str, value: Value) -> Value:
        """Assign a value to a variable."""
        name = self.name(wanted)
        self.emit(f"{name} = {value.text}")
        return replace(value, text=name, number=None)

    def call(self, name: str, text: str) -> str:
        """The name of a function, whose text becomes part of the source."""
        self.functions.setdefault(name, text)
        self.names.add(name)
        return name

    # Sizes

    def size(self, size: Expr) -> Expr:
        """A size of a tile, with static sizes in it."""
        return self.facts.simplify(size)

    def lane_count(self, size: Expr) -> int:
        """The padded size of an axis."""
        simple = self.size(size)
        count = self.padded[simple] if simple.number is None else power_of_two(simple.number)
        return max(count, self.least.get(simple, 1))

    def is_unit(self, size: Expr) -> bool:
        """Whether an axis is left out: see Note [Axes of Triton tensors]."""
        return self.size(size) == ONE

    def axes_of(self, shape: Sequence[Expr]) -> tuple[int, ...]:
        """The axes that a tensor with a shape may have."""
        return tuple(axis for axis, size in enumerate(shape) if not self.is_unit(size))

    def counts(self, shape: Sequence[Expr], axes: Sequence[int]) -> str:
        """The padded sizes along some axes, as a list."""
        return self.list_of([shape[axis] for axis in axes])

    def list_of(self, sizes: Sequence[Expr]) -> str:
        """The padded sizes of axes, as a list."""
        return f"[{', '.join(str(self.lane_count(size)) for size in sizes)}]"

    def lane(self, size: Expr) -> str:
        """The lanes along an axis: a tensor of one axis."""
        count = self.lane_count(size)
        if count not in self.lanes:
            self.lanes[count] = self.name(f"lane_{count}")
        return self.lanes[count]

    # Expressions

    def expr(self, expr: Expr, *, is_wide: bool = False) -> str:
        """An integer expression as a scalar; `is_wide` computes it in 64 bits."""
        text = ""
        for monomial, factor in self.facts.simplify(expr).terms:
            parts = [self._atom(atom, is_wide) for atom in monomial]
            shown = [str(abs(factor))] if abs(factor) != 1 or not parts else []
            sign = (" - " if text else "-") if factor < 0 else (" + " if text else "")
            text += sign + " * ".join([*parts, *shown])
        return text or "0"

    def factor(self, expr: Expr, *, is_wide: bool = False) -> str:
        """An expression as an operand."""
        return tight(self.expr(expr, is_wide=is_wide))

    def _atom(self, atom: Atom, is_wide: bool) -> str:
        if isinstance(atom, Symbol):
            text = self._symbol(atom)
            return f"tl.cast({text}, tl.int64)" if is_wide else text
        if isinstance(atom, Extreme):
            name = {"min": "tl.minimum", "max": "tl.maximum"}[atom.name]
            one, other = (self.expr(e, is_wide=is_wide) for e in (atom.one, atom.other))
            return f"{name}({one}, {other})"
        return self._quotient(atom, is_wide)

    def _quotient(self, atom: Quotient, is_wide: bool) -> str:
        below = self.expr(atom.below, is_wide=is_wide)
        if atom.counts_blocks:
            above = self.expr(atom.above - atom.below + 1, is_wide=is_wide)
            return f"tl.cdiv({above}, {below})"
        above = self.expr(atom.above, is_wide=is_wide)
        if is_never_negative(atom.above, self.facts.ranges):
            return f"({tight(above)} // {tight(below)})"
        return f"{self.floor_divide()}({above}, {below})"

    def floor_divide(self) -> str:
        """The function that divides integers and rounds down."""
        return self.call("floor_divide", FLOOR_DIVIDE)

    def _symbol(self, symbol: Symbol) -> str:
        if symbol not in self.symbols:
            assert symbol.kind == "size", f"{symbol} is not known here"
            self.sizes.append(symbol)
            self.symbols[symbol] = self.name(symbol.name)
        return self.symbols[symbol]

    def magnitude(self, expr: Expr) -> int | None:
        """A number that the expression's magnitude does not exceed, if one is known."""
        return magnitude(expr, self.facts, None if self.is_wide else SMALL)

    # Values

    def value(self, node: Any) -> Value:
        """The tile of a node."""
        found = self.values[node]
        assert isinstance(found, Value)
        return found

    def aligned(self, node: fx.Node, rank: int) -> Value:
        """The tile of a node, broadcast to a rank: axes are aligned at the last."""
        value, missing = self.value(node), rank - node.meta["type"].rank
        return value.moved(value.text, lambda axis: axis + missing)

    def operand(self, value: Value, axes: Sequence[int], *, is_exact: bool = True) -> str:
        """A tile as an operand with these axes; `is_exact` has indices in 64 bits."""
        if value.number is not None:
            return value.text
        text = f"{tight(value.text)}.to(tl.int64)" if is_exact and value.is_narrow else value.text
        return self.placed(text, value.axes, axes)

    def placed(self, text: str, axes: Sequence[int], among: Sequence[int]) -> str:
        """A tensor with some axes, as a tensor with more: `x[:, None]`."""
        if not axes or tuple(axes) == tuple(among):
            return text
        places = ", ".join(":" if axis in axes else "None" for axis in among)
        return f"{tight(text)}[{places}]"

    def scalar(self, value: Value) -> str:
        """A constant as a scalar of its dtype."""
        assert value.number is not None
        number = elements.element(value.number, value.dtype)
        return f"tl.full([], {number}, {self.type(value.dtype)})"

    def dense(self, value: Value, type: TileType, axes: Sequence[int] | None = None) -> Value:
        """A tile as a tensor with all its axes, or with the given ones."""
        wanted = self.axes_of(type.shape) if axes is None else tuple(axes)
        shape = self.counts(type.shape, wanted)
        if value.number is not None:
            number = elements.element(value.number, value.dtype)
            text = f"tl.full({shape}, {number}, {self.type(value.dtype)})"
            return Value(text, wanted, value.dtype, zero_unless=value.zero_unless)
        text = self.operand(value, wanted)
        if value.axes != wanted:
            text = f"tl.broadcast_to({text}, {shape})"
        return Value(text, wanted, value.dtype, zero_unless=value.zero_unless)

    def type(self, dtype: Dtype) -> str:
        """An element type."""
        found = elements.TYPES.get(dtype.name)
        if found is None:
            raise self.error(f"there are no elements of {dtype_name(dtype)}", "convert them first")
        return found

    # Conditions

    def conditions(
        self, shape: Sequence[Expr], bounds: Any, masks: Any, along: Sequence[int] | None = None
    ) -> list[Condition]:
        """The conditions for valid lanes, and for those that are no padding, that are not proven.

        With `along`, only those that depend on one of these axes.
        """
        wanted = range(len(shape)) if along is None else along
        found = [
            one
            for bound in bounds
            if along is None or bound.axis in wanted
            for one in self._of_bound(bound, shape)
        ]
        found += [
            self._padding(shape, axis) for axis in wanted if self._is_open(shape, axis, bounds)
        ]
        for mask in masks:
            value, sizes = self.value(mask), mask.meta["type"].shape
            # A mask counts along the axes of its type, also where its elements are all the same.
            counts = along is None or any(sizes[axis].number != 1 for axis in wanted)
            if counts and value.number is not True:
                found.append(Condition(value.axes, self.operand(value, value.axes)))
        return list(dict.fromkeys(found))

    def _of_bound(self, bound: Bound, shape: Sequence[Expr]) -> Iterator[Condition]:
        size = ONE if bound.axis is None else shape[bound.axis]
        axes: tuple[int, ...] = ()
        lane = ""
        if bound.axis is not None and not self.is_unit(size):
            axes, lane = (bound.axis,), self.lane(size)
        offset = self.expr(bound.offset)
        place = " + ".join(part for part in (offset if offset != "0" else "", lane) if part) or "0"
        if not self.facts.starts_inside(bound):
            yield Condition(axes, f"{place} >= 0")
        if not self.facts.ends_inside(bound, size):
            yield Condition(axes, f"{place} < {self.expr(bound.limit)}")

    def _is_open(self, shape: Sequence[Expr], axis: int, bounds: Sequence[Bound]) -> bool:
        """Whether an axis has padding that no bound masks off."""
        size = self.size(shape[axis])
        if self.is_unit(size) or size.number == self.lane_count(size):
            return False
        return not any(
            bound.axis == axis
            and not self.facts.ends_inside(bound, size)
            and self.facts.is_proven(size - (bound.limit - bound.offset))
            for bound in bounds
        )

    def _padding(self, shape: Sequence[Expr], axis: int) -> Condition:
        return Condition((axis,), f"{self.lane(shape[axis])} < {self.expr(shape[axis])}")

    def all_of(self, conditions: Sequence[Condition], axes: Sequence[int] | None = None) -> Value:
        """The conjunction of conditions."""
        wanted = _union([one.axes for one in conditions]) if axes is None else axes
        if len(conditions) == 1 and conditions[0].axes == tuple(wanted):
            return Value(conditions[0].text, tuple(wanted), BOOL)
        parts = [self.placed(tight(one.text), one.axes, wanted) for one in conditions]
        return Value(" & ".join(parts), tuple(wanted), BOOL)

    # Regions

    def run(self, graph: fx.Graph) -> list[Value]:
        """Write a region; return what it yields."""
        for node in graph.nodes:
            if node.op == "call_function":
                self._run_node(node)
        return [self.value(node) for node in output_of(graph)]

    def enter(self, body: Body, carried: Sequence[Any], captured: Sequence[fx.Node]) -> list[Value]:
        """Write a region with its carried values and what it captures."""
        places = [node for node in body.graph.nodes if node.op == "placeholder"]
        around = [self.values.get(node, self.sources.get(node)) for node in captured]
        for place, value in zip(places, [*carried, *around], strict=True):
            if isinstance(value, Source):
                self.sources[place] = value
            else:
                self.values[place] = value
        return self.run(body.graph)

    def _run_node(self, node: fx.Node) -> None:
        op = node.target
        assert isinstance(op, Op)
        self.line = node.meta.get("line")
        if op not in RULES:
            raise self.error(f"there is no rule for {op!r}", "write it with other ops")
        self._check_fits(node)
        before, line = len(self.lines), self.line
        self.values[node] = RULES[op](self, node)
        if line is not None and line != self._shown and len(self.lines) > before:
            self.lines.insert(before, f"{self._indent}# {Path(line).name}")
            self._shown = line

    def error(self, fact: str, hint: str) -> errors.KernelError:
        """The error for an op that the GPU cannot run."""
        return errors.KernelError(
            f"kernel {self.kernel} on a GPU: {fact}",
            where=self.line,
            hint=f"{hint}, or run the kernel on CPU tensors",
        )

    def _check_fits(self, node: fx.Node) -> None:
        """Raise for tiles that are larger than Triton allows."""
        type = node.meta.get("type")
        if not isinstance(type, TileType):
            return
        count = reduce(
            lambda total, axis: total * self.lane_count(type.shape[axis]),
            self.axes_of(type.shape),
            1,
        )
        if count > _LARGEST_TILE:
            raise self.error(
                f"a tile {type} has {count} elements with padding, at most {_LARGEST_TILE} fit",
                "use smaller blocks, and a tkl.for_loop over the parts of a long row",
            )


def dot_sizes(graph: fx.Graph, facts: Facts) -> dict[Expr, int]:
    """The least padded sizes of the tiles that dots multiply, as Triton's dot has them."""
    least: dict[Expr, int] = {}
    for node in nodes_of(graph):
        if node.target is dot:
            for operand in arguments(node)[:2]:
                type = operand.meta["type"]
                wanted = _LEAST_OF_BYTES if type.dtype.bits == 8 else _LEAST_OF_DOT
                for size in map(facts.simplify, type.shape[-2:]):
                    least[size] = max(least.get(size, 1), wanted)
    return {size: count for size, count in least.items() if size != ONE}


def power_of_two(count: int) -> int:
    """The least power of two that is not below a count."""
    return 1 << max(count - 1, 0).bit_length()


def tight(text: str) -> str:
    """An expression that an index, a call or another operator may follow."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        is_plain = letter.isalnum() or letter in "_.()[]"
        if not depth and not is_plain:
            return f"({text})"
    return text


def _union(axes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted({axis for one in axes for axis in one}))


def union_of(values: Sequence[Value]) -> tuple[int, ...]:
    """The axes that any of some tiles has."""
    return _union([value.axes for value in values])


def magnitude(expr: Expr, facts: Facts, size: int | None) -> int | None:
    """A number that an expression's magnitude does not exceed; `size` is one for all sizes."""
    total = 0
    for monomial, factor in facts.simplify(expr).terms:
        product = abs(factor)
        for atom in monomial:
            most = _magnitude_of(atom, facts, size)
            if most is None:
                return None
            product *= most
        total += product
    return total


def _magnitude_of(atom: Atom, facts: Facts, size: int | None) -> int | None:
    if isinstance(atom, Symbol):
        if atom.kind == "size":
            return size
        within = facts.ranges.get(atom)
        ends = [] if within is None else [within.first, within.last]
        return _largest_of([magnitude(end, facts, size) for end in ends])
    if isinstance(atom, Extreme):
        return _largest_of([magnitude(one, facts, size) for one in (atom.one, atom.other)])
    above, by = magnitude(atom.above, facts, size), facts.simplify(atom.below).number
    return above if above is None or by is None else above // by + 1


def _largest_of(bounds: Sequence[int | None]) -> int | None:
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


FLOOR_DIVIDE = """\
def floor_divide(x, y):
    safe = tl.where(y == 0, 1, y)
    quotient = x // safe
    is_below = (x % safe != 0) & ((x < 0) != (safe < 0))
    return tl.where(y == 0, 0, tl.where(is_below, quotient - 1, quotient))
"""
