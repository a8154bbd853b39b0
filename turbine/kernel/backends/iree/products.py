"""The rule of `tkl.dot`: register tiles if the sizes are static, else row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.algebra import as_expr
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import amx, elements, epilogue, micro_kernel
from turbine.kernel.backends.iree.casting import emit_cast
from turbine.kernel.backends.iree.elements import BF16
from turbine.kernel.backends.iree.emitter import RULES, Emitter, Extent, lanes_for
from turbine.kernel.backends.iree.memory import mask_at
from turbine.kernel.backends.iree.micro_kernel import Operand
from turbine.kernel.backends.iree.tiles import Coord, Coords, Rows, ScratchBuffer, TileValue
from turbine.kernel.lang import products
from turbine.kernel.lang.products import accumulator_dtype
from turbine.kernel.trace.op import arguments, options
from turbine.kernel.trace.types import DTYPES, TileType
from turbine.mlir.writer import Index, Value, Writer

# Rows no further apart than this are cheap to read repeatedly.
_NEAR_BYTES = 1024


@dataclass
class Side:
    """An operand of a matmul, converted to the accumulator's dtype."""

    emitter: Emitter
    tile: TileValue
    masks: list[TileValue]
    extents: list[Extent]
    dtype: Dtype

    def at(self, coords: Coords) -> Value:
        """Compute lanes; masked-off lanes are zero."""
        emitter, w = self.emitter, self.emitter.w
        value = emit_cast(w, emitter.at(self.tile, coords), self.tile.dtype, self.dtype)
        mask = mask_at(emitter, self.masks, coords)
        if mask is None:
            return value
        zero = elements.number(w, 0, self.dtype, mask.lanes)
        return w.select(mask, emitter.spread(value, coords), zero)

    def operand(self, batch: Coords) -> Operand:
        """The operand for register tiles."""
        tile, emitter = self.tile, self.emitter
        rank = len(tile.shape)

        def read(w: Writer, row: Index, column: Index, axis: int, lanes: int) -> Value:
            own = [Coord(row), Coord(column)]
            own[axis] = Coord(own[axis].base, lanes)
            coords = (*batch, *own)
            with emitter.scope():
                value = self.at(coords)
                return emitter.spread(value, coords)

        def prefetch(w: Writer, row: Index, column: Index) -> None:
            assert tile.prefetch is not None
            tile.prefetch((*batch, Coord(row), Coord(column)))

        along = 0 if tile.along == rank - 2 else 1
        ahead = prefetch if tile.prefetch is not None else None
        return Operand(read, along, ahead, self._is_in_memory(), self._is_near())

    def _is_in_memory(self) -> bool:
        """Whether it is in memory, in the accumulator's dtype."""
        is_plain = self.tile.dtype == self.dtype and not self.masks
        return is_plain and (self.tile.buffer is not None or self.tile.rows is not None)

    def _is_near(self) -> bool:
        """Whether its rows are near each other in memory."""
        return isinstance(self.pitch, int) and self.pitch * self.dtype.itemsize <= _NEAR_BYTES

    @property
    def pitch(self) -> Index | None:
        """Elements from one row to the next, if it is in memory."""
        if self.tile.buffer is not None:
            return self.tile.shape[-1]
        return None if self.tile.rows is None else self.tile.rows.pitch


def _dot(emitter: Emitter, node: fx.Node) -> TileValue:
    a, b, acc = arguments(node)
    type: TileType = node.meta["type"]
    wide = accumulator_dtype(type.dtype)
    left, right = _side(emitter, node, 0, a, wide), _side(emitter, node, 1, b, wide)
    first = emitter.w.max(left.extents[-1][0], right.extents[-2][0])
    end = emitter.w.min(left.extents[-1][1], right.extents[-2][1])
    rows = emitter.extents(type.shape, node.meta["valid"].bounds)
    sizes = (*emitter.sizes(type.shape)[-2:], left.tile.shape[-1])
    starts = (rows[-2][0], rows[-1][0], first)
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    is_for_vectors = known and _is_matrix_vector(left, right, sizes)
    is_for_amx = known and _fits_amx(emitter, left, right, rows, (first, end), sizes)
    is_for_tiles = known and all(start == 0 for start in starts)
    if is_for_tiles and not is_for_vectors and not is_for_amx:
        ending = _ending(emitter, node, rows, sizes, wide)
        if ending is not None:
            return _into_store(emitter, node, ending, left, right, end, sizes)
    buffer = _init_accumulator(emitter, node, acc, wide)
    if is_for_vectors:
        emitter.plan.note("matrix-vector product: vectors along the contraction")
        _vector_by_vector(emitter, left, right, buffer, rows, (first, end))
    elif is_for_amx:
        emitter.plan.note("AMX: blocks of 32 x 32 sums")
        held = emitter.tile_in(buffer, emitter.sizes(type.shape))
        _by_amx(emitter, _in_memory(emitter, a), _in_memory(emitter, b), held, rows, sizes)
    elif is_for_tiles:
        _by_register_tiles(emitter, left, right, buffer, rows, end, sizes)
    else:
        reason = "extents do not start at 0" if known else "dynamic sizes"
        emitter.plan.note(f"vectors of the result: {reason}")
        _row_by_row(emitter, left, right, buffer, rows, (first, end))
    held = emitter.tile_in(buffer, emitter.sizes(type.shape))
    return held if wide == type.dtype else _convert(emitter, held, type.dtype)


def _init_accumulator(emitter: Emitter, node: fx.Node, acc: Any, wide: Dtype) -> ScratchBuffer:
    """The accumulator, initialized with the third operand of the dot."""
    type = node.meta["type"]
    tile = emitter.tile(acc)
    buffer = emitter.destinations.get(node) if wide == type.dtype else None
    if buffer is None:
        buffer = emitter.allocate(type.shape, wide)
    if tile.buffer == buffer:
        return buffer
    own = tile if tile.dtype == wide else _convert(emitter, tile, wide)
    emitter.fill(buffer, own, emitter.extents(type.shape, node.meta["valid"].bounds))
    return buffer


def _convert(emitter: Emitter, tile: TileValue, to: Dtype) -> TileValue:
    def compute(coords: Coords) -> Value:
        return emit_cast(emitter.w, emitter.at(tile, coords), tile.dtype, to)

    return TileValue(tile.shape, to, compute, tile.weight + 1, tile.reads)


def _side(emitter: Emitter, node: fx.Node, place: int, operand: Any, dtype: Dtype) -> Side:
    bounds = (*operand.meta["valid"].bounds, *options(node)["bounds"][place])
    masks = [emitter.tile(mask) for mask in options(node)["masks"][place]]
    extents = emitter.extents(operand.meta["type"].shape, list(dict.fromkeys(bounds)))
    return Side(emitter, emitter.tile(operand), masks, extents, dtype)


def _ending(
    emitter: Emitter, node: fx.Node, rows: list[Extent], sizes: Any, wide: Dtype
) -> tuple[fx.Node, list[fx.Node]] | None:
    """The store to compute a matmul in, if all of its lanes are valid and whole vectors."""
    m, n, _ = sizes
    lanes = emitter.vector_bytes // wide.itemsize
    is_whole = rows == [(0, m), (0, n)] and lanes > 0 and n % lanes == 0
    return epilogue.find_store(emitter, node) if is_whole else None


def _into_store(
    emitter: Emitter,
    node: fx.Node,
    ending: tuple[fx.Node, list[fx.Node]],
    left: Side,
    right: Side,
    end: Index,
    sizes: Any,
) -> TileValue:
    """Leave the matmul to the code of its store; its tile is what a register tile holds then."""
    store, ops = ending
    dtype, start = node.meta["type"].dtype, emitter.tile(arguments(node)[2])
    held: dict[Coords, Value] = {}

    def run(body: Callable[[Coords], None]) -> None:
        def load(w: Writer, row: Index, column: Index, lanes: int) -> Value:
            coords = (Coord(row), Coord(column, lanes))
            value = emit_cast(w, emitter.at(start, coords), start.dtype, left.dtype)
            return emitter.spread(value, coords)

        def finish(w: Writer, total: Value, row: Index, column: Index) -> None:
            coords = (Coord(row), Coord(column, total.lanes))
            held[coords] = emit_cast(w, total, left.dtype, dtype)
            with emitter.scope():
                body(coords)

        sums = micro_kernel.Sums(load, finish)
        _multiply(emitter, left, right, (), sums, (sizes[0], sizes[1], end), sizes)

    emitter.deferred[store] = run
    emitter.fused.update([node, *ops])
    return TileValue(emitter.sizes(node.meta["type"].shape), dtype, held.__getitem__, 1)


def _by_register_tiles(
    emitter: Emitter,
    left: Side,
    right: Side,
    buffer: ScratchBuffer,
    rows: list[Extent],
    end: Index,
    sizes: Any,
) -> None:
    w = emitter.w
    extents = w.max(rows[-2][1], 0), w.max(rows[-1][1], 0), end

    def body(batch: Coords) -> None:
        sums = micro_kernel.sums_in(*_matrix(emitter, buffer, batch, sizes), left.dtype.mlir)
        _multiply(emitter, left, right, batch, sums, extents, sizes)

    emitter.sweep(rows[:-2], 0, body)


def _multiply(
    emitter: Emitter,
    left: Side,
    right: Side,
    batch: Coords,
    sums: micro_kernel.Sums,
    extents: tuple[Index, Index, Index],
    sizes: Any,
) -> None:
    """One matmul of a batch."""

    def memory(kind: str, count: int) -> str:
        dtype = DTYPES[kind]
        return emitter.allocate((as_expr(count),), dtype).name

    m, n, end = extents
    panels = micro_kernel.product(
        emitter.w,
        left.operand(batch),
        right.operand(batch),
        sums,
        extents=(m, n, emitter.w.max(end, 0)),
        sizes=sizes,
        element=left.dtype.mlir,
        vector_bytes=emitter.vector_bytes,
        allocate=memory,
    )
    emitter.plan.note(micro_kernel.describe(*panels))


def _fits_amx(
    emitter: Emitter,
    left: Side,
    right: Side,
    rows: list[Extent],
    summed: Extent,
    sizes: Any,
) -> bool:
    """Whether both are tiles of bf16 that matrix registers cover without a remainder."""
    is_bf16 = all(side.tile.dtype == BF16 and not side.masks for side in (left, right))
    is_whole = rows[-1] == (0, sizes[1]) and summed == (0, sizes[2]) and rows[-2][0] == 0
    return emitter.has_amx and is_bf16 and is_whole and amx.fits(*sizes[1:])


def _by_amx(
    emitter: Emitter,
    left: TileValue,
    right: TileValue,
    held: TileValue,
    rows: list[Extent],
    sizes: Any,
) -> None:
    w, (_, n, k) = emitter.w, sizes

    def matrix(tile: TileValue, batch: Coords) -> amx.Matrix:
        found = _rows_in_memory(emitter, tile)
        start, size = found.address((*batch, Coord(0), Coord(0))), tile.dtype.itemsize
        return amx.Matrix(start, size, w.mul(found.pitch, size))

    def memory(kind: str, count: int) -> amx.Memory:
        made = emitter.allocate((as_expr(count),), DTYPES[kind])
        address = emitter.address(made.name, made.type, made.dtype, (count,), (Coord(0),))
        return amx.Memory(made.name, made.type, w.index(address))

    def body(batch: Coords) -> None:
        a, b, acc = (matrix(tile, batch) for tile in (left, right, held))
        extents = (w.max(rows[-2][1], 0), n, k)
        amx.product(w, a, b, acc, extents=extents, allocate=memory)

    emitter.sweep(rows[:-2], 0, body)


def _in_memory(emitter: Emitter, node: fx.Node) -> TileValue:
    """An operand in memory, row by row."""
    tile = emitter.tile(node)
    return tile if tile.rows is not None else emitter.materialize(node, tile, "operand of AMX")


def _rows_in_memory(emitter: Emitter, tile: TileValue) -> Rows:
    """The rows of a tile that is a block of a buffer, or in a scratch buffer."""
    if tile.rows is not None:
        return tile.rows
    buffer = tile.buffer
    assert buffer is not None

    def address(coords: Coords) -> Index:
        return emitter.address(buffer.name, buffer.type, buffer.dtype, tile.shape, coords)

    return Rows(tile.shape[-1], address)


def _matrix(emitter: Emitter, buffer: ScratchBuffer, batch: Coords, sizes: Any) -> tuple[str, str]:
    """The accumulator of one matrix of a batch."""
    if not batch:
        return buffer.name, buffer.type
    m, n, _ = sizes
    element = elements.storage_type(buffer.dtype)
    at = ", ".join([*(str(emitter.w.index(c.base)) for c in batch), "0", "0"])
    ones = ", ".join(["1"] * (len(batch) + 2))
    shape = ", ".join([*["1"] * len(batch), str(m), str(n)])
    type = f"memref<{m}x{n}x{element}, strided<[{n}, 1], offset: ?>>"
    text = f"memref.subview {buffer.name}[{at}] [{shape}] [{ones}] : {buffer.type} to {type}"
    return str(emitter.w.emit(text, type)), type


def _is_matrix_vector(left: Side, right: Side, sizes: Any) -> bool:
    """Whether one operand is a vector and the other is contiguous along the contraction."""
    m, n, k = sizes
    runs_along_rows = left.tile.along != len(left.tile.shape) - 2
    runs_along_columns = right.tile.along == len(right.tile.shape) - 2
    lanes = lanes_for(left.dtype, [(0, k)])
    return 0 < 2 * lanes <= k and ((n == 1 and runs_along_rows) or (m == 1 and runs_along_columns))


def _vector_by_vector(
    emitter: Emitter,
    left: Side,
    right: Side,
    buffer: ScratchBuffer,
    rows: list[Extent],
    summed: Extent,
) -> None:
    """Vectors along the contraction: nothing is read twice, so nothing is packed."""
    w, dtype = emitter.w, left.dtype
    held = emitter.tile_in(buffer, ())
    first, end = summed[0], w.max(*summed)
    lanes = lanes_for(dtype, [(0, left.tile.shape[-1])])
    whole = w.add(first, w.mul(w.floordiv(w.sub(end, first), lanes), lanes))
    add = _multiply_add(w, dtype)

    def step(k: Coord, coords: Coords, acc: Value) -> Value:
        row, column = (*coords[:-1], k), (*coords[:-2], k, coords[-1])
        x, y = emitter.spread(left.at(row), row), emitter.spread(right.at(column), column)
        return add(x, y, acc)

    def body(coords: Coords) -> None:
        zeros = elements.number(w, 0, dtype, lanes)
        with w.loop(first, whole, lanes, [zeros]) as loop, emitter.scope():
            loop.yielded = [step(Coord(loop.counter, lanes), coords, loop.carried[0])]
        (part,) = loop.results
        text = f"vector.reduction <add>, {part}, {held.compute(coords)}"
        total = w.emit(f"{text} : {part.type} into {part.element}", part.element)
        with w.loop(whole, end, 1, [total]) as loop, emitter.scope():
            loop.yielded = [step(Coord(loop.counter), coords, loop.carried[0])]
        emitter.put(buffer, coords, loop.results[0])

    emitter.sweep(rows, 0, body)


def _row_by_row(
    emitter: Emitter,
    left: Side,
    right: Side,
    buffer: ScratchBuffer,
    rows: list[Extent],
    summed: Extent,
) -> None:
    """A loop along the contraction for each vector of the result."""
    w, dtype = emitter.w, left.dtype
    held = emitter.tile_in(buffer, ())
    add = _multiply_add(w, dtype)

    def body(coords: Coords) -> None:
        start = held.compute(coords)
        with w.loop(*summed, 1, [start]) as loop, emitter.scope():
            k = Coord(loop.counter)
            x = emitter.spread(left.at((*coords[:-1], k)), coords)
            y = emitter.spread(right.at((*coords[:-2], k, coords[-1])), coords)
            loop.yielded = [add(x, y, loop.carried[0])]
        emitter.put(buffer, coords, loop.results[0])

    emitter.sweep(rows, lanes_for(dtype, rows), body)


def _multiply_add(w: Writer, dtype: Dtype) -> Callable[[Value, Value, Value], Value]:
    """The function of x * y + z."""
    if dtype.kind == "float":
        return lambda x, y, z: w.emit(f"math.fma {x}, {y}, {z} : {x.type}", x.element, x.lanes)
    return lambda x, y, z: w.binary("arith.addi", z, w.binary("arith.muli", x, y))


RULES[products.dot] = _dot
