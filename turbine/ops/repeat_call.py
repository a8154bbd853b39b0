"""Calls like the one before: no key is looked up, tensors only have to be compared with those."""

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
    """The call that is remembered: tensors first, then numbers that are part of the code."""

    quick: QuickCall
    count: int
    rest: tuple[Any, ...]
    facts: tuple[Any, ...]
    captured: Captured

    @staticmethod
    def of(
        schema: Schema,
        call: TensorCall,
        captured: Captured,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Repeat | None:
        """Remember a call that was just made, if it is of the plain kind."""
        count = sum(isinstance(argument, torch.Tensor) for argument in args)
        rest = args[count:]
        slots = [*call.inputs, *call.results]
        if keywords or len(call.results) != 1 or len(call.inputs) != count:
            return None
        if not all(map(_is_plain, slots)) or not all(map(_is_told_by_equality, rest)):
            return None
        if any(argument.kind == "Scalar" for argument in schema.arguments):
            return None
        quick = QuickCall(call.entry, _NO_WEIGHTS)
        quick.remember(args[:count])
        return Repeat(quick, count, rest, _facts(args), captured)

    def __call__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
        """The result, or None if the call is another one."""
        return None if keywords else self.of_places(args)

    def of_places(self, args: tuple[Any, ...]) -> torch.Tensor | None:
        """The same for a call without keywords."""
        count = self.count
        if len(args) < count or args[count:] != self.rest:
            return None
        if self.captured and not are_unchanged(self.captured):
            return None
        return self.quick.call(args[:count])

    def again(self, args: tuple[Any, ...]) -> Repeat | None:
        """The same for another layer of the dispatcher, if these are its arguments."""
        # To compare the sizes of a tensor that is traced would tell the tracer about them.
        if not all(map(_is_concrete, args)) or _facts(args) != self.facts:
            return None
        quick = QuickCall(self.quick.entry, _NO_WEIGHTS)
        quick.remember(args[: self.count])
        return Repeat(quick, self.count, args[self.count :], self.facts, self.captured)


def _facts(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((a.dtype, a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in args)


def _is_concrete(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return type(value) is torch.Tensor and all(type(size) is int for size in value.shape)


def _is_plain(slot: Slot) -> bool:
    return slot.order is None and slot.dtype is not None and is_shareable(slot.dtype)


def _is_told_by_equality(value: Any) -> bool:
    """0.0 equals -0.0; all else that a schema lets differ differs by ==."""
    if isinstance(value, list):
        return all(map(_is_told_by_equality, value))
    return not (isinstance(value, float) and value == 0.0) and not isinstance(value, torch.Tensor)
