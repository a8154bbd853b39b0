"""Entry points of artifacts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turbine import errors
from turbine.runtime import run_trace
from turbine.runtime.caller import Caller
from turbine.runtime.executable import EntryPoint
from turbine.runtime.overlap import Span
from turbine.runtime.state import State
from turbine.signature import Signature


class Function:
    """One entry point of an artifact."""

    def __init__(self, name: str, signature: Signature, entry: EntryPoint, span: Span) -> None:
        self.name = name
        self.signature = signature
        self.entry = entry
        self.call = Caller(signature, entry, span).call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(args, kwargs)

    def __reduce__(self) -> Any:
        raise errors.ArgumentError(
            f"the entry point {self.name!r} cannot be pickled or copied by itself",
            hint=f"pickle the artifact or session, and take its {self.name!r} from the copy",
        )

    def __repr__(self) -> str:
        return f"<turbine function {self.name}{self.signature.text()}>"


def check_before(function: Function, check: Callable[[], None]) -> None:
    """Run a check before each call, which raises if there must be none."""
    call = function.call

    def checked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check()
        return call(args, kwargs)

    function.call = checked


def trace_calls(function: Function, label: Path) -> None:
    """Log each call under a name in the folder for traces."""
    call = function.call

    def traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        started = time.perf_counter()
        results = call(args, kwargs)
        elapsed = time.perf_counter() - started
        run_trace.call(label, function.signature.leaves(args, kwargs), 1e3 * elapsed)
        return results

    function.call = traced


# The count of batches since the last update.
_BATCHES = "trainer.batches"


def alternate(update: Function, add: Function, state: State, batches: int) -> None:
    """Let a training step add up gradients, and update the weights in every n-th call only."""
    last = update.call

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_last = int(state[_BATCHES]) + 1 >= batches
        return (last if is_last else add.call)(args, kwargs)

    update.call = call
