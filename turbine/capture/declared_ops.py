"""Ops declared outside PyTorch, by what stands for each in compiled code: tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.overrides import TorchFunctionMode

# An op's overload -> PyTorch ops that mean the same, written into its place.
MEANINGS: dict[Any, Callable[..., Any]] = {}
# An op's name -> the rule that builds its IR; `turbine.lower.emission` says what a rule is.
EMITTED: dict[str, Callable[..., Any]] = {}

# Of these, the ones whose IR is known not to change an operand, as `tensor.insert_slice` may.
KEEP_OPERANDS: set[str] = set()
# How many operations a call of an op is about, by its arguments; of others, one for each result.
OPERATIONS: dict[str, Callable[..., float]] = {}
# Ops that show something in Python when they run.
SPEAKING: set[str] = set()
# What an op that only exported programs keep is in code that is compiled to run at once.
IN_PROCESS: dict[Any, Callable[..., Any]] = {}


def may_overwrite(name: str) -> bool:
    """Whether compiled code for an op could change its arguments."""
    return name in EMITTED and name not in KEEP_OPERANDS


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What ops mean, for graphs: a function may write to what it has made, they do not."""
    return {op: _functional(meaning) for op, meaning in MEANINGS.items()}


@lru_cache(maxsize=1024)
def _functional(meaning: Callable[..., Any]) -> Callable[..., Any]:
    return dispatch_functionalize(meaning)


class Expanding(TorchFunctionMode):
    """Within it, what an op means is called in its place.

    PyTorch does not take constants that a decomposition brings into an exported program.
    """

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the op, or what it means."""
        packet = isinstance(function, torch._ops.OpOverloadPacket)
        op = function.default if packet and "default" in function.overloads() else function
        return MEANINGS.get(op, function)(*args, **(kwargs or {}))
