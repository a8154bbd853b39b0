"""Named ranges of torch.profiler around calls; PyTorch is not imported for them."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

_PREFIX = "turbine::"


def _find_profiler() -> bool:
    """Look for PyTorch's own test, which replaces this one, until PyTorch has been imported."""
    global is_profiling
    torch = sys.modules.get("torch")
    try:
        is_profiling = torch.autograd._profiler_enabled  # type: ignore[union-attr]
    except AttributeError:  # there is no PyTorch, or it is being imported
        return False
    return bool(is_profiling())


is_profiling = _find_profiler  # whether a profiler of PyTorch runs in this thread


def open_range(name: str) -> AbstractContextManager[Any]:
    """Begin a range; whoever calls this closes it."""
    from torch.profiler import record_function

    found: AbstractContextManager[Any] = record_function(_PREFIX + name)
    found.__enter__()
    return found


def close_range(opened: AbstractContextManager[Any]) -> None:
    """End a range."""
    opened.__exit__(None, None, None)
