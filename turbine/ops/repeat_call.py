"""The fast path of repeated calls: arguments are compared with the last call's, without a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from turbine.ops.schema import Schema
from turbine.ops.specialization import Captured, are_unchanged
from turbine.runtime.overlap import Span
from turbine.runtime.quick_call import QuickCall, is_shareable
from turbine.runtime.tensor_call import TensorCall
from turbine.signature import Slot

_NO_WEIGHTS: Span = (0, 0)


@dataclass(frozen=True)
class Repeat:
    """The last call: tensors first, then numbers that are part of the code."""

    quick: QuickCall
    count: int
    rest: tuple[Any, ...]
    properties: tuple[Any, ...]
    captured: Captured

    @staticmethod
    def of(
        schema: Schema,
        call: TensorCall,
        captured: Captured,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Repeat | None:
        """A repeat of a call, if all tensors are plain and numbers are compared exactly."""
        count = sum(isinstance(argument, torch.Tensor) for argument in args)
        rest = args[count:]
        slots = [*call.inputs, *call.results]
        if keywords or len(call.results) != 1 or len(call.inputs) != count:
            return None
        if not all(map(_is_plain, slots)) or not all(map(_is_compared_exactly, rest)):
            return None
        if any(argument.kind == "Scalar" for argument in schema.arguments):
            return None
        quick = QuickCall(call.entry, _NO_WEIGHTS)
        quick.remember(args[:count])
        return Repeat(quick, count, rest, _properties(args), captured)

    def __call__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
        """The result, or None if the call differs from the last one."""
        return None if keywords else self.positional(args)

    def positional(self, args: tuple[Any, ...]) -> torch.Tensor | None:
        """Call with positional arguments only."""
        count = self.count
        if len(args) < count or args[count:] != self.rest:
            return None
        if self.captured and not are_unchanged(self.captured):
            return None
        return self.quick.call(args[:count])

    def again(self, args: tuple[Any, ...]) -> Repeat | None:
        """A repeat for another layer of the dispatcher, if the call had these arguments."""
        # Comparing the sizes of a traced tensor would add guards.
        if not all(map(_is_concrete, args)) or _properties(args) != self.properties:
            return None
        quick = QuickCall(self.quick.entry, _NO_WEIGHTS)
        quick.remember(args[: self.count])
        return Repeat(quick, self.count, args[self.count :], self.properties, self.captured)


def _properties(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((a.dtype, a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in args)


def _is_concrete(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return type(value) is torch.Tensor and all(type(size) is int for size in value.shape)


def _is_plain(slot: Slot) -> bool:
    return slot.order is None and slot.dtype is not None and is_shareable(slot.dtype)


def _is_compared_exactly(value: Any) -> bool:
    """Whether == distinguishes a value from all others: 0.0 equals -0.0, and is not."""
    if isinstance(value, list):
        return all(map(_is_compared_exactly, value))
    return not (isinstance(value, float) and value == 0.0) and not isinstance(value, torch.Tensor)
