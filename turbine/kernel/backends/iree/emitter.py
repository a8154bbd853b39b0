"""Write the body of a kernel: nodes in, loops over lanes out.

Note [Tiles are functions]
A tile is a function from a lane's coordinates to the code that computes it. Elementwise ops only
wrap the functions of their operands, so a chain of them becomes one loop. A tile that is used
repeatedly, or as a whole, is materialized: computed into a scratch buffer. Loops run over valid
lanes, so no access is out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import fx

from turbine import errors
from turbine.algebra import Atom, Expr, Extreme, Quotient, Symbol, as_expr, ceiling
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.kernel.backends.iree.plan import Plan
from turbine.kernel.backends.iree.tiles import Coord, Coords, ScratchBuffer, TileValue, lanes_of
from turbine.kernel.lang.control_flow import Body
from turbine.kernel.lang.products import dot
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import Alarm, Site
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.validity import Bound
from turbine.mlir.writer import Index, Value, Writer

# Bytes computed at once: several vector registers on most CPUs, so that instructions overlap.
_VECTOR_BYTES = 64
# A worker's stack is small: larger scratch buffers, and those that no longer fit, are in the heap.
_LARGEST_ON_STACK = 1 << 14
_STACK_BYTES = 3 << 14
_ALIGNMENT = 64
# A tile whose lanes cost more than this is materialized if it has several uses.
_CHEAP = 6
# A tile whose lanes cost more than this is always materialized.
_LONG = 150

# The most workgroups of a launch: see Note [Few workgroups].
WORKGROUPS = 32

# The first lane along an axis and the end, exclusive.
Extent = tuple[Index, Index]


@dataclass(frozen=True)
class Source:
    """A buffer of the kernel: its memref and the sizes of its axes."""

    name: str
    type: str
    shape: tuple[Index, ...]
    dtype: Dtype
    is_written: bool


@dataclass(frozen=True)
class Scratch:
    """Scratch memory in the heap, one part for each workgroup."""

    name: str
    element: str
    shape: tuple[Expr, ...]

    @property
    def bytes(self) -> Expr:
        """The size of a part, rounded up to whole cache lines."""
        total = as_expr(max(int(self.element[1:]) // 8, 1))
        for size in self.shape:
            total = total * size
        return ceiling(total, _VECTOR_BYTES) * _VECTOR_BYTES


_NOWHERE = Value("", "index")
# Computes a tile in an order of its own; what it is given is written for all lanes of a vector.
Deferred = Callable[[Callable[[Coords], None]], None]
Rule = Callable[["Emitter", fx.Node], Any]
RULES: dict[Op, Rule] = {}


@dataclass
class Emitter:
    """Writes the code of one kernel."""

    kernel: str
    facts: Facts
    known: dict[Symbol, Index]  # sizes, and the counters of enclosing loops
    w: Writer = field(default_factory=Writer)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    vector_bytes: int = 0  # of the CPU's registers; 0 where only sizes are computed
    has_amx: bool = False
    scratch: list[Scratch] = field(default_factory=list)
    # Nodes whose result is written to an existing buffer.
    destinations: dict[fx.Node, ScratchBuffer] = field(default_factory=dict)
    # Stores that compute the matmul they store, as `epilogue` has it, and the ops between.
    deferred: dict[fx.Node, Deferred] = field(default_factory=dict)
    fused: set[fx.Node] = field(default_factory=set)
    alarms: list[Alarm] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    number: Value = _NOWHERE  # of the program
    is_serial: bool = False  # whether programs must run in sequence
    is_uneven: bool = False  # whether some programs may take longer than others
    stack: int = 0
    buffers: int = 0
    scopes: list[dict[Any, Value]] = field(default_factory=lambda: [{}])
    plan: Plan = field(default_factory=Plan)

    # Regions

    def region(self, graph: fx.Graph) -> None:
        """Write every node of a region."""
        for node in graph.nodes:
            if node.op == "call_function":
                with self.plan.step(node, self.w):
                    self.values[node] = self._place(node, self._apply_rule(node))

    def _apply_rule(self, node: fx.Node) -> Any:
        op = node.target
        assert isinstance(op, Op)
        if op not in RULES:
            raise errors.KernelError(
                f"kernel {self.kernel}: {op!r} is not supported on the CPU",
                where=node.meta.get("line"),
                hint=f"run it in the interpreter: {self.kernel}.interpret(...)",
            )
        return RULES[op](self, node)

    def _place(self, node: fx.Node, value: Any) -> Any:
        """Keep a tile as a value, in a scratch buffer, or as a function."""
        if not isinstance(value, TileValue) or value.buffer is not None or value.weight == 0:
            return value
        if node in self.fused:  # its only user computes it
            return value
        if value.is_single:
            return self.evaluate(node, value)
        if _is_left_operand_in_loop(node):
            return self.materialize(node, value, "left operand of a matmul in a loop")
        users = len(node.users)
        in_loop = any(_is_region(user) for user in node.users)
        if value.weight > _LONG:
            return self.materialize(node, value, f"{value.weight} ops an element")
        if value.weight > _CHEAP and (users > 1 or in_loop):
            often = "used in a loop" if in_loop else f"used {users} times"
            return self.materialize(node, value, f"{often}, {value.weight} ops an element")
        return value

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Enter a scope: values computed inside are not visible outside."""
        self.scopes.append({})
        try:
            yield
        finally:
            self.scopes.pop()

    # Sizes

    def index(self, expr: Expr) -> Index:
        """Compute a size, an offset or a limit, once for each scope."""
        simple = self.facts.simplify(expr)
        if simple.number is not None:
            return simple.number
        return self._compute_once(("index", simple), lambda: self.w.index(self._sum(simple)))

    def _compute_once(self, key: Any, compute: Callable[[], Value]) -> Value:
        for scope in reversed(self.scopes):
            found: Value | None = scope.get(key)
            if found is not None:
                return found
        value = compute()
        self.scopes[-1][key] = value
        return value

    def _sum(self, expr: Expr) -> Index:
        total: Index = 0
        for monomial, factor in expr.terms:
            product: Index = factor
            for atom in monomial:
                product = self.w.mul(product, self._atom(atom))
            total = self.w.add(total, product)
        return total

    def _atom(self, atom: Atom) -> Index:
        if isinstance(atom, Symbol):
            return self.known[atom]
        if isinstance(atom, Quotient):
            return self.w.floordiv(self.index(atom.above), self.index(atom.below))
        assert isinstance(atom, Extreme)
        choose = self.w.min if atom.name == "min" else self.w.max
        return choose(self.index(atom.one), self.index(atom.other))

    def sizes(self, shape: Sequence[Expr]) -> tuple[Index, ...]:
        """Compute a shape."""
        return tuple(self.index(size) for size in shape)

    # Lanes

    def extents(self, shape: Sequence[Expr], bounds: Sequence[Bound]) -> list[Extent]:
        """The ranges of lanes that satisfy bounds; proven bounds cost nothing."""
        extents: list[Extent] = [(0, size) for size in self.sizes(shape)]
        for bound in bounds:
            if bound.axis is not None:
                extents[bound.axis] = self._within(bound, shape[bound.axis], extents[bound.axis])
        condition = self.condition(bounds)
        if condition is not None and extents:
            first, end = extents[0]
            none = self.w.select(condition, self.w.index(end), self.w.index(0))
            extents[0] = (first, none)
        return extents

    def _within(self, bound: Bound, size: Expr, extent: Extent) -> Extent:
        first, end = extent
        offset = self.index(bound.offset)
        if not self.facts.starts_inside(bound):
            first = self.w.max(first, self.w.sub(0, offset))
        if not self.facts.ends_inside(bound, size):
            end = self.w.min(end, self.w.sub(self.index(bound.limit), offset))
        return first, end

    def condition(self, bounds: Sequence[Bound]) -> Value | None:
        """Whether the bounds that are not along an axis hold; None if that is proven."""
        found: Value | None = None
        for bound in bounds:
            if bound.axis is not None:
                continue
            checks = []
            if not self.facts.starts_inside(bound):
                checks.append(self._compare("sge", bound.offset, 0))
            if not self.facts.is_proven(bound.limit - bound.offset - 1):
                checks.append(self._compare("slt", bound.offset, self.index(bound.limit)))
            for check in checks:
                found = check if found is None else self.w.binary("arith.andi", found, check)
        return found

    def _compare(self, predicate: str, expr: Expr, limit: Index) -> Value:
        one, other = self.w.index(self.index(expr)), self.w.index(limit)
        return self.w.compare("arith.cmpi", predicate, one, other)

    def is_guarded(self, shape: Sequence[Expr], bounds: Sequence[Bound]) -> bool:
        """Whether bounds may mask off some lanes."""
        return any(
            not self.facts.starts_inside(bound)
            or not self.facts.ends_inside(
                bound, shape[bound.axis] if bound.axis is not None else _ONE
            )
            for bound in bounds
        )

    def at(self, tile: TileValue, coords: Coords) -> Value:
        """Compute a lane or a vector of lanes, once for each scope."""
        return self._compute_once((tile, coords), lambda: tile.compute(coords))

    def spread(self, value: Value, coords: Coords) -> Value:
        """Splat a value to the vector length of coordinates."""
        lanes = lanes_of(coords)
        return self.w.splat(value, lanes) if lanes else value

    # Loops

    def sweep(
        self,
        extents: Sequence[Extent],
        lanes: int,
        body: Callable[[Coords], None],
    ) -> None:
        """Write loops over lanes; the last axis with several lanes is vectorized."""
        self._sweep(extents, (), vector_axis(extents), lanes, body)

    def sweep_inside(
        self,
        shape: Sequence[Expr],
        bounds: Sequence[Bound],
        body: Callable[[Coords], None],
        by_vectors_of: Dtype | None,
    ) -> None:
        """Write loops over the lanes of a tile that satisfy bounds; a scalar gets a branch."""
        extents = self.extents(shape, bounds)
        condition = self.condition(bounds) if not extents else None
        lanes = 0 if by_vectors_of is None else lanes_for(by_vectors_of, extents)
        if condition is None:
            self.sweep(extents, lanes, body)
            return
        with self.w.branch(condition), self.scope():
            body(())

    def _sweep(
        self,
        extents: Sequence[Extent],
        done: Coords,
        axis: int | None,
        lanes: int,
        body: Callable[[Coords], None],
    ) -> None:
        if len(done) == len(extents):
            body(done)
            return
        first, end = extents[len(done)]

        def inner(coord: Coord) -> None:
            self._sweep(extents, (*done, coord), axis, lanes, body)

        if len(done) == axis and lanes > 1:
            self.by_vectors(first, end, lanes, inner)
        else:
            self.one_by_one(first, end, inner)

    def one_by_one(self, first: Index, end: Index, body: Callable[[Coord], None]) -> None:
        """Write a loop over single lanes."""
        if isinstance(first, int) and isinstance(end, int) and end - first <= 1:
            if end - first == 1:
                body(Coord(first))
            return
        with self.w.loop(first, end) as loop, self.scope():
            body(Coord(loop.counter))

    def by_vectors(
        self, first: Index, end: Index, lanes: int, body: Callable[[Coord], None]
    ) -> None:
        """Write a loop over vectors of lanes, then one over the remainder."""
        middle = self.middle(first, end, lanes)
        if isinstance(first, int) and middle == first + lanes:
            body(Coord(first, lanes))
        elif middle != first:
            with self.w.loop(first, middle, lanes) as loop, self.scope():
                body(Coord(loop.counter, lanes))
        self.one_by_one(middle, end, body)

    def middle(self, first: Index, end: Index, lanes: int) -> Index:
        """The end of the last whole vector."""
        w = self.w
        count = w.max(w.sub(end, first), 0)
        return w.add(first, w.mul(w.floordiv(count, lanes), lanes))

    # Scratch buffers

    def materialize(self, node: fx.Node, tile: TileValue, why: str) -> TileValue:
        """Compute the valid lanes of a tile into a scratch buffer."""
        if tile.buffer is not None:
            return tile
        self.plan.compute(node, why)
        shape = node.meta["type"].shape
        buffer = self.allocate(shape, tile.dtype, node)
        self.fill(buffer, tile, self.extents(shape, node.meta["valid"].bounds))
        return self.tile_in(buffer, tile.shape)

    def tile_in(self, buffer: ScratchBuffer, shape: tuple[Index, ...]) -> TileValue:
        """The tile in a scratch buffer."""

        def compute(coords: Coords) -> Value:
            raw = self.read(buffer.name, buffer.type, buffer.dtype, coords)
            return elements.from_storage(self.w, raw, buffer.dtype)

        return TileValue(shape, buffer.dtype, compute, 1, {buffer.name: True}, buffer)

    def fill(self, buffer: ScratchBuffer, tile: TileValue, extents: Sequence[Extent]) -> None:
        """Compute lanes of a tile into a scratch buffer."""

        def body(coords: Coords) -> None:
            self.put(buffer, coords, self.at(tile, coords))

        self.sweep(extents, lanes_for(tile.dtype, extents), body)

    def put(self, buffer: ScratchBuffer, coords: Coords, value: Value) -> None:
        """Write lanes to a scratch buffer."""
        raw = elements.to_store(self.w, self.spread(value, coords), buffer.dtype)
        self.write(raw, buffer.name, buffer.type, coords)

    def allocate(
        self, shape: Sequence[Expr], dtype: Dtype, node: fx.Node | None = None
    ) -> ScratchBuffer:
        """Allocate a scratch buffer, on the stack if it is small, else in the heap.

        The plan lists it under the node whose code is being written, or under `node`.
        """
        sizes = [self.facts.simplify(size) for size in shape]
        element = elements.storage_type(dtype)
        numbers = [size.number for size in sizes]
        self.buffers += 1
        count = -(-dtype.itemsize * prod(n or 0 for n in numbers) // _ALIGNMENT) * _ALIGNMENT
        is_small = None not in numbers and count <= _LARGEST_ON_STACK
        if is_small and self.stack + count <= _STACK_BYTES:
            self.stack += count
            self.plan.allocate(as_expr(count), node=node, on_stack=True)
            type = f"memref<{''.join(f'{n}x' for n in numbers)}{element}>"
            self.w.top.append(
                f"%buffer{self.buffers} = memref.alloca() alignment = {_ALIGNMENT} : {type}"
            )
            return ScratchBuffer(f"%buffer{self.buffers}", type, dtype)
        name = f"%scratch{len(self.scratch)}"
        scratch = Scratch(name, element, tuple(sizes))
        self.scratch.append(scratch)
        self.plan.allocate(scratch.bytes, node=node, on_stack=False)
        dims = "".join("?x" if n is None else f"{n}x" for n in numbers)
        return ScratchBuffer(name, f"memref<{dims}{element}>", dtype)

    # Memory

    def read(self, name: str, type: str, dtype: Dtype, places: Sequence[Coord]) -> Value:
        """Load elements of a memref in their storage type."""
        element, lanes = elements.storage_type(dtype), lanes_of(tuple(places))
        at = [place.base for place in places]
        if not lanes or places[-1].lanes:
            return self.w.load(name, type, at, element, lanes)
        parts = [
            self.w.load(
                name, type, [self.w.add(p.base, step if p.lanes else 0) for p in places], element, 0
            )
            for step in range(lanes)
        ]
        return self.join_lanes(parts)

    def address(
        self, name: str, type: str, dtype: Dtype, shape: Sequence[Index], places: Coords
    ) -> Index:
        """The address of an element of a contiguous memref."""
        w, place = self.w, _FIRST
        for at, size in zip(places, shape, strict=True):
            place = w.add(w.mul(place, size), at.base)

        text = f"memref.extract_aligned_pointer_as_index {name} : {type} -> index"
        start = self._compute_once(("address", name), lambda: w.emit(text, "index"))
        return w.add(start, w.mul(place, dtype.itemsize))

    def join_lanes(self, parts: Sequence[Value]) -> Value:
        """Build a vector from scalars."""
        listed = ", ".join(map(str, parts))
        made = Value("", parts[0].element, len(parts))
        return self.w.emit(f"vector.from_elements {listed} : {made.type}", made.element, len(parts))

    def write(self, value: Value, name: str, type: str, places: Sequence[Coord]) -> None:
        """Store elements to a memref."""
        at = [place.base for place in places]
        if not value.lanes or places[-1].lanes:
            self.w.store(value, name, type, at)
            return
        for step in range(value.lanes):
            part = self.lane(value, step)
            self.w.store(
                part, name, type, [self.w.add(p.base, step if p.lanes else 0) for p in places]
            )

    def lane(self, value: Value, step: int) -> Value:
        """Extract a lane of a vector."""
        return self.w.emit(
            f"vector.extract {value}[{step}] : {value.element} from {value.type}", value.element
        )

    # Values

    def evaluate(self, node: fx.Node, tile: TileValue) -> TileValue:
        """Compute a tile of one element now."""
        self.plan.compute(node)
        zeros = tuple(Coord(0) for _ in tile.shape)
        valid = node.meta.get("valid")
        condition = None if valid is None else self.condition(valid.bounds)
        value = self.at(tile, zeros) if condition is None else self._if(condition, tile, zeros)
        return TileValue(tile.shape, tile.dtype, lambda coords: value)

    def _if(self, condition: Value, tile: TileValue, coords: Coords) -> Value:
        """Compute a value if a condition holds, else return zero."""
        element = elements.carrier(tile.dtype)
        result = self.w.fresh(element)
        self.w.line(f"{result} = scf.if {condition} -> ({element}) {{")
        self.w.depth += 1
        with self.scope():
            value = self.at(tile, coords)
        self.w.line(f"scf.yield {value} : {element}")
        self.w.depth -= 1
        self.w.line("} else {")
        self.w.line(f"  scf.yield {self.w.constant(0, element)} : {element}")
        self.w.line("}")
        return result

    def tile(self, node: Any) -> TileValue:
        """The tile of an operand."""
        value = self.values[node]
        assert isinstance(value, TileValue)
        return value


_ONE = Expr((((), 1),))
_FIRST: Index = 0


def vector_axis(extents: Sequence[Extent]) -> int | None:
    """The last axis that has more than one lane."""
    for axis in range(len(extents) - 1, -1, -1):
        first, end = extents[axis]
        if not (isinstance(first, int) and isinstance(end, int) and end - first <= 1):
            return axis
    return None


def lanes_for(dtype: Dtype, extents: Sequence[Extent]) -> int:
    """The vector length along an axis: a power of two no longer than the axis."""
    lanes = _VECTOR_BYTES // max(dtype.itemsize, 4)
    axis = vector_axis(extents)
    if axis is None:
        return 0
    first, end = extents[axis]
    if isinstance(first, int) and isinstance(end, int):
        while lanes > end - first:
            lanes //= 2
    return lanes if lanes > 1 else 0


def _is_left_operand_in_loop(node: fx.Node) -> bool:
    """Whether a loop uses the tile as the left operand of a matmul."""
    for user in node.users:
        if not _is_region(user):
            continue
        body, captured = user.args[-2], user.args[-1]
        assert isinstance(body, Body)
        places = [place for place in body.graph.nodes if place.op == "placeholder"]
        around = zip(captured, places[body.carried :], strict=True)
        if any(outer is node and _is_left_operand(place) for outer, place in around):
            return True
    return False


def _is_left_operand(node: fx.Node) -> bool:
    return any(user.target is dot and user.args[0] is node for user in node.users)


def _is_region(node: fx.Node) -> bool:
    return isinstance(node.target, Op) and node.target.name in ("for_op", "while_op")
