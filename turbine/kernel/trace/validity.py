"""Which lanes of a tile hold a value: those inside their buffer that no mask removes.

Note [Lanes without a value]
A tile may stick out of the buffer it is read from, and a mask may remove lanes of it: both are
masked off, and so is what is computed from them. A reduction, a product, a scan or a sort skips
them, and gives a masked-off lane where masks leave none: see Note [Masks and reductions]. A store
and a loop that carries a tile leave what was there. So any tile size gives the right result for
any tensor, and no neutral element has to be named by the user.

Valid lanes have bounds, `0 <= offset + lane < limit` along an axis, which cost nothing where
they are proven, and by masks, tiles of bools that are broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turbine.algebra import Expr


@dataclass(frozen=True)
class Bound:
    """0 <= offset + lane < limit, of lanes along one axis; without an axis, of the whole tile."""

    axis: int | None
    offset: Expr
    limit: Expr

    def __str__(self) -> str:
        offset = [str(self.offset)] if self.offset.terms or self.axis is None else []
        lane = [] if self.axis is None else [f"lane{self.axis}"]
        return f"0 <= {' + '.join([*offset, *lane])} < {self.limit}"


@dataclass(frozen=True)
class Valid:
    """The conditions under which a lane holds a value; none: always."""

    bounds: tuple[Bound, ...] = ()
    masks: tuple[Any, ...] = ()  # tiles of bools, of the same rank; 1 along axes that do not matter

    def along(self, axes: Iterable[int]) -> Valid:
        """The conditions that depend on these axes."""
        wanted = set(axes)
        bounds = tuple(b for b in self.bounds if b.axis in wanted)
        return Valid(bounds, tuple(m for m in self.masks if wanted & axes_of(m)))

    def apart_from(self, axes: Iterable[int]) -> Valid:
        """The conditions that do not."""
        dropped = set(axes)
        bounds = tuple(b for b in self.bounds if b.axis not in dropped)
        return Valid(bounds, tuple(m for m in self.masks if not dropped & axes_of(m)))

    def move_bounds(self, axis_of: Callable[[int], int]) -> tuple[Bound, ...]:
        """The bounds, for a tile whose axes have other places."""
        return tuple(b if b.axis is None else replace(b, axis=axis_of(b.axis)) for b in self.bounds)

    def __bool__(self) -> bool:
        return bool(self.bounds or self.masks)


ALWAYS = Valid()


def both(valids: Sequence[Valid]) -> Valid:
    """Lanes that hold a value in all of them; tiles of one rank."""
    bounds = dict.fromkeys(b for valid in valids for b in valid.bounds)
    masks = {id(m.node): m for valid in valids for m in valid.masks}
    return Valid(tuple(bounds), tuple(masks.values()))


def axes_of(mask: Any) -> set[int]:
    """The axes along which a mask makes a difference."""
    return {axis for axis, size in enumerate(mask.type.shape) if size.number != 1}
