"""Choose how a program runs on a GPU: warps, stages of its pipeline, the order of programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod

from torch import fx

from turbine.algebra import Expr, Symbol
from turbine.kernel.backends.triton.emitter import power_of_two
from turbine.kernel.lang import casting, memory, shapes
from turbine.kernel.lang.products import dot
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.program import KernelProgram, nodes_of
from turbine.kernel.trace.op import arguments
from turbine.kernel.trace.types import TileType

# Elements that a warp computes: more would not fit its registers, fewer leave it idle.
_ELEMENTS_OF_WARP = 512
_MOST_WARPS = 32
# Elements of a product's result from which on 8 warps share it.
_LARGE_PRODUCT = 128 * 128
_MOST_STAGES = 4
_STAGES_OF_SEVERAL = 3  # where products feed each other
# Rows of blocks that are run together, so that what they read stays in the cache.
_GROUP_ROWS = 8
# Bytes of shared memory that a program of an H100 has, beside those that Triton needs itself.
SHARED_BYTES = 227 << 10


@dataclass(frozen=True)
class Options:
    """What is set of a schedule; None is chosen. CPUs have none of it."""

    num_warps: int | None = None
    num_stages: int | None = None
    group_rows: int | None = None

    @property
    def set_ones(self) -> dict[str, int]:
        """Those that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Schedule:
    """Options of Triton's compiler, and the order of programs."""

    warps: int
    stages: int
    group_rows: int = _GROUP_ROWS


def choose_schedule(
    program: KernelProgram,
    facts: Facts,
    padded: Sequence[tuple[Expr, int]],
    shared_bytes: int = SHARED_BYTES,
    options: Options | None = None,
) -> Schedule:
    """What the options set; the rest is chosen."""
    chosen = _choose(program, facts, dict(padded), shared_bytes)
    if options is None:
        return chosen
    return Schedule(
        chosen.warps if options.num_warps is None else options.num_warps,
        chosen.stages if options.num_stages is None else options.num_stages,
        chosen.group_rows if options.group_rows is None else options.group_rows,
    )


def _choose(
    program: KernelProgram, facts: Facts, lanes: Mapping[Expr, int], shared_bytes: int
) -> Schedule:
    """Warps by the largest tile, or the largest result of a dot; stages by what dots read."""

    def count(type: TileType) -> int:
        sizes = [facts.simplify(size) for size in type.shape]
        known = [lanes[s] if s.number is None else power_of_two(s.number) for s in sizes]
        return prod(known)

    nodes = list(nodes_of(program.graph))
    products = [node for node in nodes if node.target is dot]
    if products:
        largest = max(count(node.meta["type"]) for node in products)
        read = {load for node in products for load in _loads(node)}
        bytes_of: dict[fx.Graph, int] = {}  # bytes that an iteration of each loop reads
        for load in read:
            size = count(load.meta["type"]) * load.meta["type"].dtype.itemsize
            bytes_of[load.graph] = bytes_of.get(load.graph, 0) + size
        stage = max(bytes_of.values(), default=0)
        most = _MOST_STAGES if len(products) == 1 else _STAGES_OF_SEVERAL
        stages = min(max(shared_bytes // stage, 1), most) if stage else 1
        return Schedule(8 if largest >= _LARGE_PRODUCT else 4, stages)
    types = [node.meta.get("type") for node in nodes]
    largest = max((count(type) for type in types if isinstance(type, TileType)), default=1)
    return Schedule(power_of_two(min(max(largest // _ELEMENTS_OF_WARP, 1), _MOST_WARPS)), 3)


def _loads(product: fx.Node) -> Iterator[fx.Node]:
    """The tiles that a dot reads where it is: each iteration of a loop has its own."""
    for operand in arguments(product)[:2]:
        while operand.target in _VIEWS:
            operand = arguments(operand)[0]
        if operand.target is memory.load:
            yield operand


_VIEWS = (
    casting.to_dtype,
    shapes.broadcast_to,
    shapes.expand_dims,
    shapes.squeeze,
    shapes.transpose,
)


def is_grouped(program: KernelProgram) -> bool:
    """Whether a program multiplies rows that one axis of the grid names by columns of another."""
    if len(program.grid) < 2 or not any(n.target is dot for n in nodes_of(program.graph)):
        return False
    last = len(program.grid) - 1
    row, column = (Symbol(f"program_id({axis})", "program", axis) for axis in (last - 1, last))
    named = [
        {row, column} & _symbols(node)
        for node in nodes_of(program.graph)
        if node.target is memory.load
    ]
    return {row} in named and {column} in named


def _symbols(node: fx.Node) -> set[Symbol]:
    index = node.args[1]
    assert isinstance(index, (tuple, list))
    return {s for expr in index if isinstance(expr, Expr) for s in expr.symbols}
