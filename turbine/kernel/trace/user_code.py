"""Find the line of user code that is being traced."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

# Frames between the user's line and an error: turbine.kernel, PyTorch, and `with` statements.
_KERNEL = Path(__file__).parents[1]
_FOREIGN = (f"{_KERNEL}/", f"{Path(torch.__file__).parent}/", contextlib.__file__)


def user_line() -> str | None:
    """The file and line of the innermost frame of user code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
