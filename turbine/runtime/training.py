"""Steps of training that average the gradients of several batches."""

from __future__ import annotations

from typing import Any, Protocol

from turbine.runtime.state import State
from turbine.signature import Signature

# The count of batches since the last update.
BATCHES = "trainer.batches"


class Step(Protocol):
    """An entry point."""

    name: str
    signature: Signature

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it."""


class AccumulatingStep:
    """An entry point that adds up gradients, and updates the weights in every n-th call."""

    def __init__(self, update: Step, add: Step, state: State, batches: int) -> None:
        self.name = update.name
        self.signature = update.signature
        self._update, self._add = update, add
        self._state, self._batches = state, batches

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call one of the two, by the count of batches."""
        is_last = int(self._state[BATCHES]) + 1 >= self._batches
        return (self._update if is_last else self._add).call(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(args, kwargs)

    def __repr__(self) -> str:
        return f"<turbine function {self.name}{self.signature.text()}>"
