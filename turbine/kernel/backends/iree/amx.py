"""Write the matmul of two bf16 tiles with AMX, the matrix registers of x86_64.

    acc[:m, :n] += a[:m, :k] @ b[:k, :n]

A matrix register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of 32 elements of a
with 32 x 16 elements of b and adds to 16 x 16 sums in f32. It wants pairs of elements of b that are
neighbours along the contraction next to each other, so b is packed, a part of the contraction at a
time. Rows of a are read in place.

Of the eight registers, four hold sums, two hold rows of a and two hold columns of b. LLVM does not
use them by itself, so each instruction names its registers. At the edge, registers of a and of sums
have fewer rows; no row outside of a is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turbine.mlir.writer import Index, Value, Writer
from turbine.target import PERMISSION_REQUEST

# Rows of a register, and the bytes of a row.
ROWS, ROW_BYTES = 16, 64
# Columns of a register of sums, and steps of the contraction in a row of a.
COLUMNS, STEPS = ROW_BYTES // 4, ROW_BYTES // 2
# Steps of the contraction that are packed at once: with 32 columns they take 64 KiB.
_DEPTH = 1024

# Registers: sums of the blocks (i, j) are in 2 * i + j.
_SUMS, _LEFT, _RIGHT = 0, 4, 6
_REGISTERS = 8
# The layout of a tile configuration: the palette, bytes of rows, counts of rows.
_CONFIG_BYTES, _CONFIG_WIDTHS, _CONFIG_ROWS = 64, 16, 48


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory: its address, the bytes of an element, and those from row to row."""

    start: Index
    itemsize: int
    row_bytes: Index

    def address(self, w: Writer, row: Index, column: Index) -> Index:
        """The address of an element."""
        return w.add(w.add(self.start, w.mul(row, self.row_bytes)), w.mul(column, self.itemsize))


@dataclass(frozen=True)
class Memory:
    """A memref of one axis, and the address of its first element."""

    name: str
    type: str
    address: Value


# Allocates a memref of an element type and a count.
Allocate = Callable[[str, int], Memory]


def fits(n: Index, k: Index) -> bool:
    """Whether whole registers cover n columns and a contraction of k steps."""
    return isinstance(n, int) and isinstance(k, int) and n % COLUMNS == 0 and k % STEPS == 0


def product(
    w: Writer,
    a: Matrix,
    b: Matrix,
    acc: Matrix,
    *,
    extents: tuple[Index, int, int],
    allocate: Allocate,
) -> None:
    """Write acc[:m, :n] += a[:m, :k] @ b[:k, :n]; extents are in the order m, n, k."""
    _request_permission(w)
    m, n, k = extents
    depth = min(k, _DEPTH)
    pairs = _Pairs(allocate("i16", n * depth), depth)
    config = allocate("i8", _CONFIG_BYTES)
    with w.loop(0, k, depth) as parts:
        part = w.min(w.sub(k, parts.counter), depth)
        _pack(w, b, pairs, parts.counter, n, part)
        block = _Block(a, pairs, acc, parts.counter, part)
        whole = w.mul(w.floordiv(m, 2 * ROWS), 2 * ROWS)
        if whole != 0:
            _configure(w, config, ROWS)
            with w.loop(0, whole, 2 * ROWS) as rows:
                block.over_columns(w, rows.counter, 2, n)
        if whole != m:
            with w.loop(whole, m, ROWS) as rows:
                _configure(w, config, w.min(w.sub(m, rows.counter), ROWS))
                block.over_columns(w, rows.counter, 1, n)
    _assembly(w, ["tilerelease"])


def _request_permission(w: Writer) -> None:
    """Ask Linux once to let the process use AMX: code also runs in IREE's own tools."""
    lines = [
        *(
            f"%amx_{name} = arith.constant {number} : i64"
            for name, number in zip(_REQUEST, PERMISSION_REQUEST, strict=True)
        ),
        '%amx_answer = llvm.inline_asm has_side_effects asm_dialect = att "syscall", '
        '"={ax},{ax},{di},{si},~{rcx},~{r11},~{memory}" '
        f"{', '.join(f'%amx_{name}' for name in _REQUEST)} : (i64, i64, i64) -> i64",
    ]
    if lines[-1] not in w.top:
        w.top.extend(lines)


_REQUEST = ("call", "request", "state")


def _configure(w: Writer, config: Memory, rows: Index) -> None:
    """Set the rows of the registers of a and of sums; those of b have all rows."""
    content = [0] * _CONFIG_BYTES
    content[0] = 1  # the palette
    for register in range(_REGISTERS):
        content[_CONFIG_WIDTHS + 2 * register] = ROW_BYTES
        content[_CONFIG_ROWS + register] = ROWS
    text = f"arith.constant dense<{content}> : vector<{_CONFIG_BYTES}xi8>"
    w.store(w.emit(text, "i8", _CONFIG_BYTES), config.name, config.type, [0])
    if rows != ROWS:
        count = w.convert("arith.index_cast", w.index(rows), "i8")
        for register in range(_RIGHT):
            w.store(count, config.name, config.type, [_CONFIG_ROWS + register])
    _assembly(w, ["ldtilecfg ($0)"], [config.address])


@dataclass(frozen=True)
class _Pairs:
    """Columns of b, 16 at a time: for each two steps, 16 pairs of elements."""

    memory: Memory
    depth: int

    def place(self, w: Writer, column: Index, step: Index) -> Index:
        """The index of the pairs of 16 columns that start at a column, from a step on."""
        return w.add(w.mul(column, self.depth), w.mul(step, COLUMNS))


def _pack(w: Writer, b: Matrix, pairs: _Pairs, first: Index, n: int, part: Index) -> None:
    order = [lane + half * COLUMNS for lane in range(COLUMNS) for half in range(2)]
    with w.loop(0, part, 2) as steps:
        for column in range(0, n, COLUMNS):
            one, other = (
                _load(w, b.address(w, w.add(first, w.add(steps.counter, i)), column))
                for i in range(2)
            )
            text = f"vector.shuffle {one}, {other} {order} : {one.type}, {other.type}"
            joined = w.emit(text, "i16", 2 * COLUMNS)
            place = pairs.place(w, column, steps.counter)
            w.store(joined, pairs.memory.name, pairs.memory.type, [place])


def _load(w: Writer, address: Index) -> Value:
    """Load 16 elements of 16 bits."""
    pointer = w.emit(f"llvm.inttoptr {_integer(w, address)} : i64 to !llvm.ptr", "!llvm.ptr")
    kind = f"vector<{COLUMNS}xi16>"
    options = "<{alignment = 2 : i64, ordering = 0 : i64}>"
    text = f'"llvm.load"({pointer}) {options} : (!llvm.ptr) -> {kind}'
    return w.emit(text, "i16", COLUMNS)


@dataclass(frozen=True)
class _Block:
    """Multiplies a part of the contraction, for blocks of rows and columns."""

    a: Matrix
    pairs: _Pairs
    acc: Matrix
    first: Index
    part: Index

    def over_columns(self, w: Writer, row: Index, height: int, n: int) -> None:
        """Write blocks of `height` times 16 rows and of 32 columns, then of 16 columns."""
        whole = n // (2 * COLUMNS) * (2 * COLUMNS)
        for start, stop, width in ((0, whole, 2), (whole, n, 1)):
            if start == stop:
                continue
            with w.loop(start, stop, width * COLUMNS) as columns:
                self._write(w, row, columns.counter, height, width)

    def _write(self, w: Writer, row: Index, column: Index, height: int, width: int) -> None:
        rows = [w.add(row, i * ROWS) for i in range(height)]
        columns = [w.add(column, j * COLUMNS) for j in range(width)]
        sums = [
            (_SUMS + 2 * i + j, self.acc.address(w, rows[i], columns[j]))
            for i in range(height)
            for j in range(width)
        ]
        for register, address in sums:
            _assembly(w, [f"tileloadd ($0,$1), %tmm{register}"], [address, self.acc.row_bytes])
        with w.loop(0, self.part, STEPS) as steps:
            self._step(w, rows, columns, steps.counter)
        for register, address in sums:
            _assembly(w, [f"tilestored %tmm{register}, ($0,$1)"], [address, self.acc.row_bytes])

    def _step(
        self, w: Writer, rows: Sequence[Index], columns: Sequence[Index], step: Index
    ) -> None:
        along = w.add(self.first, step)
        left = [self.a.address(w, row, along) for row in rows]
        right = [
            w.add(self.pairs.memory.address, w.mul(self.pairs.place(w, column, step), 2))
            for column in columns
        ]
        operands: list[Index] = [self.a.row_bytes, ROW_BYTES, *left, *right]
        text = [f"tileloadd (${2 + i},$0), %tmm{_LEFT + i}" for i in range(len(left))]
        text += [
            f"tileloadd (${2 + len(left) + j},$1), %tmm{_RIGHT + j}" for j in range(len(right))
        ]
        text += [
            f"tdpbf16ps %tmm{_RIGHT + j}, %tmm{_LEFT + i}, %tmm{_SUMS + 2 * i + j}"
            for i in range(len(left))
            for j in range(len(right))
        ]
        _assembly(w, text, operands)


def _integer(w: Writer, index: Index) -> Value:
    return w.convert("arith.index_cast", w.index(index), "i64")


def _assembly(w: Writer, lines: Sequence[str], operands: Sequence[Index] = ()) -> None:
    """Write instructions that may read and write all memory."""
    values = [_integer(w, operand) for operand in operands]
    text, constraints = "\\0A".join(lines), ",".join(["r"] * len(values) + ["~{memory}"])
    types = ", ".join("i64" for _ in values)
    w.line(
        f'llvm.inline_asm has_side_effects asm_dialect = att "{text}", "{constraints}" '
        f"{', '.join(map(str, values))} : ({types}) -> ()"
    )
