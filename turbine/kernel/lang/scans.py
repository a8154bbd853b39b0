"""Scans along an axis, and reductions with a user function; masked-off lanes are skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from turbine import errors
from turbine.dtypes import Dtype
from turbine.kernel.lang.control_flow import Body, Results, check_takes, result
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.lang.reductions import neutral, valid_without
from turbine.kernel.lang.shapes import axis_of, broadcast_to
from turbine.kernel.trace import tracer
from turbine.kernel.trace.op import Op, broadcast_shapes, declare_internal, op
from turbine.kernel.trace.tracer import IndexExpr, Tile, user_line
from turbine.kernel.trace.types import I64, TileType
from turbine.kernel.trace.validity import ALWAYS, Valid, both


def _add_sum(op: Op, x: Tile, axis: int, reverse: bool = False) -> Tile:
    tile = as_tile(x, None, op.name)
    return _add_scan(op, tile, tile.dtype if tile.dtype.kind == "float" else I64, axis, reverse)


def _add_extreme(op: Op, x: Tile, axis: int, reverse: bool = False) -> Tile:
    tile = as_tile(x, None, op.name)
    return _add_scan(op, tile, tile.dtype, axis, reverse)


def _add_scan(op: Op, tile: Tile, dtype: Dtype, axis: int, reverse: bool) -> Tile:
    """Add a scan; masks that do not depend on its axis apply to the result only."""
    place = axis_of(axis, tile.type.rank, f"tkl.{op.name}")
    return op.add(
        as_tile(tile, dtype, op.name),
        place,
        bool(reverse),
        type=tile.type.of(dtype),
        valid=tile.valid,
        bounds=tile.valid.bounds,
        masks=tile.valid.along([place]).masks,
    )


@op(_add_sum)
def cumsum(x: Tensor, axis: int, reverse: bool, within: Tensor) -> Tensor:
    """Cumulative sum along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. Integers and bools are summed in i64; f16 and bf16 are summed
    in f32, and each result is rounded.

    Example::

        tkl.cumsum(tkl.arange(4), 0)  # [0 1 3 6]
        tkl.cumsum(tkl.arange(4), 0, reverse=True)  # [6 6 5 3]
    """
    return _scan(torch.cumsum, "sum", x, axis, reverse, within)


@op(_add_sum)
def cumprod(x: Tensor, axis: int, reverse: bool, within: Tensor) -> Tensor:
    """Cumulative product along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. Integers and bools are multiplied in i64; f16 and bf16 are
    multiplied in f32, and each result is rounded.

    Example::

        tkl.cumprod(tkl.arange(1, 5), 0)  # [1 2 6 24]
    """
    return _scan(torch.cumprod, "prod", x, axis, reverse, within)


@op(_add_extreme)
def cummax(x: Tensor, axis: int, reverse: bool, within: Tensor) -> Tensor:
    """Cumulative maximum along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. From the first nan on, the result is nan.

    Example::

        tkl.cummax((tkl.arange(5) * 2) % 5, 0)  # [0 2 4 4 4]
    """
    return _scan(_largest, "max", x, axis, reverse, within)


@op(_add_extreme)
def cummin(x: Tensor, axis: int, reverse: bool, within: Tensor) -> Tensor:
    """Cumulative minimum along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. From the first nan on, the result is nan.

    Example::

        tkl.cummin((tkl.arange(5) * 2 + 1) % 5, 0)  # [1 1 0 0 0]
    """
    return _scan(_smallest, "min", x, axis, reverse, within)


def _largest(x: Tensor, axis: int) -> Tensor:
    return torch.cummax(x, axis).values


def _smallest(x: Tensor, axis: int) -> Tensor:
    return torch.cummin(x, axis).values


def _scan(function: Any, name: str, x: Tensor, axis: int, reverse: bool, within: Tensor) -> Tensor:
    filled = torch.where(within, x, torch.tensor(neutral(name, x.dtype), dtype=x.dtype))
    wide = filled.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else filled
    ordered = wide.flip(axis) if reverse else wide
    running: Tensor = function(ordered, axis)
    return (running.flip(axis) if reverse else running).to(x.dtype)


# User functions


def associative_scan(
    function: Callable[[Any, Any], Any], x: Any, axis: int, reverse: bool = False
) -> Any:
    """Cumulative result of a binary function along an axis.

    Masked-off elements are skipped.

    Args:
        function: Takes two values, or two tuples where `x` is a tuple of tiles, and returns one of
            the same kind. It must be associative: the grouping of the operands is unspecified.
        x: A tile, or a tuple of tiles that are scanned together.
        axis: The axis along which values accumulate.
        reverse: Whether to scan from the last element on.

    Returns:
        A tile, or a tuple of them, in the shape and dtype of `x`.

    Example::

        # The linear recurrence y[i] = decay * y[i - 1] + x[i].
        x, decay = tkl.arange(4, dtype=tkl.f32), tkl.full((4,), 0.5, tkl.f32)
        step = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        tkl.associative_scan(step, (decay, x), axis=0)[1]  # [0 1 2.5 4.25]
    """
    trace = tracer.current("tkl.associative_scan")
    tiles = _broadcast_operands(x, "associative_scan")
    place = axis_of(axis, tiles[0].type.rank, "tkl.associative_scan")
    body, captured = _trace_combiner(trace, function, tiles, isinstance(x, (tuple, list)))
    valid = both([tile.valid for tile in tiles])
    types = [tile.type for tile in tiles]
    given = {"bounds": valid.bounds, "masks": valid.along([place]).masks}
    node = scan_op.record(tiles, place, bool(reverse), body, captured, **given)
    return _wrap_results(node, types, valid, x)


def reduce(function: Callable[[Any, Any], Any], x: Any, axis: int, init: Any) -> Any:
    """Reduction along an axis by a binary function.

    Masked-off elements are skipped. Where a mask removes every element, the result is masked off.

    Args:
        function: Takes two values, or two tuples where `x` is a tuple of tiles, and returns one of
            the same kind. It must be associative: the grouping of the operands is unspecified.
        x: A tile, or a tuple of tiles that are reduced together.
        axis: The axis that is reduced.
        init: The identity of the function, a number or a tuple of them; the result for an empty
            axis.

    Returns:
        A tile without the axis, or a tuple of them.

    Example::

        tkl.reduce(lambda a, b: a ^ b, tkl.arange(1, 5), axis=0, init=0)  # 4
    """
    trace = tracer.current("tkl.reduce")
    tiles = _broadcast_operands(x, "reduce")
    place = axis_of(axis, tiles[0].type.rank, "tkl.reduce")
    starts = _initial_values(init, tiles)
    body, captured = _trace_combiner(trace, function, tiles, isinstance(x, (tuple, list)))
    whole, valid = tiles[0].type.shape, both([tile.valid for tile in tiles])
    shape = whole[:place] + whole[place + 1 :]
    types = [TileType(shape, tile.dtype) for tile in tiles]
    given = {"bounds": valid.bounds, "masks": valid.along([place]).masks}
    node = reduce_op.record(tiles, place, starts, body, captured, **given)
    return _wrap_results(node, types, valid_without(whole, valid, [place]), x)


def _broadcast_operands(x: Any, what: str) -> list[Tile]:
    """Broadcast the operands to one shape."""
    items = x if isinstance(x, (tuple, list)) else (x,)
    if not items:
        raise errors.KernelError(
            f"tkl.{what} of no tiles", where=user_line(), hint="pass one or more"
        )
    tiles = [as_tile(item, None, what) for item in items]
    shape = broadcast_shapes([tile.type for tile in tiles])
    return [broadcast_to(tile, list(map(IndexExpr, shape))) for tile in tiles]


def _initial_values(init: Any, tiles: Sequence[Tile]) -> list[Tile]:
    items = init if isinstance(init, (tuple, list)) else (init,)
    starts = [as_tile(i, t.dtype, "reduce") for i, t in zip(items, tiles, strict=False)]
    if len(items) != len(tiles) or any(start.type.rank for start in starts):
        raise errors.KernelError(
            f"tkl.reduce of {len(tiles)} tiles has init={init!r}",
            where=user_line(),
            hint="pass one number for each tile",
        )
    return starts


def _trace_combiner(
    trace: tracer.Trace, function: Callable[..., Any], tiles: Sequence[Tile], is_tuple: bool
) -> tuple[Body, tuple[fx.Node, ...]]:
    """Trace a binary function to a region; return it with the nodes that it captures."""
    types = [TileType((), tile.dtype) for tile in tiles]
    with trace.inside() as region:
        sides = [
            tuple(Tile(region.graph.placeholder(f"{side}_{n}"), t) for n, t in enumerate(types))
            for side in ("left", "right")
        ]
        passed = sides if is_tuple else [side[0] for side in sides]
        check_takes(
            function,
            passed,
            "the combine function",
            "it takes two values, or two tuples for a tuple of tiles",
        )
        given = function(*passed)
        combined = _check_combined(given, types)
        region.graph.output(tuple(region.reach(tile.node) for tile in combined))
    body = Body(region.graph, 2 * len(types), (ALWAYS,) * len(types))
    return body, tuple(region.captured)


def _check_combined(given: Any, types: Sequence[TileType]) -> list[Tile]:
    items = given if isinstance(given, (tuple, list)) else (given,)
    if len(items) != len(types):
        raise errors.KernelError(
            f"the combine function returns {len(items)} values, not {len(types)}",
            where=user_line(),
            hint="return one value for each tile",
        )
    tiles = []
    for item, type in zip(items, types, strict=True):
        tile = as_tile(item, None if isinstance(item, Tile) else type.dtype, "associative_scan")
        if tile.type != type:
            raise errors.KernelError(
                f"the combine function takes {type} and returns {tile.type}",
                where=user_line(),
                hint="return a scalar of the same dtype: convert with x.to(tkl.f32) or similar",
            )
        tiles.append(tile)
    return tiles


def _wrap_results(node: fx.Node, types: Sequence[TileType], valid: Valid, x: Any) -> Any:
    node.meta["types"] = tuple(types)
    tiles = [result.add(node, n, type=type, valid=valid) for n, type in enumerate(types)]
    return Results(tiles) if isinstance(x, (tuple, list)) else tiles[0]


@declare_internal
def scan_op(tiles: Any, axis: int, reverse: bool, body: Body, captured: Any) -> Any:
    """A scan with a region; the running values are its first placeholders."""


@declare_internal
def reduce_op(tiles: Any, axis: int, starts: Any, body: Body, captured: Any) -> Any:
    """A reduction with a region; the running values are its first placeholders."""
