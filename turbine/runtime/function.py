"""Entry points of artifacts."""

from __future__ import annotations

from typing import Any

from turbine.runtime.caller import Caller
from turbine.runtime.executable import Executable
from turbine.runtime.overlap import Span
from turbine.runtime.state import State
from turbine.signature import Signature


class Function:
    """One entry point of an artifact."""

    def __init__(self, executable: Executable, name: str, signature: Signature, span: Span) -> None:
        self.name = name
        self.signature = signature
        self.entry = executable.entry(name)
        self.call = Caller(signature, self.entry, span).call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(args, kwargs)

    def __repr__(self) -> str:
        return f"<turbine function {self.name}{self.signature.text()}>"


# The count of batches since the last update.
_BATCHES = "trainer.batches"


def alternate(update: Function, add: Function, state: State, batches: int) -> None:
    """Let a training step add up gradients, and update the weights in every n-th call only."""
    last = update.call

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_last = int(state[_BATCHES]) + 1 >= batches
        return (last if is_last else add.call)(args, kwargs)

    update.call = call
