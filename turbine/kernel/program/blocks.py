"""Choose the block sizes that a user left open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from turbine.algebra import Expr, Symbol
from turbine.kernel.lang.products import dot
from turbine.kernel.program.program import KernelProgram, nodes_of
from turbine.kernel.trace.op import arguments
from turbine.kernel.trace.types import BufferType, TileType


@dataclass(frozen=True)
class Block:
    """A chosen block size, with the reason."""

    size: int
    why: str


@dataclass(frozen=True)
class Choices:
    """The block sizes of a kind of device, by how tiles use them."""

    alone: Block
    last: Block
    before: Block
    either: Block
    rows: Block  # an axis of a product
    columns: Block
    summed: Block
    wide_summed: Block  # where operands have 32 bits or more
    fed_rows: Block  # where the result of a product is an operand of another
    both: Block


_ALONE = Block(1024, "the only axis of its tiles")
_LAST = Block(1024, "the last axis of its tiles: long rows are read in line")
_BEFORE = Block(4, "not the last axis of its tiles")
_EITHER = Block(64, "the last axis of some tiles, not of others")
_CPU_RESULT = Block(256, "an axis of a product")
_CPU_SUMMED = Block(256, "the contraction of a product")
_BOTH = Block(64, "products that feed each other")

CHOICES = {
    "cpu": Choices(
        alone=_ALONE,
        last=_LAST,
        before=_BEFORE,
        either=_EITHER,
        rows=_CPU_RESULT,
        columns=_CPU_RESULT,
        summed=_CPU_SUMMED,
        wide_summed=_CPU_SUMMED,
        fed_rows=_BOTH,
        both=_BOTH,
    ),
    "cuda": Choices(
        alone=_ALONE,
        last=_LAST,
        before=_BEFORE,
        either=_EITHER,
        rows=Block(128, "the rows of a product"),
        columns=Block(256, "the columns of a product"),
        summed=Block(64, "the contraction of a product of small elements"),
        wide_summed=Block(32, "the contraction of a product"),
        fed_rows=Block(128, "the rows of products that feed each other"),
        both=_BOTH,
    ),
}


def choose_blocks(
    program: KernelProgram, inferred: Collection[Symbol], device: str = "cpu"
) -> dict[Symbol, Block]:
    """A block size for each symbol that is not inferred, except those in output shapes."""
    choices = CHOICES[device]
    chosen = {**_by_axis(program, choices), **_of_products(program, choices)}
    types = [p.type for p in program.of_usage("output")]
    shapes = [type.shape for type in types if isinstance(type, BufferType)]
    seen = {s for shape in shapes for size in shape for s in size.symbols}
    left_out = {*inferred, *seen}
    return {s: block for s, block in chosen.items() if s not in left_out and s.kind == "size"}


def sizes_of_products(program: KernelProgram) -> set[Symbol]:
    """The symbols in sizes of operands of dots: code is fast if they are static."""
    return {
        s for shapes in _products(program) for shape in shapes for e in shape for s in e.symbols
    }


def _products(program: KernelProgram) -> list[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
    """The shapes of the operands of each dot."""
    dots = [node for node in nodes_of(program.graph) if node.target is dot]
    return [(a.meta["type"].shape, b.meta["type"].shape) for a, b, *_ in map(arguments, dots)]


def _of_products(program: KernelProgram, choices: Choices) -> dict[Symbol, Block]:
    """Large tiles, unless a contracted axis of one dot is an axis of another's result."""
    rows: set[Symbol] = set()
    columns: set[Symbol] = set()
    summed: set[Symbol] = set()
    for a, b in _products(program):
        summed |= a[-1].symbols
        rows |= {s for size in a[:-1] for s in size.symbols}
        columns |= b[-1].symbols
    both = (rows | columns) & summed
    if both:
        return {
            **dict.fromkeys(rows | columns, choices.fed_rows),
            **dict.fromkeys(columns | summed, choices.both),
        }
    contraction = choices.wide_summed if _is_wide(program) else choices.summed
    return {
        **dict.fromkeys(summed, contraction),
        **dict.fromkeys(columns, choices.columns),
        **dict.fromkeys(rows, choices.rows),
    }


def _is_wide(program: KernelProgram) -> bool:
    """Whether a dot multiplies elements of 32 bits or more."""
    dots = [node for node in nodes_of(program.graph) if node.target is dot]
    return any(a.meta["type"].dtype.bits >= 32 for a, *_ in map(arguments, dots))


def _by_axis(program: KernelProgram, choices: Choices) -> dict[Symbol, Block]:
    """Long rows for tiles with several axes: contiguous reads are fastest."""
    alone: set[Symbol] = set()
    last: set[Symbol] = set()
    before: set[Symbol] = set()
    for node in nodes_of(program.graph):
        type = node.meta.get("type")
        if not isinstance(type, TileType):
            continue
        wide = [size for size in type.shape if size.number != 1]
        if len(wide) == 1:
            alone |= wide[0].symbols
        elif wide:
            last |= wide[-1].symbols
            before |= {s for size in wide[:-1] for s in size.symbols}
    counted = {s for count in program.grid for s in count.symbols}
    return {
        **dict.fromkeys(counted | alone, choices.alone),
        **dict.fromkeys(last, choices.last),
        **dict.fromkeys(before, choices.before),
        **dict.fromkeys(last & before, choices.either),
    }
