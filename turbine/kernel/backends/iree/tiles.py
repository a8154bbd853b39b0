"""Tiles while code is written: functions of a lane's coordinates, or memory that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turbine.dtypes import Dtype
from turbine.mlir.writer import Index, Value


@dataclass(frozen=True)
class Coord:
    """A lane's place along an axis, or the first of as many lanes next to each other."""

    base: Index
    lanes: int = 0


Coords = tuple[Coord, ...]


@dataclass(frozen=True)
class ScratchBuffer:
    """Memory for a tile of one workgroup."""

    name: str
    type: str
    dtype: Dtype


@dataclass(eq=False)
class TileValue:
    """A tile: its sizes, its element type, and how a lane is computed when it is asked for."""

    shape: tuple[Index, ...]
    dtype: Dtype
    compute: Callable[[Coords], Value]
    weight: int = 0  # what a lane costs, about; 0: nothing to speak of
    # Scratch buffers that it reads: True where only at the lane's own coordinates.
    reads: Mapping[str, bool] = field(default_factory=dict)
    buffer: ScratchBuffer | None = None  # where it is kept, if it is materialized
    # The axis whose neighbours lie next to each other in memory; None: the last.
    neighbours: int | None = None
    prefetch: Callable[[Coords], None] | None = None  # asks for a lane that is read soon
    pitch: Index | None = None  # elements from one row to the next, if it lies in a kernel's buffer

    @property
    def along(self) -> int:
        """The axis whose neighbours lie next to each other in memory."""
        return len(self.shape) - 1 if self.neighbours is None else self.neighbours

    @property
    def is_single(self) -> bool:
        """Whether it has one element."""
        return all(size == 1 for size in self.shape)


def lanes_of(coords: Coords) -> int:
    """How many lanes coordinates stand for; 0: one."""
    return max((coord.lanes for coord in coords), default=0)


def merge_reads(tiles: list[TileValue], *, in_place: bool) -> dict[str, bool]:
    """What tiles read, for one that is computed from them."""
    reads: dict[str, bool] = {}
    for tile in tiles:
        for buffer, same in tile.reads.items():
            reads[buffer] = reads.get(buffer, True) and same and in_place
    return reads
