"""Track which lanes of a tile are valid: in bounds of the buffer, and not masked off.

Note [Masked-off lanes]
A tile may extend beyond the buffer it is loaded from, and a mask may remove lanes: these lanes are
masked off, and so are lanes computed from them. Reductions, dots, scans and sorts skip them; if
masks leave no lane, the result is masked off: see Note [Masks and reductions]. A store does not
write them, and a loop keeps the carried value. So any block size gives the right result for any
tensor, and users need not pass neutral elements.

Valid lanes are described by bounds, `0 <= offset + lane < limit` along an axis, which cost nothing
if they are proven, and by masks, tiles of bools that are broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turbine.algebra import Expr


@dataclass(frozen=True)
class Bound:
    """0 <= offset + lane < limit along one axis; without an axis, for the whole tile."""

    axis: int | None
    offset: Expr
    limit: Expr

    def __str__(self) -> str:
        offset = [str(self.offset)] if self.offset.terms or self.axis is None else []
        lane = [] if self.axis is None else [f"lane{self.axis}"]
        return f"0 <= {' + '.join([*offset, *lane])} < {self.limit}"


@dataclass(frozen=True)
class Valid:
    """The conditions under which a lane is valid; without conditions, all lanes are."""

    bounds: tuple[Bound, ...] = ()
    masks: tuple[
        Any, ...
    ] = ()  # tiles of bools of the same rank; size 1 along axes that do not matter

    def along(self, axes: Iterable[int]) -> Valid:
        """The conditions that depend on these axes."""
        wanted = set(axes)
        bounds = tuple(b for b in self.bounds if b.axis in wanted)
        return Valid(bounds, tuple(m for m in self.masks if wanted & axes_of(m)))

    def apart_from(self, axes: Iterable[int]) -> Valid:
        """The conditions that do not depend on these axes."""
        dropped = set(axes)
        bounds = tuple(b for b in self.bounds if b.axis not in dropped)
        return Valid(bounds, tuple(m for m in self.masks if not dropped & axes_of(m)))

    def move_bounds(self, axis_of: Callable[[int], int]) -> tuple[Bound, ...]:
        """Move the bounds to the axes of a transposed tile."""
        return tuple(b if b.axis is None else replace(b, axis=axis_of(b.axis)) for b in self.bounds)

    def __bool__(self) -> bool:
        return bool(self.bounds or self.masks)


ALWAYS = Valid()


def both(valids: Sequence[Valid]) -> Valid:
    """Lanes that are valid in all tiles, which have one rank."""
    bounds = dict.fromkeys(b for valid in valids for b in valid.bounds)
    masks = {id(m.node): m for valid in valids for m in valid.masks}
    return Valid(tuple(bounds), tuple(masks.values()))


def axes_of(mask: Any) -> set[int]:
    """The axes that a mask depends on."""
    return {axis for axis, size in enumerate(mask.type.shape) if size.number != 1}
