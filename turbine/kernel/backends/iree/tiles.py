"""Tiles during code generation: functions of coordinates, or scratch buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turbine.dtypes import Dtype
from turbine.mlir.writer import Index, Value


@dataclass(frozen=True)
class Coord:
    """The index of a lane along an axis, or the first index of a vector of lanes."""

    base: Index
    lanes: int = 0


Coords = tuple[Coord, ...]


@dataclass(frozen=True)
class ScratchBuffer:
    """Memory of one workgroup for a tile."""

    name: str
    type: str
    dtype: Dtype


@dataclass(frozen=True)
class Rows:
    """Rows of a tile in a buffer: elements from one to the next, and the address of a lane."""

    pitch: Index
    address: Callable[[Coords], Index]


@dataclass(eq=False)
class TileValue:
    """A tile: its shape, its dtype, and a function that writes the code of its lanes."""

    shape: tuple[Index, ...]
    dtype: Dtype
    compute: Callable[[Coords], Value]
    weight: int = 0  # estimated cost of a lane in ops; 0 is free
    # Scratch buffers that it reads: True if only at the lane's own coordinates.
    reads: Mapping[str, bool] = field(default_factory=dict)
    buffer: ScratchBuffer | None = None  # if it is materialized
    # The axis that is contiguous in memory; None: the last.
    contiguous: int | None = None
    prefetch: Callable[[Coords], None] | None = None  # prefetches a lane
    rows: Rows | None = None  # where it is, for a block of a buffer

    @property
    def along(self) -> int:
        """The axis that is contiguous in memory."""
        return len(self.shape) - 1 if self.contiguous is None else self.contiguous

    @property
    def is_single(self) -> bool:
        """Whether it has one element."""
        return all(size == 1 for size in self.shape)


def lanes_of(coords: Coords) -> int:
    """The vector length of coordinates; 0 for a single lane."""
    return max((coord.lanes for coord in coords), default=0)


def merge_reads(tiles: list[TileValue], *, in_place: bool) -> dict[str, bool]:
    """The scratch buffers that a tile reads through its operands."""
    reads: dict[str, bool] = {}
    for tile in tiles:
        for buffer, same in tile.reads.items():
            reads[buffer] = reads.get(buffer, True) and same and in_place
    return reads
