"""Run a kernel's function once on stand-ins: Python in, a graph of its ops out."""

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
    counter: Symbol | None = None  # of the loop that it is the body of
    # What it uses of the regions around it: their nodes, and the placeholders for them.
    captured: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def reach(self, node: fx.Node) -> fx.Node:
        """The node as this region knows it."""
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
    """A kernel that is being traced."""

    name: str
    regions: list[Region]
    grid: tuple[Expr, ...]
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    counters: int = 0
    written: set[str] = field(default_factory=set)
    dtypes: Mapping[str, Dtype] = field(default_factory=dict)  # what tkl.types.T and the like are
    # Called with each tile that an op gives, when someone looks on.
    watch: Callable[[str, Tile], None] | None = None

    @property
    def region(self) -> Region:
        """The innermost region."""
        return self.regions[-1]

    def counter(self, name: str, kind: str, within: Interval | None) -> Expr:
        """A new counter of programs or of a loop."""
        self.counters += 1
        counter = algebra.symbol(name, kind, self.counters)
        if within is not None:
            self.ranges[_symbol(counter)] = within
        return counter

    def add(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """A node in the region, at the user's line; values of regions around it are reached."""
        reached = fx.map_arg((args, kwargs), self.region.reach)
        node = self.region.graph.call_function(target, *reached)
        node.meta["line"] = user_line()
        return node

    @contextmanager
    def inside(self, counter: Symbol | None = None) -> Iterator[Region]:
        """Trace a region within the one that is traced."""
        region = Region(fx.Graph(), self.region, counter)
        self.regions.append(region)
        try:
            yield region
        finally:
            self.regions.pop()


_active = threading.local()


def current(what: str) -> Trace:
    """The kernel that is traced now; `what` is what needs one."""
    trace: Trace | None = getattr(_active, "trace", None)
    if trace is None:
        raise errors.KernelError(
            f"{what} is used outside a kernel",
            where=user_line(),
            hint="call it in a function under @tk.gen.kernel, or in one that such a function calls",
        )
    return trace


def is_tracing() -> bool:
    """Whether a kernel is traced now."""
    return getattr(_active, "trace", None) is not None


@contextmanager
def enter_trace(trace: Trace) -> Iterator[Trace]:
    """Take what is called in here for a part of this kernel."""
    before = getattr(_active, "trace", None)
    _active.trace = trace
    try:
        yield trace
    finally:
        _active.trace = before


def _origin(node: fx.Node) -> str:
    line = node.meta.get("line")
    made = f"what {node.target!r} gives" if node.op == "call_function" else f"{node.name}"
    return made if line is None else f"{made} ({line})"


def _symbol(expr: Expr) -> Symbol:
    (found,) = expr.symbols
    return found


class Traced:
    """What a value of a kernel answers to Python: operators, and refusals that say why."""

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
        """Functions of PyTorch's are not for values of a kernel."""
        name = function.__name__
        traced = next((value for value in args if isinstance(value, Traced)), "a value of a kernel")
        raise errors.KernelError(
            f"torch's {name} is called with {traced}",
            where=user_line(),
            hint="tkl has functions of tiles, tkl.exp(x); a tensor becomes a tile by being an "
            "argument of the kernel, read by tkl.load",
        )

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **keywords: Any) -> Any:
        """Nor are NumPy's."""
        raise errors.KernelError(
            f"numpy's {function.__name__} is called with {self}",
            where=user_line(),
            hint="tkl has functions of tiles, tkl.exp(x)",
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


# What Python's operators mean: filled by lang/arithmetic.py, which declares the ops.
OPERATORS: dict[str, Callable[..., Any]] = {}


def _operate(name: str, *operands: Any) -> Any:
    operands = tuple(map(_plain, operands))
    if all(isinstance(operand, (IndexExpr, int)) for operand in operands):
        on_sizes = _ON_SIZES.get(name)
        if on_sizes is not None:
            return IndexExpr(on_sizes(*map(expr_of, operands)))
        decided = _decide(name, operands)
        if decided is not None:
            return decided
        if name == "truediv" and not is_tracing():
            raise errors.KernelError(
                f"{operands[0]!r} / {operands[1]!r} is not a size",
                where=user_line(),
                hint=f"write {operands[0]!r} // {operands[1]!r}, which counts blocks in a grid",
            )
    if not all(isinstance(o, (Traced, int, float)) for o in operands):
        return NotImplemented
    return OPERATORS[name](*operands)


def _plain(operand: Any) -> Any:
    """A number as Python has it: NumPy's are taken for that."""
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


def _decide(name: str, operands: Sequence[Any]) -> bool | None:
    """What a comparison of sizes comes to, if that does not depend on a tensor."""
    if name not in ("equal", "not_equal"):
        return None
    gap = (expr_of(operands[0]) - expr_of(operands[1])).number
    if gap is None and is_tracing():
        return None
    return (gap == 0) == (name == "equal")


class IndexExpr(Traced):
    """An integer known from sizes, programs and loops: `i * BM + 1`, or a number, `Index(5)`."""

    def __init__(self, expr: Expr | int) -> None:
        self.expr = algebra.as_expr(expr)

    def __repr__(self) -> str:
        return str(self.expr)

    def __hash__(self) -> int:
        return hash(self.expr)


class IndexSymbol(IndexExpr):
    """A size that has a name: `tkl.sym.M`."""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.expr)


def symbol_name(symbol: Any) -> str:
    """The name of a size that a user gives by its symbol or by its name."""
    return symbol.name if isinstance(symbol, IndexSymbol) else str(symbol)


def expr_of(value: Any) -> Expr:
    """A size as an expression."""
    return value.expr if isinstance(value, IndexExpr) else algebra.as_expr(value)


class _Typed:
    """What has a type with a shape and a dtype."""

    type: TileType | BufferType

    @property
    def shape(self) -> tuple[IndexExpr, ...]:
        """Its sizes."""
        return tuple(map(IndexExpr, self.type.shape))

    @property
    def dtype(self) -> Any:
        """Its element type."""
        return self.type.dtype


class Tile(_Typed, Traced):
    """A block of elements in a kernel that is traced; without axes, a number."""

    type: TileType

    def __init__(self, node: fx.Node, type: TileType, valid: Valid = ALWAYS) -> None:
        self.node = node
        self.type = type
        self.valid = valid
        node.meta["type"] = type
        # Where it can be read; a mask that a user adds later makes another tile of the same node.
        node.meta.setdefault("valid", valid)

    def to(self, dtype: Any) -> Tile:
        """The same numbers as another type."""
        return _tile(OPERATORS["to_dtype"](self, dtype))

    def __getitem__(self, index: Any) -> Tile:
        """Parts and new axes: `x[:, None]`, `x[0]`, `x[2:4]`."""
        return _tile(OPERATORS["subscript"](self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise errors.KernelError(
            f"a part of {self} is assigned to",
            where=user_line(),
            hint="a tile does not change: make another by tkl.where or tkl.concatenate, or write "
            "to a buffer by tkl.store",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which Python asks for
            raise AttributeError(name)
        raise AttributeError(
            f"{self} has no {name!r}: it has shape, dtype, to() and brackets; all else is a "
            "function that gives a new tile, tkl.sum(x)"
        )

    def __repr__(self) -> str:
        return f"a tile {self.type}" if self.type.rank else f"a traced {dtype_name(self.dtype)}"

    __hash__ = Traced.__hash__


def _tile(value: Any) -> Tile:
    assert isinstance(value, Tile)
    return value


class Buffer(_Typed):
    """A tensor of a kernel that is traced: read by tkl.load, written by tkl.store."""

    type: BufferType

    def __init__(self, name: str, node: fx.Node, type: BufferType) -> None:
        self.name = name
        self.node = node
        self.type = type
        node.meta["type"] = type
        node.meta["buffer"] = name  # which the graph may have changed

    def __getitem__(self, index: Any) -> Tile:
        return _tile(OPERATORS["load"](self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        OPERATORS["store"](self, index, value)

    def _refuse(self, *_: Any) -> Any:
        raise errors.KernelError(
            f"Python computes with {self}",
            where=user_line(),
            hint=f"read a tile from it first: tkl.load({self.name}, index, shape)",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __iter__ = __float__ = _refuse

    def __repr__(self) -> str:
        return f"buffer {self.name}: {self.type}"
