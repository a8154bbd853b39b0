"""A loaded program with one state: entry points, called with torch tensors or numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turbine import errors
from turbine.runtime import checkpoint
from turbine.runtime.executable import Executable, Values
from turbine.runtime.function import Function, alternate, trace_calls
from turbine.runtime.overlap import Span
from turbine.runtime.state import Kept, State
from turbine.signature import Signature


class Program:
    """What artifacts and sessions have in common; several entry points are called by name."""

    def __init__(
        self,
        manifest: Mapping[str, Any],
        executable: Executable,
        owner: Values,
        span: Span,
        label: Path | None = None,
    ) -> None:
        """`label` is what a trace calls the program, if there is one."""
        self._label = label
        self._executable = executable
        self._owner = owner
        self._span = span
        self.functions = {
            name: _function(name, Signature.from_json(data), executable, owner, span)
            for name, data in manifest["functions"].items()
        }
        if label is not None:
            is_only = len(self.functions) == 1
            for name, function in self.functions.items():
                trace_calls(function, label if is_only else label.with_name(f"{label.name}.{name}"))
        kept = [Kept.from_json(row) for row in manifest["state"]]
        self.state = State(executable, owner, kept, span)
        self._constants = [entry["name"] for entry in manifest["weights"]]
        training = manifest.get("training", {})
        self._shared: dict[str, list[str]] = training.get("shared", {})
        batches = training.get("accumulate", 1)
        if batches > 1:
            update, add = (self.functions[name] for name in ("train_step", "accumulate"))
            alternate(update, add, self.state, batches)
        self._only = self.function() if len(self.functions) == 1 else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        only = self._only if self._only is not None else self.function()
        return only.call(args, kwargs)

    def __getattr__(self, name: str) -> Function:
        """An entry point by its name: `artifact.decode(x)`."""
        functions: dict[str, Function] = self.__dict__.get("functions", {})
        if name not in functions:
            raise AttributeError(errors.unknown("entry point", name, functions), obj=self)
        return functions[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.functions]

    @property
    def signature(self) -> Signature:
        """The arguments and results of the only entry point."""
        return self.function().signature

    def function(self, name: str | None = None) -> Function:
        """An entry point by its name, or the only one."""
        if name is not None:
            if name not in self.functions:
                raise errors.ArgumentError(errors.unknown("entry point", name, self.functions))
            return self.functions[name]
        if len(self.functions) != 1:
            raise errors.ArgumentError(
                f"the artifact has {len(self.functions)} entry points",
                hint=f"use one by its name: {', '.join(self.functions)}",
            )
        (only,) = self.functions.values()
        return only

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the state to a .safetensors file, which replaces an old one atomically.

        Tensors of a model have the names that PyTorch has for them. A training step's optimizer
        has `optimizer.<parameter>.<name>` for each of its tensors.
        """
        checkpoint.save(Path(path), self.state, self._shared)

    def load_checkpoint(self, path: str | Path) -> None:
        """Set the state to that of a file; the state stays as it is if the file does not fit."""
        checkpoint.load(Path(path), self.state, self._shared, self._constants)


def _function(
    name: str, signature: Signature, executable: Executable, owner: Values, span: Span
) -> Function:
    entry = executable.entry(name, owner, is_static=not signature.symbols)
    return Function(name, signature, entry, span)
