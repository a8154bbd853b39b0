"""Change a configuration a little: those around it that could be faster, without hopeless ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

from turbine.algebra import Atom, Expr, Extreme, Quotient, Symbol
from turbine.kernel.backends.triton.schedule import Schedule, is_grouped
from turbine.kernel.call.configuration import Configuration, blocks_of
from turbine.kernel.lang.control_flow import for_op
from turbine.kernel.program.blocks import sizes_of_products
from turbine.kernel.program.program import KernelProgram, nodes_of
from turbine.kernel.trace.types import TileType

# Elements of a tile from which on it does not fit the caches of a core, or the registers of a GPU.
_MOST_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 16}
_LEAST_OF_PRODUCT = 16
_MOST_WARPS, _MOST_STAGES, _MOST_GROUP_ROWS = 32, 6, 32


@dataclass(frozen=True)
class Space:
    """What can be changed of a kernel in a call: a device, and sizes that bound blocks."""

    program: KernelProgram
    sizes: Mapping[Symbol, int]
    device: str

    def neighbours(
        self, configuration: Configuration, schedule: Schedule | None
    ) -> Iterator[dict[str, int]]:
        """Those with one block or option doubled or halved, or one block at the cost of another.

        `schedule` is what options that are not set have been chosen to be, on a GPU.
        """
        blocks = blocks_of(configuration)
        changes = [
            {name: size} for name in blocks for size in (2 * blocks[name], blocks[name] // 2)
        ]
        in_products = [n for n in blocks if n in {s.name for s in sizes_of_products(self.program)}]
        changes += [
            {one: 2 * blocks[one], other: blocks[other] // 2}
            for one, other in permutations(in_products, 2)
        ]
        largest = max(self._largest_tile(blocks), _MOST_ELEMENTS[self.device])
        for change in changes:
            if self._fits(change, blocks) and self._largest_tile({**blocks, **change}) <= largest:
                yield {**configuration, **change}
        if schedule is not None:
            yield from ({**configuration, **change} for change in self._of_schedule(schedule))

    def _of_schedule(self, schedule: Schedule) -> Iterator[dict[str, int]]:
        for warps in (schedule.warps // 2, schedule.warps * 2):
            if 1 <= warps <= _MOST_WARPS:
                yield {"num_warps": warps}
        if any(node.target is for_op for node in nodes_of(self.program.graph)):
            for stages in (schedule.stages - 1, schedule.stages + 1):
                if 1 <= stages <= _MOST_STAGES:
                    yield {"num_stages": stages}
        if is_grouped(self.program):
            for rows in (schedule.group_rows // 2, schedule.group_rows * 2):
                if 1 <= rows <= _MOST_GROUP_ROWS:
                    yield {"group_rows": rows}

    def _fits(self, change: Mapping[str, int], blocks: Mapping[str, int]) -> bool:
        """Whether blocks have elements, and none is larger than needed for what it divides."""
        least = self._least
        return all(
            least.get(name, 1) <= size and (size < blocks[name] or self._is_divided(name, size))
            for name, size in change.items()
        )

    @property
    def _least(self) -> dict[str, int]:
        return {symbol.name: _LEAST_OF_PRODUCT for symbol in sizes_of_products(self.program)}

    def _is_divided(self, name: str, size: int) -> bool:
        """Whether a block half as large would not hold all of what the block divides."""
        counts = [*self.program.grid, *(r.last for r in self.program.ranges.values())]
        found = [q.above for count in counts for q in _quotients(count) if _is_by(q.below, name)]
        known = [above.evaluate(self.sizes) for above in found if above.symbols <= {*self.sizes}]
        # A count of blocks has all but one of a block's elements added.
        whole = [above - self.sizes[Symbol(name)] + 1 for above in known]
        return size // 2 < max(whole, default=size)

    def _largest_tile(self, blocks: Mapping[str, int]) -> int:
        """The elements of the largest tile that blocks are axes of."""
        sizes = {**self.sizes, **{Symbol(name): size for name, size in blocks.items()}}
        own = {Symbol(name) for name in blocks}
        counts = [1]
        for node in nodes_of(self.program.graph):
            type = node.meta.get("type")
            if isinstance(type, TileType):
                symbols = {s for size in type.shape for s in size.symbols}
                if symbols & own and symbols <= sizes.keys():
                    counts.append(prod(size.evaluate(sizes) for size in type.shape))
        return max(counts)


def _is_by(below: Expr, name: str) -> bool:
    return any(symbol.name == name for symbol in below.symbols)


def _quotients(expr: Expr) -> Iterator[Quotient]:
    """The quotients in an expression, also those in extremes and other quotients."""
    for monomial, _ in expr.terms:
        for atom in monomial:
            yield from _of_atom(atom)


def _of_atom(atom: Atom) -> Iterator[Quotient]:
    if isinstance(atom, Quotient):
        yield atom
        yield from _quotients(atom.above)
    elif isinstance(atom, Extreme):
        yield from _quotients(atom.one)
        yield from _quotients(atom.other)
