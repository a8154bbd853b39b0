"""Sizes of tiles that a user left open."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import fx

from turbine.kernel.algebra import Symbol
from turbine.kernel.lang.control_flow import Body
from turbine.kernel.program import Program
from turbine.kernel.types import TileType

# Lanes along an axis of a tile, by how many axes the tile has.
_LANES = {1: 1024, 2: 64}
_LANES_OF_MORE = 32


def chosen_blocks(program: Program, told: Collection[Symbol]) -> dict[Symbol, int]:
    """A size for each symbol that no tensor tells: the more axes its tiles have, the smaller."""
    ranks: dict[Symbol, int] = {}
    for node in _nodes(program.graph):
        type = node.meta.get("type")
        if not isinstance(type, TileType):
            continue
        wide = sum(size.number != 1 for size in type.shape)
        for symbol in {s for size in type.shape for s in size.symbols}:
            ranks[symbol] = max(ranks.get(symbol, 0), wide)
    for count in program.grid:
        for symbol in count.symbols:
            ranks.setdefault(symbol, 1)
    return {
        symbol: _LANES.get(rank, _LANES_OF_MORE)
        for symbol, rank in ranks.items()
        if symbol not in told and symbol.kind == "size"
    }


def _nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    """Every node, those of loops and branches too."""
    for node in graph.nodes:
        yield node
        for argument in node.args:
            if isinstance(argument, Body):
                yield from _nodes(argument.graph)
