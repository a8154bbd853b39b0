"""Trace a kernel: call its function once with traced values, and record a graph of its ops."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from turbine import algebra, errors
from turbine.algebra import Expr, Interval, Symbol
from turbine.dtypes import Dtype
from turbine.kernel.trace.types import BufferType, TileType, dtype_name
from turbine.kernel.trace.user_code import user_line as user_line
from turbine.kernel.trace.validity import ALWAYS, Valid


@dataclass
class Region:
    """The body of a kernel, of a loop or of a branch, while it is traced."""

    graph: fx.Graph
    parent: Region | None
    counter: Symbol | None = None  # of a loop body
    # Nodes of enclosing regions that it uses, and the placeholders for them.
    captured: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def reach(self, node: fx.Node) -> fx.Node:
        """The placeholder for a node of an enclosing region, or the node itself."""
        if node.graph is self.graph:
            return node
        if self.parent is None:
            raise errors.KernelError(
                f"{_origin(node)} is a value of a loop, a branch or another kernel, and is used "
                "outside of it",
                where=user_line(),
                hint="return it from the loop's function and use the results, body[0]",
            )
        outer = self.parent.reach(node)
        if outer not in self.captured:
            place = self.graph.placeholder(outer.name)
            place.meta.update(outer.meta)
            place.meta["stands_for"] = outer
            self.captured[outer] = place
        return self.captured[outer]


@dataclass
class Trace:
    """The state of a trace."""

    name: str
    regions: list[Region]
    grid: tuple[Expr, ...]
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    counters: int = 0
    written: set[str] = field(default_factory=set)
    dtypes: Mapping[str, Dtype] = field(
        default_factory=dict
    )  # the dtypes of tkl.types.T and others
    # Called with the name and the result of each op.
    watch: Callable[[str, Tile], None] | None = None

    @property
    def region(self) -> Region:
        """The innermost region."""
        return self.regions[-1]

    def counter(self, name: str, kind: str, within: Interval | None) -> Expr:
        """Add a symbol for a program id or a loop counter."""
        self.counters += 1
        counter = algebra.symbol(name, kind, self.counters)
        if within is not None:
            self.ranges[_symbol(counter)] = within
        return counter

    def add(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Add a node with the user's line; values of enclosing regions are captured."""
        reached = fx.map_arg((args, kwargs), self.region.reach)
        node = self.region.graph.call_function(target, *reached)
        node.meta["line"] = user_line()
        return node

    @contextmanager
    def inside(self, counter: Symbol | None = None) -> Iterator[Region]:
        """Trace a nested region."""
        region = Region(fx.Graph(), self.region, counter)
        self.regions.append(region)
        try:
            yield region
        finally:
            self.regions.pop()


_active = threading.local()


def current(what: str) -> Trace:
    """The active trace; the error if there is none names `what`."""
    trace: Trace | None = getattr(_active, "trace", None)
    if trace is None:
        raise errors.KernelError(
            f"{what} is used outside a kernel",
            where=user_line(),
            hint="call it in a function under @tk.gen.kernel, or in one that such a function calls",
        )
    return trace


def is_tracing() -> bool:
    """Whether a kernel is being traced."""
    return getattr(_active, "trace", None) is not None


@contextmanager
def enter_trace(trace: Trace) -> Iterator[Trace]:
    """Make a trace the active one."""
    before = getattr(_active, "trace", None)
    _active.trace = trace
    try:
        yield trace
    finally:
        _active.trace = before


def _origin(node: fx.Node) -> str:
    line = node.meta.get("line")
    value = f"the result of {node.target!r}" if node.op == "call_function" else f"{node.name}"
    return value if line is None else f"{value} ({line})"


def _symbol(expr: Expr) -> Symbol:
    (found,) = expr.symbols
    return found


class Traced:
    """A value of a kernel: has operators, and rejects what needs a number at trace time."""

    def __bool__(self) -> bool:
        raise errors.KernelError(
            f"the truth value of {self} is not known while the kernel is traced",
            where=user_line(),
            hint="its value is known when the kernel runs: use tkl.where or tkl.cond; for and, or, "
            "not, max and min write &, |, ~, tkl.maximum and tkl.minimum",
        )

    def __iter__(self) -> Any:
        raise errors.KernelError(
            f"cannot iterate over {self} while the kernel is traced",
            where=user_line(),
            hint="use tkl.for_loop, tkl.sum and the like, or tkl.slice for a part of a tile",
        )

    def __float__(self) -> float:
        raise errors.KernelError(
            f"{self} is not a Python number while the kernel is traced",
            where=user_line(),
            hint="compute with it by operators and tkl's functions, convert by x.to(tkl.i32), "
            "count by tkl.for_loop; sizes are in x.shape",
        )

    __int__ = __index__ = __len__ = __float__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reject PyTorch functions."""
        name = function.__name__
        traced = next((value for value in args if isinstance(value, Traced)), "a value of a kernel")
        raise errors.KernelError(
            f"torch's {name} is called with {traced}",
            where=user_line(),
            hint="use functions of tkl, such as tkl.exp(x); pass a tensor to the kernel as an "
            "argument and read it with tkl.load",
        )

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **keywords: Any) -> Any:
        """Reject NumPy functions."""
        raise errors.KernelError(
            f"numpy's {function.__name__} is called with {self}",
            where=user_line(),
            hint="use functions of tkl, such as tkl.exp(x)",
        )

    def __round__(self) -> Any:
        return OPERATORS["round"](self)

    def __matmul__(self, other: Any) -> Any:
        return OPERATORS["dot"](self, other)

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Any:
        return _operate("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _operate("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _operate("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operate("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _operate("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operate("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _operate("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _operate("truediv", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _operate("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _operate("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return _operate("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _operate("mod", other, self)

    def __pow__(self, other: Any) -> Any:
        return _operate("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _operate("pow", other, self)

    def __and__(self, other: Any) -> Any:
        return _operate("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return _operate("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return _operate("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return _operate("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return _operate("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return _operate("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return _operate("shift_left", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return _operate("shift_left", other, self)

    def __rshift__(self, other: Any) -> Any:
        return _operate("shift_right", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return _operate("shift_right", other, self)

    def __lt__(self, other: Any) -> Any:
        return _operate("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _operate("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _operate("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _operate("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return _operate("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _operate("not_equal", self, other)

    def __neg__(self) -> Any:
        return _operate("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _operate("abs", self)

    def __invert__(self) -> Any:
        return _operate("bitwise_not", self)


# The ops of Python's operators; the modules of lang/ that declare the ops fill it.
OPERATORS: dict[str, Callable[..., Any]] = {}


def _operate(name: str, *operands: Any) -> Any:
    operands = tuple(map(_to_python, operands))
    if all(isinstance(operand, (IndexExpr, int)) for operand in operands):
        on_sizes = _ON_SIZES.get(name)
        if on_sizes is not None:
            return IndexExpr(on_sizes(*map(expr_of, operands)))
        answer = _compare_sizes(name, operands)
        if answer is not None:
            return answer
        if name == "truediv" and not is_tracing():
            raise errors.KernelError(
                f"{operands[0]!r} / {operands[1]!r} is not a size",
                where=user_line(),
                hint=f"write {operands[0]!r} // {operands[1]!r}, which counts blocks in a grid",
            )
    if not all(isinstance(o, (Traced, int, float)) for o in operands):
        return NotImplemented
    return OPERATORS[name](*operands)


def _to_python(operand: Any) -> Any:
    """Convert NumPy scalars to Python numbers."""
    if isinstance(operand, (Traced, int, float)) or not isinstance(operand, numbers.Real):
        return operand
    return int(operand) if isinstance(operand, numbers.Integral) else float(operand)


_ON_SIZES: dict[str, Callable[..., Expr]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": algebra.quotient,
    "mod": algebra.remainder,
    "neg": lambda x: -x,
}


def _compare_sizes(name: str, operands: Sequence[Any]) -> bool | None:
    """The result of comparing sizes, if it does not depend on a tensor."""
    if name not in ("equal", "not_equal"):
        return None
    gap = (expr_of(operands[0]) - expr_of(operands[1])).number
    if gap is None and is_tracing():
        return None
    return (gap == 0) == (name == "equal")


class IndexExpr(Traced):
    """An integer expression of sizes, program ids and loop counters: `i * BM + 1`, `Index(5)`."""

    def __init__(self, expr: Expr | int) -> None:
        self.expr = algebra.as_expr(expr)

    def __repr__(self) -> str:
        return str(self.expr)

    def __hash__(self) -> int:
        return hash(self.expr)


class IndexSymbol(IndexExpr):
    """A named size: `tkl.sym.M`."""

    @property
    def name(self) -> str:
        """The name of the size."""
        return str(self.expr)


def symbol_name(symbol: Any) -> str:
    """The name of a size, given as a symbol or a name."""
    return symbol.name if isinstance(symbol, IndexSymbol) else str(symbol)


def expr_of(value: Any) -> Expr:
    """Convert a size to an expression."""
    return value.expr if isinstance(value, IndexExpr) else algebra.as_expr(value)


class _Typed:
    """A value with a shape and a dtype."""

    type: TileType | BufferType

    @property
    def shape(self) -> tuple[IndexExpr, ...]:
        """The size along each axis."""
        return tuple(map(IndexExpr, self.type.shape))

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.type.dtype


class Tile(_Typed, Traced):
    """A block of elements in a traced kernel; a scalar has no axes."""

    type: TileType

    def __init__(self, node: fx.Node, type: TileType, valid: Valid = ALWAYS) -> None:
        self.node = node
        self.type = type
        self.valid = valid
        node.meta["type"] = type
        # The lanes that are computed; a later mask makes another tile of the same node.
        node.meta.setdefault("valid", valid)

    def to(self, dtype: Any) -> Tile:
        """Convert to another dtype."""
        return _tile(OPERATORS["to_dtype"](self, dtype))

    def __getitem__(self, index: Any) -> Tile:
        """Slice, index or add axes: `x[:, None]`, `x[0]`, `x[2:4]`."""
        return _tile(OPERATORS["subscript"](self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise errors.KernelError(
            f"cannot assign to a part of {self}",
            where=user_line(),
            hint="tiles are immutable: make another with tkl.where or tkl.concatenate, or write "
            "to a buffer with tkl.store",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # probed by Python
            raise AttributeError(name)
        raise AttributeError(
            f"{self} has no attribute {name!r}: it has shape, dtype, to() and indexing; everything "
            "else is a function that returns a tile, such as tkl.sum(x)"
        )

    def __repr__(self) -> str:
        return f"a tile {self.type}" if self.type.rank else f"a traced {dtype_name(self.dtype)}"

    __hash__ = Traced.__hash__


def _tile(value: Any) -> Tile:
    assert isinstance(value, Tile)
    return value


class Buffer(_Typed):
    """A tensor argument of a traced kernel: read with tkl.load, written with tkl.store."""

    type: BufferType

    def __init__(self, name: str, node: fx.Node, type: BufferType) -> None:
        self.name = name
        self.node = node
        self.type = type
        node.meta["type"] = type
        node.meta["buffer"] = name  # the graph may have renamed it

    def __getitem__(self, index: Any) -> Tile:
        return _tile(OPERATORS["load"](self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        OPERATORS["store"](self, index, value)

    def _refuse(self, *_: Any) -> Any:
        raise errors.KernelError(
            f"cannot compute with {self}",
            where=user_line(),
            hint=f"load a tile first: tkl.load({self.name}, index, shape)",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __iter__ = __float__ = _refuse

    def __repr__(self) -> str:
        return f"buffer {self.name}: {self.type}"
