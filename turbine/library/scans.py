"""Cumulative sums, products and extremes along any axis, for decompositions of scans."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS
from turbine.kernel.lang.reductions import neutral

A, N, C = tkl.symbols("A N C")  # rows, their elements, and neighbors that are scanned alike
BN, BC = tkl.symbols("BN BC")
T = tkl.types.T


@dataclass(frozen=True)
class Layout:
    """Which blocks a program scans: those of a row, or of some columns of a matrix."""

    name: str
    axes: tuple[Any, ...]
    block: tuple[Any, ...]

    @property
    def buffers(self) -> tuple[Any, Any]:
        """The types of the argument and of the result."""
        return tkl.InputBuffer[(*self.axes, T)], tkl.OutputBuffer[(*self.axes, T)]

    @property
    def grid(self) -> tuple[Any, ...]:
        """The programs."""
        across = zip(self.axes[2:], self.block[1:], strict=True)
        return (self.axes[0], *(size // block for size, block in across))

    def _place(self, i: Any) -> tuple[Any, ...]:
        across = (tkl.program_id(n) * size for n, size in enumerate(self.block[1:], 1))
        return (tkl.program_id(0), i * BN, *across)

    def load(self, x: Any, i: Any) -> Any:
        """Load the i-th block of a program."""
        return tkl.load(x, self._place(i), (None, *self.block))

    def store(self, y: Any, i: Any, tile: Any) -> None:
        """Store the i-th block of a program."""
        tkl.store(y, self._place(i), tile[None])


_ROWS = Layout("rows", (A, N), (BN,))
_COLUMNS = Layout("columns", (A, N, C), (BN, BC))
# Whole vectors, and scratch buffers that stay in the L1 cache.
_BLOCKS = {"rows": {BN: 1024}, "columns": {BN: 8, BC: 256}}


@cache
def _accumulation(op: str, wide: Any, layout: Layout) -> Any:
    """The kernel of sums or products that are accumulated in a dtype."""
    scan, start, combine = _ACCUMULATIONS[op]
    In, Out = layout.buffers

    def kernel(x: In, y: Out) -> None:
        @tkl.for_loop(0, N // BN, init_args=[tkl.full(layout.block[1:], start, wide)])
        def blocks(i: Any, before: Any) -> Any:
            tile = layout.load(x, i)
            running = combine(scan(tile.to(wide), 0), before)
            layout.store(y, i, running.to(tile.dtype))
            return running[BN - 1]

    kernel.__name__ = f"{op}_of_{layout.name}_in_{wide.name}"
    return tk.gen.kernel(*layout.grid, blocks=_BLOCKS[layout.name])(kernel)


_ACCUMULATIONS: dict[str, tuple[Callable[..., Any], int, Callable[..., Any]]] = {
    "cumsum": (tkl.cumsum, 0, lambda x, y: x + y),
    "cumprod": (tkl.cumprod, 1, lambda x, y: x * y),
}


@cache
def _extreme(op: str, layout: Layout) -> Any:
    """The kernel of extremes, and of the index of the last element that equals each."""
    scan, combine, reduction = _EXTREMES[op]
    In, Out = layout.buffers
    Places = tkl.OutputBuffer[(*layout.axes, tkl.i64)]

    def kernel(x: In, y: Out, places: Places) -> None:
        across, dtype = layout.block[1:], layout.load(x, 0).dtype
        start = tkl.full(across, neutral(reduction, dtype.torch), dtype)

        @tkl.for_loop(0, N // BN, init_args=[start, tkl.full(across, 0, tkl.i64)])
        def blocks(i: Any, before: Any, before_at: Any) -> Any:
            tile = layout.load(x, i)
            running = combine(scan(tile, 0), before)
            at = tkl.arange(BN, dtype=tkl.i32)
            at = at[:, None] if across else at
            # From the first nan on, the extreme is nan and has the index of the last nan.
            is_extreme = (tile == running) | (tile != tile)
            in_block = tkl.cummax(tkl.where(is_extreme, at, -1), 0)
            running_at = tkl.where(in_block < 0, before_at, i * BN + in_block.to(tkl.i64))
            layout.store(y, i, running)
            layout.store(places, i, running_at)
            return running[BN - 1], running_at[BN - 1]

    kernel.__name__ = f"{op}_of_{layout.name}"
    return tk.gen.kernel(*layout.grid, blocks=_BLOCKS[layout.name])(kernel)


_EXTREMES: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "cummax": (tkl.cummax, tkl.maximum, "max"),
    "cummin": (tkl.cummin, tkl.minimum, "min"),
}


def _in_layout(x: Tensor, dim: int) -> tuple[Tensor, Layout]:
    dim = dim % x.dim()
    if dim == x.dim() - 1:
        return x.reshape(-1, x.shape[dim]), _ROWS
    # Not flatten, which gives a guard on dynamic sizes.
    columns = x.reshape(-1, *x.shape[dim:])
    return columns.reshape(columns.shape[0], x.shape[dim], -1), _COLUMNS


def accumulate(op: str, x: Tensor, dim: int, wide: torch.dtype) -> Tensor:
    """Cumulative sums or products along an axis, accumulated in a dtype."""
    blocks, layout = _in_layout(x, dim)
    dtype = next(one for one in _WIDE if one.torch == wide)
    running: Tensor = _accumulation(op, dtype, layout)(blocks)
    return running.view(x.shape)


_WIDE = (tkl.i64, tkl.f32, tkl.f64)


def find_extremes(op: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Cumulative extremes along an axis, and the index of the last element that equals each."""
    blocks, layout = _in_layout(x, dim)
    running, places = _extreme(op, layout)(blocks)
    return running.view(x.shape), places.view(x.shape)


KERNELS["accumulate"] = accumulate
KERNELS["find_extremes"] = find_extremes
