"""Ops declared outside PyTorch, by what stands for each in compiled code: three tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# An op's overload -> PyTorch ops that mean the same, written into its place.
MEANINGS: dict[Any, Callable[..., Any]] = {}
# An op's name -> the rule that builds its IR; `turbine.lower.emission` says what a rule is.
EMITTED: dict[str, Callable[..., Any]] = {}
# What an op that only exported programs keep is in code that is compiled to run at once.
IN_PROCESS: dict[Any, Callable[..., Any]] = {}
