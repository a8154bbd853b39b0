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

    product: Product
    half_product: Product  # of elements of 16 bits
    byte_product: Product
    alone: Block = Block(1024, "the only axis of its tiles")
    last: Block = Block(1024, "the last axis of its tiles: long rows are read in line")
    before: Block = Block(4, "not the last axis of its tiles")
    either: Block = Block(64, "the last axis of some tiles, not of others")


@dataclass(frozen=True)
class Product:
    """The block sizes of products."""

    rows: Block
    columns: Block
    summed: Block
    both: Block  # axes of products that feed each other


def _product(rows: int, columns: int, summed: int, both: int) -> Product:
    return Product(
        Block(rows, "the rows of a product"),
        Block(columns, "the columns of a product"),
        Block(summed, "the contraction of a product"),
        Block(both, "products that feed each other"),
    )


_OF_CPU = _product(256, 256, 256, 64)
CHOICES = {
    "cpu": Choices(_OF_CPU, _OF_CPU, _OF_CPU),
    "cuda": Choices(
        product=_product(128, 64, 32, 64),
        half_product=_product(128, 256, 64, 128),
        byte_product=_product(256, 128, 128, 128),
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
    sizes = _sizes_of(program, choices)
    if (rows | columns) & summed:
        return dict.fromkeys(rows | columns | summed, sizes.both)
    return {
        **dict.fromkeys(summed, sizes.summed),
        **dict.fromkeys(columns, sizes.columns),
        **dict.fromkeys(rows, sizes.rows),
    }


def _sizes_of(program: KernelProgram, choices: Choices) -> Product:
    """The block sizes for the widest elements that a program multiplies."""
    dots = [node for node in nodes_of(program.graph) if node.target is dot]
    bits = max((a.meta["type"].dtype.bits for a, *_ in map(arguments, dots)), default=32)
    return {8: choices.byte_product, 16: choices.half_product}.get(bits, choices.product)


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
