"""Loops and branches, traced to regions that carry values.

Masked-off lanes keep the carried value: see Note [Masked-off lanes].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine import errors
from turbine.algebra import (
    Atom,
    Expr,
    Extreme,
    Interval,
    Quotient,
    Symbol,
    ceiling,
    larger,
    smaller,
)
from turbine.kernel.lang.arithmetic import as_bool
from turbine.kernel.lang.memory import FARTHEST, index_from_value, number_or
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.shapes import broadcast_to, masked
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import declare_internal
from turbine.kernel.trace.tracer import IndexExpr, Region, Tile, Trace, expr_of, user_line
from turbine.kernel.trace.types import TileType, dtype_name
from turbine.kernel.trace.validity import ALWAYS, Valid


@dataclass(frozen=True)
class Body:
    """The region of a loop or a branch: a graph that yields its outputs."""

    graph: fx.Graph
    carried: int  # number of its first placeholders; the others are captured values
    valid: tuple[Valid, ...]  # the valid lanes of its outputs
    counter: Symbol | None = None

    def __str__(self) -> str:
        return f"{{{len(self.graph.nodes)} nodes}}"


class Results(tuple[Any, ...]):
    """The results of a loop: `body[0]`, or `a, b = body`."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and not -len(self) <= place < len(self):
            raise errors.KernelError(
                f"result {place} is out of range: the loop or branch has {len(self)} results",
                where=user_line(),
                hint="there is one result for each of init_args, counted from 0",
            )
        return super().__getitem__(place)


def for_loop(
    start: Any, stop: Any = None, step: Any = 1, init_args: Sequence[Any] = ()
) -> Callable[[Callable[..., Any]], Results]:
    """Loop over integers from start to below stop; a decorator of the loop body.

    The body is called with the iteration index and the carried values, and returns the next ones
    in the same shapes and dtypes. Its name is bound to the loop's results, a tuple. Masked-off
    elements of what it returns keep the value that was carried.

    Args:
        start: The first index; with one bound, it is the stop.
        stop: The bound, an integer, size or computed number. `K // BK` of sizes counts blocks, the
            last and partial one included. If it is masked off, there are no iterations.
        step: An integer other than 0, a size, or a number of programs.
        init_args: The initial carried values, a list of tiles and numbers.

    Example::

        @tkl.for_loop(0, 5, init_args=[tkl.zeros((2,), tkl.i64)])
        def total(i, acc):
            return acc + i * tkl.arange(1, 3)

        total[0]  # [10 20]
    """
    trace = tracer.current("tkl.for_loop")
    first, end = (0, start) if stop is None else (start, stop)
    # A loop with a masked-off bound has no iterations.
    is_down = isinstance(step, int) and step < 0
    begin, limit = _bound(first, not is_down), blocks(_bound(end, is_down))
    if isinstance(step, int) and step:
        numbers = _Numbers(begin, limit, step)
    elif isinstance(step, IndexExpr) and _is_count(step.expr):
        # The size may be 0: avoid a division by zero.
        count = larger(ceiling(limit - begin, larger(step.expr, 1)), 0)
        numbers = _Numbers(Expr(()), count, 1, begin, step.expr)
    else:
        raise errors.KernelError(
            f"tkl.for_loop has {step=}",
            where=user_line(),
            hint="the step is an integer other than 0, or a size",
        )

    def run(function: Callable[..., Any]) -> Results:
        init = _init(init_args, "init_args")
        name = function.__code__.co_varnames[0] if function.__code__.co_argcount else "k"
        counter = trace.counter(name, "loop", numbers.range)
        (symbol,) = counter.symbols
        types = [tile.type for tile in init]
        indices = [IndexExpr(numbers.first + counter * numbers.by)]
        body, captured = _trace_region(trace, function, indices, init, symbol, types)
        node = for_op.record(numbers.start, numbers.stop, numbers.step, init, body, captured)
        return _results(node, types, [tile.valid for tile in init])

    return run


@dataclass(frozen=True)
class _Numbers:
    """The counter of a loop, and the index its function gets: first + by * counter."""

    start: Expr
    stop: Expr
    step: int
    first: Expr = Expr(())
    by: Expr | int = 1

    @property
    def range(self) -> Interval | None:
        """The range of the counter, if its bounds do not depend on data."""
        return _range(self.start, self.stop, self.step)


def _is_count(expr: Expr) -> bool:
    """Whether an expression consists of sizes and is never negative."""
    sizes = all(symbol.kind == "size" for symbol in expr.symbols)
    return sizes and all(factor > 0 for _, factor in expr.terms)


def _range(begin: Expr, limit: Expr, step: int) -> Interval | None:
    if any(s.kind == "data" for s in (*begin.symbols, *limit.symbols)):
        return None
    return Interval(begin, limit - 1) if step > 0 else Interval(limit + 1, begin)


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], init_args: Sequence[Any]
) -> Results:
    """Loop while a condition is true.

    Args:
        condition: Takes the carried values and returns a single bool. If it is masked off, the loop
            ends.
        body: Takes the carried values and returns the next ones in the same shapes and dtypes.
        init_args: The initial carried values, a list of tiles and numbers.

    Returns:
        A tuple of the carried values after the loop.

    Example::

        power = tkl.while_loop(lambda x: x < 100, lambda x: 3 * x, [1])
        power[0]  # 243
    """
    trace = tracer.current("tkl.while_loop")
    init = _init(init_args, "init_args")
    test, of_test = _trace_region(trace, _check_condition(condition), [], init)
    types = [tile.type for tile in init]
    region, captured = _trace_region(trace, body, [], init, types=types)
    node = while_op.record(test, of_test, init, region, captured)
    return _results(node, types, [tile.valid for tile in init])


def _check_condition(condition: Callable[..., Any]) -> Callable[..., Any]:
    """Check that the condition of a loop returns one bool."""

    def checked_condition(*carried: Any) -> Tile:
        check_takes(condition, carried, "the condition of tkl.while_loop")
        tile = as_bool(condition(*carried), "while_loop")
        if tile.type.rank:
            raise errors.KernelError(
                f"the condition of tkl.while_loop returns {tile!r}",
                where=user_line(),
                hint="it must be a single value: tkl.any(x) or tkl.all(x)",
            )
        return number_or(tile, False)

    return checked_condition


def cond(
    condition: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any
) -> Any:
    """Result of one of two functions, chosen by a single bool.

    Only the chosen function runs, stores and atomics in it included. `tkl.where` selects
    elementwise.

    Args:
        condition: A single bool or number, nonzero for `then`. If it is masked off, `otherwise`
            runs.
        then: Takes the operands; returns a value, several, or None.
        otherwise: The same, with results of the same shapes and dtypes.
        operands: Tiles and numbers that are passed to either function.

    Example::

        x = tkl.arange(4)
        tkl.cond(tkl.sum(x) > 5, lambda a: a * 10, lambda a: -a, x)  # [0 10 20 30]
    """
    trace = tracer.current("tkl.cond")
    chosen = as_bool(condition, "cond")
    if chosen.type.rank:
        raise errors.KernelError(
            f"the condition of tkl.cond is {chosen!r}",
            where=user_line(),
            hint="it must be a single value; tkl.where selects elementwise",
        )
    chosen = number_or(chosen, False)
    passed = _init(operands, "operands")
    one, of_one = _trace_region(trace, _with_masks(then), [], passed)
    types = [node.meta["type"] for node in output_of(one.graph)]
    other, of_other = _trace_region(trace, _with_masks(otherwise, types[::2]), [], passed)
    node = cond_op.record(chosen, passed, one, of_one, other, of_other)
    results = _results(node, types, [ALWAYS] * len(types))
    pairs = zip(results[::2], results[1::2], strict=True)
    values = [Tile(value.node, value.type, Valid((), (mask,))) for value, mask in pairs]
    return values[0] if len(values) == 1 else Results(values)


def _with_masks(
    function: Callable[..., Any], types: Sequence[TileType] | None = None
) -> Callable[..., Any]:
    """Make a function return the mask of each value after the value."""

    def pairs(*args: Any) -> list[Any]:
        check_takes(function, args, "a branch of tkl.cond")
        given = _as_list(function(*args))
        tiles = [as_tile(value, None, "cond") for value in given]
        tiles = tiles if types is None else _unify(tiles, types, _BRANCH)
        return [part for tile in tiles for part in (tile, masked(tile))]

    return pairs


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (tuple, list)) else [given]


def _bound(value: Any, is_last: bool) -> Expr:
    """A bound of a loop; if it is masked off, the largest or the smallest integer."""
    if isinstance(value, Tile) and value.type.rank:
        raise errors.KernelError(
            f"invalid bound of a loop: {value!r}",
            where=user_line(),
            hint="a bound is a single number: use tkl.max(x) or similar",
        )
    if isinstance(value, Tile):
        return index_from_value(value, FARTHEST if is_last else -FARTHEST)
    if isinstance(value, (int, IndexExpr)) and not isinstance(value, bool):
        return expr_of(value)
    raise errors.KernelError(
        f"invalid bound of a loop: {value!r}",
        where=user_line(),
        hint="a bound is an integer, an expression of sizes and program ids, or a computed integer",
    )


def blocks(count: Expr) -> Expr:
    """Round quotients up: `K // BK` counts the blocks that cover K."""
    total = Expr(())
    for monomial, factor in count.terms:
        product = Expr((((), factor),))
        for atom in monomial:
            product = product * _trip_count(atom)
        total = total + product
    return total


def _trip_count(atom: Atom) -> Expr:
    if isinstance(atom, Quotient) and not atom.counts_blocks:
        # (N + B - 1) // B is rounded up already.
        exact = atom.above - atom.below + 1
        is_rounded_up = len(exact.terms) < len(atom.above.terms)
        return ceiling(blocks(exact if is_rounded_up else atom.above), atom.below)
    if isinstance(atom, Extreme):
        extreme = {"min": smaller, "max": larger}[atom.name]
        return extreme(blocks(atom.one), blocks(atom.other))
    return Expr((((atom,), 1),))


def _init(values: Any, what: str) -> list[Tile]:
    if not isinstance(values, (tuple, list)):
        raise errors.KernelError(
            f"{what} must be a list, not {values!r}", where=user_line(), hint=f"write {what}=[acc]"
        )
    return [as_tile(value, None, what) for value in values]


def _trace_region(
    trace: Trace,
    function: Callable[..., Any],
    counters: list[IndexExpr],
    init: Sequence[Tile],
    counter: Symbol | None = None,
    types: Sequence[TileType] | None = None,
) -> tuple[Body, tuple[fx.Node, ...]]:
    """Trace a function to a region; return it with the nodes that it captures."""
    with trace.inside(counter) as region:
        carried = [_placeholder(region, tile) for tile in init]
        check_takes(function, (*counters, *carried), "the function of a loop")
        given = _as_list(function(*counters, *carried))
        tiles = [as_tile(value, None, "for_loop") for value in given]
        tiles = tiles if types is None else _unify(tiles, types, _LOOP)
        yielded = tuple(region.reach(tile.node) for tile in tiles)
        masks = [[region.reach(m.node) for m in tile.valid.masks] for tile in tiles]
        region.graph.output(yielded)
    valid = tuple(
        Valid(tile.valid.bounds, tuple(nodes)) for tile, nodes in zip(tiles, masks, strict=True)
    )
    body = Body(region.graph, len(init), valid, counter)
    return body, tuple(region.captured)


def check_takes(
    function: Callable[..., Any],
    args: Sequence[Any],
    what: str,
    hint: str = "it takes the index of a tkl.for_loop, then each carried value",
) -> None:
    """Raise if a function does not take these arguments."""
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        given = ", ".join(map(repr, args)) or "nothing"
        raise errors.KernelError(
            f"{what} is called with {given}: {error}",
            where=user_line(),
            hint=hint,
        ) from error


def output_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """The nodes that a region yields."""
    *_, last = graph.nodes
    nodes: tuple[fx.Node, ...] = last.args[0]
    return nodes


def _placeholder(region: Region, tile: Tile) -> Tile:
    node = region.graph.placeholder(f"carried_{len(region.graph.nodes)}")
    return Tile(node, tile.type, tile.valid)


# The function that returns values, and the values they must agree with.
_LOOP = ("the function of a loop", "the carried value")
_BRANCH = ("the second branch of tkl.cond", "the first")


def _unify(tiles: Sequence[Tile], types: Sequence[TileType], roles: tuple[str, str]) -> list[Tile]:
    """Check that returned values have the expected types; broadcast scalars."""
    who, other = roles
    if len(tiles) != len(types):
        raise errors.KernelError(
            f"{who} returns {_format_types([tile.type for tile in tiles])}, "
            f"{other} is {_format_types(types)}",
            where=user_line(),
            hint="return a tuple with one value for each",
        )
    unified = []
    for place, (tile, type) in enumerate(zip(tiles, types, strict=True)):
        if tile.type.rank == 0 and type.rank:
            tile = broadcast_to(tile, list(map(IndexExpr, type.shape)))
        if tile.type.shape != type.shape or tile.dtype != type.dtype:
            raise errors.KernelError(
                f"value {place} that {who} returns is {tile.type}, {other} is {type}",
                where=user_line(),
                hint=f"convert it, x.to(tkl.{dtype_name(type.dtype)}), and broadcast it, or start "
                f"with a tile {tile.type}",
            )
        unified.append(tile)
    return unified


def _format_types(types: Sequence[TileType]) -> str:
    return " and ".join(map(str, types)) or "nothing"


def _results(node: fx.Node, types: Sequence[TileType], valids: Sequence[Valid]) -> Results:
    tiles = []
    for place, (type, valid) in enumerate(zip(types, valids, strict=True)):
        tiles.append(result.add(node, place, type=type, valid=valid))
    return Results(tiles)


@declare_internal
def for_op(start: Any, stop: Any, step: int, init: Any, body: Body, captured: Any) -> Any:
    """A loop over integers."""


@declare_internal
def while_op(test: Body, of_test: Any, init: Any, body: Body, captured: Any) -> Any:
    """A loop while a test holds."""


@declare_internal
def cond_op(condition: Any, passed: Any, one: Body, of_one: Any, other: Body, of_other: Any) -> Any:
    """One of two branches."""


@declare_internal
def result(values: Any, place: int) -> Any:
    """One of the results of a loop or a branch."""
