"""Write the matmul of two tiles as loops over register tiles.

    acc[:m, :n] += a[:m, :k] @ b[:k, :n]

Both operands are packed to panels: some rows of a, some columns of b, stored step by step along
the contraction and padded with zeros. A register tile is the product of a panel of a and a panel
of b, which are read once, in order. An operand with a suitable layout is used in place.

    shape = register_tile((64, 64), "f32", 16)
    rows = pack(w, a, ROWS, (m, k), (64, 64), shape, allocate)          # once, if a stays the same
    columns = pack(w, b, COLUMNS, (n, k), (64, 64), shape, allocate)
    multiply(w, rows, columns, sums_in(acc, "memref<64x64xf32>", "f32"))

`product` does all of this. Sizes are the static sizes of the tile; extents are the valid part of
it, perhaps dynamic. No operand is read outside its extents. The accumulator has the size of the
tile and may be written everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from turbine.mlir.writer import Index, Value, Writer

# The side of an operand: the axis that its panels divide.
ROWS, COLUMNS = 0, 1

BYTES = {"f32": 4, "f64": 8, "i32": 4, "i64": 8}
# The number of vector registers, by their bytes: NEON, AVX2, AVX-512.
REGISTERS = {16: 32, 32: 16, 64: 32}
# NEON multiplies by a lane of another vector; wider vectors need a broadcast load.
LANES_FROM_VECTORS = 16
# Latency of an fma in cycles; two fmas and two loads start in each cycle.
LATENCY = 4

# Bytes of a cache line, and of the L1 cache at least.
LINE, NEAR = 64, 32 * 1024
# Steps copied at once where no transpose is needed: each is about a cache line.
STEPS = 8

# Allocates a memref of an element type and a count; returns its name.
Allocate = Callable[[str, int], str]


@dataclass(frozen=True)
class Operand:
    """How to read an operand, in the accumulator's element type.

    `read(w, row, column, axis, lanes)` loads a vector along the contiguous axis, or a scalar for 0
    lanes. `prefetch(w, row, column)` prefetches an element of a buffer.

    An operand that is `in_memory`, in this type, is used in place if packing does not pay: if it
    is read only once, or if it is `near`, with rows so close that reading them again is cheap. Its
    rows must be contiguous. All columns of the right operand must be valid; for invalid rows of
    the left one, the last valid row is read.
    """

    read: Callable[[Writer, Index, Index, int, int], Value]
    contiguous: int
    prefetch: Callable[[Writer, Index, Index], None] | None = None
    in_memory: bool = False
    near: bool = False


@dataclass(frozen=True)
class Sums:
    """The accumulator: `load(w, row, column, lanes)` starts sums, `store` takes the totals.

    `prefetch(w, row, column)` prefetches an element of one in memory.
    """

    load: Callable[[Writer, Index, Index, int], Value]
    store: Callable[[Writer, Value, Index, Index], None]
    prefetch: Callable[[Writer, Index, Index], None] | None = None


def sums_in(memory: str, type: str, element: str) -> Sums:
    """An accumulator in memory."""

    def load(w: Writer, row: Index, column: Index, lanes: int) -> Value:
        return w.load(memory, type, [row, column], element, lanes)

    def store(w: Writer, total: Value, row: Index, column: Index) -> None:
        w.store(total, memory, type, [row, column])

    def prefetch(w: Writer, row: Index, column: Index) -> None:
        at = f"{w.index(row)}, {w.index(column)}"
        w.line(f"memref.prefetch {memory}[{at}], read, locality<3>, data : {type}")

    return Sums(load, store, prefetch)


@dataclass(frozen=True)
class RegisterTile:
    """The block of the result that is held in registers: rows of vectors."""

    rows: int
    columns: int
    lanes: int
    element: str

    @property
    def vectors(self) -> int:
        """The number of vectors in a row."""
        return len(_pieces(self.columns, self.lanes))

    @property
    def by_lane(self) -> bool:
        """Whether a is loaded as vectors and multiplied lane by lane."""
        return self.lanes * BYTES[self.element] == LANES_FROM_VECTORS


@dataclass(frozen=True)
class Panels:
    """A packed operand: the width of its panels, and its extents across and along them.

    Step s of panel p is at `(p * sizes[1] + s) * width`; an `operand` is used in place.
    """

    memory: str
    type: str
    shape: RegisterTile
    width: int
    extents: tuple[Index, Index]
    sizes: tuple[int, int]
    operand: Operand | None = None


def product(
    w: Writer,
    a: Operand,
    b: Operand,
    sums: Sums,
    *,
    extents: tuple[Index, Index, Index],
    sizes: tuple[int, int, int],
    element: str,
    vector_bytes: int,
    allocate: Allocate,
) -> tuple[Panels, Panels]:
    """Write acc[:m, :n] += a[:m, :k] @ b[:k, :n]; extents and sizes are in the order m, n, k."""
    (m, n, k), (rows, columns, depth) = extents, sizes
    shape = register_tile((rows, columns), element, vector_bytes)
    once = columns <= shape.columns
    left = pack(w, a, ROWS, (m, k), (rows, depth), shape, allocate, read_once=once)
    once = rows <= shape.rows
    right = pack(w, b, COLUMNS, (n, k), (columns, depth), shape, allocate, read_once=once)
    multiply(w, left, right, sums)
    return left, right


def describe(left: Panels, right: Panels) -> str:
    """Describe the register tile of a matmul, and whether its operands are packed."""
    tile = left.shape
    used, available = _registers(tile), REGISTERS[tile.lanes * BYTES[tile.element]]
    packing = [
        f"{name} {'packed' if panels.operand is None else 'in place'}"
        for name, panels in (("a", left), ("b", right))
    ]
    return (
        f"register tile {tile.rows} x {tile.columns} ({used} of {available} registers), "
        + ", ".join(packing)
    )


# Register tiles


@cache
def register_tile(sizes: tuple[int, int], element: str, vector_bytes: int) -> RegisterTile:
    """Choose the register tile with the fewest estimated cycles for these sizes."""
    lanes = vector_bytes // BYTES[element]
    shapes = [
        RegisterTile(min(rows, sizes[0]), min(vectors * lanes, sizes[1]), lanes, element)
        for rows in range(1, 17)
        for vectors in range(1, 9)
    ]
    fitting = [shape for shape in shapes if _registers(shape) <= REGISTERS[vector_bytes]]
    return min(fitting, key=lambda shape: _cycles(shape, sizes))


def _registers(shape: RegisterTile) -> int:
    factors = len(_pieces(shape.rows, shape.lanes)) if shape.by_lane else 1
    return (shape.rows + 1) * shape.vectors + factors


def _cycles(shape: RegisterTile, sizes: tuple[int, int]) -> float:
    """Estimate the cycles of one step of the contraction, with a cost for each loop."""
    rows, columns = _split(sizes[0], shape.rows), _split(sizes[1], shape.columns)
    parts = [(n * m, r, c) for n, r in rows for m, c in columns]
    return sum(n * _body_cycles(shape, r, c) for n, r, c in parts) * (1 + len(parts) / 50)


def _body_cycles(shape: RegisterTile, rows: int, columns: int) -> float:
    vectors = len(_pieces(columns, shape.lanes))
    loads = vectors + (len(_pieces(rows, shape.lanes)) if shape.by_lane else rows)
    # Wide vectors of b are whole cache lines, which a long panel has in L2.
    misses = 0 if shape.by_lane else vectors / 8
    return max(rows * vectors / 2, loads / 2, LATENCY) + loads / 10 + misses


def _split(size: int, width: int) -> list[tuple[int, int]]:
    """(Count, width) of the panels of a size: whole ones, and perhaps a narrower one."""
    whole, rest = divmod(size, width)
    return [(count, w) for count, w in ((whole, width), (1, rest)) if count and w]


def _pieces(count: int, lanes: int) -> list[tuple[int, int]]:
    """(Start, lanes) of vectors that cover a count; the last ones are shorter powers of two."""
    pieces, start = [], 0
    while start < count:
        while lanes > count - start:
            lanes //= 2
        pieces.append((start, lanes))
        start += lanes
    return pieces


# Packing


def pack(
    w: Writer,
    operand: Operand,
    side: int,
    extents: tuple[Index, Index],
    sizes: tuple[int, int],
    shape: RegisterTile,
    allocate: Allocate,
    *,
    read_once: bool = False,
) -> Panels:
    """Pack an operand to panels; extents and sizes are across the panels, then along them."""
    width = shape.columns if side == COLUMNS else shape.rows
    is_copied = not operand.in_memory or not (operand.near or read_once)
    if not is_copied and _can_use_in_place(operand, side, extents, sizes, shape):
        return Panels("", "", shape, width, extents, sizes, operand)
    # The last vector of a panel may extend into the next one.
    over = shape.lanes if width % shape.lanes else 0
    count = -(-sizes[0] // width) * width * sizes[1] + over
    memory = allocate(shape.element, count)
    kind = f"memref<{count}x{shape.element}>"
    panels = Panels(memory, kind, shape, width, extents, sizes)
    whole, total = w.floordiv(extents[0], width), _panel_count(w, panels)
    if operand.contiguous == side:
        _copy(w, operand, side, panels, whole)
    elif whole != 0:
        with w.loop(0, whole) as loop:
            _Packing(operand, side, panels, loop.counter, False).transpose(w)
    if whole != total:
        with w.loop(whole, total) as loop:
            _Packing(operand, side, panels, loop.counter, True).write(w)
    return panels


def _can_use_in_place(
    operand: Operand,
    side: int,
    extents: tuple[Index, Index],
    sizes: tuple[int, int],
    shape: RegisterTile,
) -> bool:
    if operand.contiguous != COLUMNS:
        return False
    if side == COLUMNS:
        return extents[0] == sizes[0]
    # By lane, one vector is loaded for each row.
    registers = (shape.rows + 1) * shape.vectors + shape.rows
    return not shape.by_lane or registers <= REGISTERS[LANES_FROM_VECTORS]


def _copy(w: Writer, operand: Operand, side: int, panels: Panels, whole: Index) -> None:
    """Copy a few steps of every panel at a time, in the order of memory."""
    depth = panels.extents[1]
    many = w.mul(w.floordiv(depth, STEPS), STEPS)
    for start, stop, count in ((0, many, STEPS), (many, depth, 1)):
        if start == stop:
            continue
        with w.loop(start, stop, count) as steps, w.loop(0, whole) as loop:
            packing = _Packing(operand, side, panels, loop.counter, False)
            for i in range(count):
                packing.step(w, w.add(steps.counter, i), panels.shape.lanes)


def _panel_count(w: Writer, panels: Panels) -> Index:
    return w.floordiv(w.add(panels.extents[0], panels.width - 1), panels.width)


@dataclass(frozen=True)
class _Packing:
    """Packs one panel; at the edge, missing rows or columns are zero."""

    operand: Operand
    side: int
    panels: Panels
    panel: Value
    edge: bool

    def write(self, w: Writer) -> None:
        if self.operand.contiguous == self.side:
            self._steps(w, 0, self.panels.extents[1])
        else:
            self.transpose(w)

    def transpose(self, w: Writer) -> None:
        """Transpose squares of vectors along the panel; copy the remainder step by step."""
        depth, lanes = self.panels.extents[1], self.panels.shape.lanes
        whole = w.mul(w.floordiv(depth, lanes), lanes)
        with w.loop(0, whole, lanes) as loop:
            self._prefetch(w, loop.counter)
            self._transpose(w, loop.counter)
        if whole != depth:
            self._steps(w, whole, depth)

    def _steps(self, w: Writer, start: Index, stop: Index) -> None:
        with w.loop(start, stop) as loop:
            self.step(w, loop.counter, 1)

    def step(self, w: Writer, step: Index, lanes: int) -> None:
        """Copy one step, in vectors across the panel."""
        for across, length in _pieces(self.panels.width, lanes):
            value = self._read(w, across, step, length if length > 1 else 0)
            self._store(w, value, step, across)

    def _prefetch(self, w: Writer, step: Index) -> None:
        """Prefetch this part of the next panel, a share of its rows in each iteration."""
        if self.operand.prefetch is None or self.edge:
            return
        width, shape = self.panels.width, self.panels.shape
        iterations = max(1, LINE // (shape.lanes * BYTES[shape.element]))
        share = -(-width // iterations)
        iteration = w.mod(w.floordiv(step, shape.lanes), iterations)
        start = w.add(w.mul(w.add(self.panel, 1), width), w.mul(iteration, share))
        with w.loop(0, share) as loop:
            across = w.add(start, loop.counter)
            across = w.min(across, w.sub(self.panels.extents[0], 1))
            self.operand.prefetch(w, *self._place(across, step))

    def _transpose(self, w: Writer, step: Index) -> None:
        """Copy as many steps as a vector has lanes, from vectors along the panel."""
        lanes, width = self.panels.shape.lanes, self.panels.width
        # A square of many lanes is long code, so it is written once, in a loop.
        if lanes < 8 or width % lanes:
            self._transpose_part(w, step, 0, width)
            return
        with w.loop(0, width, lanes) as loop:
            self._transpose_part(w, step, loop.counter, lanes)

    def _transpose_part(self, w: Writer, step: Index, start: Index, count: int) -> None:
        lanes = self.panels.shape.lanes
        zero = w.constant(0, self.panels.shape.element, lanes)
        rows = [self._read(w, w.add(start, across), step, lanes) for across in range(count)]
        rows += [zero] * (-count % lanes)
        groups = [_transpose_square(w, rows[i : i + lanes]) for i in range(0, count, lanes)]
        # In order: the next step or panel overwrites the excess lanes of a vector.
        for i in range(lanes):
            for group, columns in enumerate(groups):
                self._store(w, columns[i], w.add(step, i), w.add(start, group * lanes))

    def _read(self, w: Writer, across: Index, along: Index, lanes: int) -> Value:
        place = w.add(w.mul(self.panel, self.panels.width), across)
        if not self.edge:
            return self._read_at(w, place, along, lanes)
        extent = w.index(self.panels.extents[0])
        value = self._read_at(w, w.min(place, w.sub(extent, 1)), along, lanes)
        inside = w.compare("arith.cmpi", "slt", w.index(place), extent)
        return w.select(inside, value, w.constant(0, value.element, lanes))

    def _read_at(self, w: Writer, across: Index, along: Index, lanes: int) -> Value:
        place = self._place(across, along)
        return self.operand.read(w, *place, self.operand.contiguous, lanes)

    def _place(self, across: Index, along: Index) -> tuple[Index, Index]:
        return (along, across) if self.side == COLUMNS else (across, along)

    def _store(self, w: Writer, value: Value, step: Index, across: Index) -> None:
        place = w.add(_step_offset(w, self.panels, self.panel, step), across)
        w.store(value, self.panels.memory, self.panels.type, [place])


def _step_offset(w: Writer, panels: Panels, panel: Index, step: Index) -> Index:
    return w.add(w.mul(panel, panels.sizes[1] * panels.width), w.mul(step, panels.width))


def _transpose_square(w: Writer, rows: Sequence[Value]) -> list[Value]:
    """Transpose a square: exchange blocks of 1, 2, 4 ... across the diagonal."""
    rows, lanes = list(rows), len(rows)
    block = 1
    while block < lanes:
        for i in (i for i in range(lanes) if not i & block):
            rows[i], rows[i + block] = _exchange(w, rows[i], rows[i + block], block)
        block *= 2
    return rows


def _exchange(w: Writer, x: Value, y: Value, block: int) -> tuple[Value, Value]:
    lanes = range(x.lanes)
    upper = [i if not i & block else x.lanes + i - block for i in lanes]
    lower = [i + block if not i & block else x.lanes + i for i in lanes]
    return _shuffle(w, x, y, upper), _shuffle(w, x, y, lower)


def _shuffle(w: Writer, x: Value, y: Value, places: list[int]) -> Value:
    text = f"vector.shuffle {x}, {y} {places} : {x.type}, {y.type}"
    return w.emit(text, x.element, len(places))


# Multiplication


def multiply(w: Writer, left: Panels, right: Panels, sums: Sums) -> None:
    """Add the matmul of two packed operands to the accumulator."""
    for first, last, columns in _groups(w, right):
        with w.loop(first, last) as outer:
            for start, stop, rows in _groups(w, left):
                with w.loop(start, stop) as inner:
                    body = _Body(left, right, inner.counter, outer.counter, rows, columns)
                    body.write(w, sums)


def _groups(w: Writer, panels: Panels) -> Iterator[tuple[Index, Index, int]]:
    """(Start, stop, width) of panels; the last is cut at the accumulator's edge."""
    whole, rest = divmod(panels.sizes[0], panels.width)
    total = _panel_count(w, panels)
    if whole:
        yield 0, w.min(total, whole), panels.width
    if rest:
        yield whole, total, rest


@dataclass(frozen=True)
class _Body:
    """Multiplies two panels to a block of rows and columns."""

    left: Panels
    right: Panels
    row_panel: Value
    column_panel: Value
    rows: int
    columns: int

    def write(self, w: Writer, sums: Sums) -> None:
        places = list(self._places(w))
        started = [sums.load(w, *at, lanes) for at, lanes in places]
        if sums.prefetch is not None:
            self._prefetch_next(w, sums.prefetch)
        for (at, _), total in zip(places, self._contract(w, started), strict=True):
            sums.store(w, total, *at)

    def _contract(self, w: Writer, sums: list[Value]) -> list[Value]:
        depth = self.left.extents[1]
        count = self._steps_at_once()
        many = w.mul(w.floordiv(depth, count), count)
        for start, stop, steps in ((0, many, count), (many, depth, 1)):
            if start == stop:
                continue
            with w.loop(start, stop, steps, carried=sums) as loop:
                loop.yielded = loop.carried
                for i, left in enumerate(self._factors(w, loop.counter, steps)):
                    step = w.add(loop.counter, i)
                    loop.yielded = self._step(w, loop.yielded, left, step)
            sums = loop.results
        return sums

    def _steps_at_once(self) -> int:
        """The lanes of a vector of the left operand, if it is used in place by lane."""
        shape = self.left.shape
        return shape.lanes if self.left.operand is not None and shape.by_lane else 1

    def _prefetch_next(self, w: Writer, prefetch: Callable[[Writer, Index, Index], None]) -> None:
        """Prefetch the accumulators of the next rows, if all of them exceed L1."""
        (rows, _), (columns, _) = self.left.sizes, self.right.sizes
        if rows * columns * BYTES[self.left.shape.element] <= NEAR:
            return
        start = w.mul(w.add(self.row_panel, 1), self.left.width)
        column = w.mul(self.column_panel, self.right.width)
        for i in range(self.rows):
            prefetch(w, w.min(w.add(start, i), rows - 1), column)

    def _places(self, w: Writer) -> Iterator[tuple[tuple[Index, Index], int]]:
        row = w.mul(self.row_panel, self.left.width)
        column = w.mul(self.column_panel, self.right.width)
        for i in range(self.rows):
            for start, lanes in _pieces(self.columns, self.left.shape.lanes):
                yield (w.add(row, i), w.add(column, start)), lanes

    def _step(
        self, w: Writer, sums: Sequence[Value], left: list[Value], step: Index
    ) -> list[Value]:
        right = [
            self._right(w, step, *piece) for piece in _pieces(self.columns, self.right.shape.lanes)
        ]
        factors = [(x, y) for x in left for y in right]
        return [
            _multiply_add(w, w.splat(x, y.lanes), y, total)
            for (x, y), total in zip(factors, sums, strict=True)
        ]

    def _right(self, w: Writer, step: Index, start: int, lanes: int) -> Value:
        panels = self.right
        if panels.operand is not None:
            column = w.add(w.mul(self.column_panel, panels.width), start)
            return panels.operand.read(w, step, column, 1, lanes)
        at = w.add(_step_offset(w, panels, self.column_panel, step), start)
        return w.load(panels.memory, panels.type, [at], panels.shape.element, lanes)

    def _factors(self, w: Writer, step: Index, count: int) -> list[list[Value]]:
        """The factors of the left panel, for each of some steps."""
        operand = self.left.operand
        if operand is None:
            return [self._packed_factors(w, step)]
        lanes = count if count > 1 else 0
        values = [operand.read(w, row, step, 1, lanes) for row in self._left_rows(w)]
        return [[_lane(w, x, i) for x in values] for i in range(count)] if lanes else [values]

    def _left_rows(self, w: Writer) -> list[Index]:
        """The rows of the left panel; invalid ones are replaced by the last valid one."""
        first = w.mul(self.row_panel, self.left.width)
        rows = [w.add(first, i) for i in range(self.rows)]
        extent = self.left.extents[0]
        if extent == self.left.sizes[0]:
            return rows
        return [w.min(row, w.sub(extent, 1)) for row in rows]

    def _packed_factors(self, w: Writer, step: Index) -> list[Value]:
        panels, shape = self.left, self.left.shape
        at = _step_offset(w, panels, self.row_panel, step)
        if not shape.by_lane:
            places = [w.add(at, i) for i in range(self.rows)]
            return [w.load(panels.memory, panels.type, [i], shape.element, 0) for i in places]
        pieces = [
            w.load(panels.memory, panels.type, [w.add(at, start)], shape.element, lanes)
            for start, lanes in _pieces(self.rows, shape.lanes)
        ]
        return [_lane(w, piece, i) for piece in pieces for i in range(piece.lanes)]


def _lane(w: Writer, x: Value, i: int) -> Value:
    return w.emit(f"vector.extract {x}[{i}] : {x.element} from {x.type}", x.element)


def _multiply_add(w: Writer, x: Value, y: Value, total: Value) -> Value:
    if total.element.startswith("f"):
        return w.emit(f"vector.fma {x}, {y}, {total} : {x.type}", x.element, x.lanes)
    return w.binary("arith.addi", w.binary("arith.muli", x, y), total)
