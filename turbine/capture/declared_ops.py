"""Tables of custom ops: how each is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.overrides import TorchFunctionMode

# An op's overload -> its reference implementation, inlined where the op is called.
MEANINGS: dict[Any, Callable[..., Any]] = {}
# An op's name -> its emission, the function that builds its IR; see `turbine.lower.emission`.
EMITTED: dict[str, Callable[..., Any]] = {}

# Ops in EMITTED whose IR never writes to an operand; `tensor.insert_slice` may, for example.
KEEP_OPERANDS: set[str] = set()
# An op's name -> the operation count of a call; ops without a row count one per result element.
OPERATIONS: dict[str, Callable[..., float]] = {}
# The name of a kernel's op -> the program of a call, and its sizes.
PROGRAMS: dict[str, Callable[..., Any]] = {}
# Ops that print from Python when they run.
SPEAKING: set[str] = set()
# Kernels of the library that decompositions call, by name.
KERNELS: dict[str, Callable[..., Any]] = {}
# Ops that only exported programs keep -> their implementation in code that runs in this process.
IN_PROCESS: dict[Any, Callable[..., Any]] = {}


def may_overwrite(name: str) -> bool:
    """Whether compiled code for an op could change its arguments."""
    return name in EMITTED and name not in KEEP_OPERANDS


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The implementations in MEANINGS, functionalized for graphs."""
    return {op: _functional(meaning) for op, meaning in MEANINGS.items()}


@lru_cache(maxsize=1024)
def _functional(meaning: Callable[..., Any]) -> Callable[..., Any]:
    return dispatch_functionalize(meaning)


class Expanding(TorchFunctionMode):
    """A mode in which a custom op's implementation is called in place of the op.

    PyTorch does not accept constants that a decomposition adds to an exported program.
    """

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the implementation in MEANINGS, or the function itself."""
        packet = isinstance(function, torch._ops.OpOverloadPacket)
        op = function.default if packet and "default" in function.overloads() else function
        return MEANINGS.get(op, function)(*args, **(kwargs or {}))
