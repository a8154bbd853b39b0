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


_ALONE = Block(1024, "the only axis of its tiles")
_LAST = Block(1024, "the last axis of its tiles: long rows are read in line")
_BEFORE = Block(4, "not the last axis of its tiles")
_EITHER = Block(64, "the last axis of some tiles, not of others")
_RESULT = Block(256, "an axis of a product")
_SUMMED = Block(256, "the contraction of a product")
_BOTH = Block(64, "products that feed each other")


def choose_blocks(program: KernelProgram, inferred: Collection[Symbol]) -> dict[Symbol, Block]:
    """A block size for each symbol that is not inferred, except those in output shapes."""
    chosen = {**_by_axis(program), **_of_products(program)}
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


def _of_products(program: KernelProgram) -> dict[Symbol, Block]:
    """Large tiles, unless a contracted axis of one dot is an axis of another's result."""
    results: set[Symbol] = set()
    summed: set[Symbol] = set()
    for a, b in _products(program):
        summed |= a[-1].symbols
        results |= {s for size in (*a[:-1], b[-1]) for s in size.symbols}
    if results & summed:
        return dict.fromkeys(results | summed, _BOTH)
    return {**dict.fromkeys(summed, _SUMMED), **dict.fromkeys(results, _RESULT)}


def _by_axis(program: KernelProgram) -> dict[Symbol, Block]:
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
        **dict.fromkeys(counted | alone, _ALONE),
        **dict.fromkeys(last, _LAST),
        **dict.fromkeys(before, _BEFORE),
        **dict.fromkeys(last & before, _EITHER),
    }
