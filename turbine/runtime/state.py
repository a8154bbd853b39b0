"""The state of a loaded program, read and set by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from turbine import errors
from turbine.dims import Dim
from turbine.pytree import LEAF, Tree
from turbine.runtime import libraries
from turbine.runtime.caller import Caller
from turbine.runtime.executable import Executable, Values
from turbine.runtime.overlap import Span
from turbine.signature import Input, Output, Signature, state_functions


@dataclass(frozen=True)
class Kept:
    """The declaration of one value of the state."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None  # None for a scalar; a name is a dynamic size

    @staticmethod
    def from_json(row: dict[str, Any]) -> Kept:
        """The declaration in a row of a manifest."""
        shape = None if row["shape"] is None else tuple(row["shape"])
        return Kept(row["name"], row["dtype"], shape)

    @property
    def kind(self) -> str:
        """The kind of the value in a signature."""
        return "scalar" if self.shape is None else "tensor"

    def text(self) -> str:
        """The type as in a signature."""
        if self.shape is None:
            return self.dtype
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


Snapshot = dict[str, Any] | None


class State(Mapping[str, Any]):
    """The values that an artifact or a session keeps between calls; reading and setting copy.

    >>> import torch, turbine
    >>> counter = torch.nn.BatchNorm1d(2)
    >>> artifact = turbine.aot.export(counter, args=(torch.ones(4, 2),)).compile()
    >>> artifact.state["num_batches_tracked"] = torch.tensor(3)
    >>> _ = artifact(torch.ones(4, 2))
    >>> artifact.state["num_batches_tracked"]
    tensor(4)
    """

    def __init__(
        self, executable: Executable, owner: Values, kept: Sequence[Kept], span: Span
    ) -> None:
        self._executable = executable
        self._owner = owner
        self._kept = {value.name: (index, value) for index, value in enumerate(kept)}
        self._span = span

    def __getitem__(self, name: str) -> Any:
        index, kept = self._find(name)
        getter, _ = state_functions(index)
        output = Output(kept.kind, kept.dtype, kept.shape or ())
        return _copy(self._caller(getter, (), (output,)).call((), {}))

    def __setitem__(self, name: str, value: Any) -> None:
        index, kept = self._find(name)
        _, setter = state_functions(index)
        given = Input(name, kept.kind, kept.dtype, kept.shape or ())
        # The program takes over the memory.
        self._caller(setter, (given,), ()).call((_copy(value),), {})

    def declaration(self, name: str) -> Kept:
        """The type of a value."""
        return self._find(name)[1]

    def snapshot(self) -> Snapshot:
        """A copy of all values, in arrays; None if they are what the program was exported with."""
        if self._executable.is_initial(self._owner):
            return None
        return {name: _to_numpy(value) for name, value in self.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Set all values to those of a snapshot."""
        for name, value in (snapshot or {}).items():
            self[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        rows = [f"{kept.name}: {kept.text()}" for _, kept in self._kept.values()]
        return f"<state {', '.join(rows)}>"

    def _find(self, name: str) -> tuple[int, Kept]:
        if name not in self._kept:
            raise errors.StateError(errors.unknown("state", str(name), self._kept))
        return self._kept[name]

    def _caller(
        self, function: str, inputs: tuple[Input, ...], outputs: tuple[Output, ...]
    ) -> Caller:
        taken = Tree("tuple", (Tree("tuple", (LEAF,) * len(inputs)), Tree("dict", ())))
        given = LEAF if outputs else Tree("tuple", ())
        names = tuple(item.name for item in inputs)
        signature = Signature(inputs, outputs, taken, given, {}, names)
        return Caller(signature, self._executable.entry(function, self._owner), self._span)


def _to_numpy(value: Any) -> Any:
    library = libraries.of(value)
    return value if library is None else library.to_numpy(value)


def _copy(value: Any) -> Any:
    if isinstance(value, numpy.ndarray):
        return value.copy()
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    return value.clone() if is_tensor else value
