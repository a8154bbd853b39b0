"""Custom ops that mutate arguments: kernels around a pure op that returns the new values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.ops.aliasing import share_memory, shared_pairs
from turbine.ops.declared_op import DECLARED, DeclaredOp, Function
from turbine.ops.predicates import any_requires_grad, is_intercepted, is_transformed
from turbine.ops.pure_op import PureOp


class WritingOp(DeclaredOp):
    """An op that mutates arguments; its core is a pure op that returns their new values."""

    @property
    def core(self) -> PureOp:
        return self.pure

    def _implement(self) -> None:
        computed = partial(self._compute, self.function)
        self.pure = PureOp(self.schema.functional(), computed, self.static)
        for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
            self.library.impl(self.schema.name, self._write, key)

    def register_eager(self, execute: Function) -> Function:
        self.pure.register_eager(partial(self._compute, execute))
        return execute

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        raise errors.CustomOpError(
            f"{self.schema.qualified} mutates arguments, so it cannot have a gradient",
            hint="declare an op that returns what this one writes",
        )

    def remove(self) -> None:
        functional = DECLARED.get(self.schema.functional().qualified)
        if functional is not None:
            functional.remove()
        super().remove()

    def _compute(self, function: Function, *args: Any, **keywords: Any) -> Any:
        """The results of a function on copies of mutated arguments, and those copies."""
        own = self.schema.with_copies(self.schema.filled(args, keywords))
        results = self.schema.call(function, own)
        if results is NotImplemented:
            return results
        results = self.schema.check_results(results)
        values = (*self.schema.as_tuple(results), *self.schema.written_of(own))
        return values[0] if len(values) == 1 else values

    def _keep_arguments(self, filled: Sequence[Any]) -> list[Any]:
        """The arguments, with copies of mutated ones if a gradient may need them."""
        if not (torch.is_grad_enabled() and any_requires_grad(filled)):
            return list(filled)
        return self.schema.with_copies(filled)

    def _tensors(self, filled: Sequence[Any], *, written: bool) -> dict[str, torch.Tensor]:
        """The mutated tensors, or those that are only read, by name."""
        return {
            argument.name if leaf is value else f"{argument.name}[{place}]": leaf
            for argument, value in zip(self.schema.arguments, filled, strict=True)
            if argument.is_written == written
            for place, leaf in enumerate(torch_pytree.tree_leaves(value))
            if isinstance(leaf, torch.Tensor)
        }

    def _reads_what_it_writes(self, filled: Sequence[Any]) -> bool:
        """Whether a mutated tensor shares memory with another argument."""
        written = self._tensors(filled, written=True)
        read = self._tensors(filled, written=False).values()
        return any(shared_pairs(written)) or any(
            share_memory(one, other) for one in written.values() for other in read
        )

    def _check_apart(self, filled: Sequence[Any]) -> None:
        """Raise if two mutated tensors share memory: the IR returns a new value for each.

        A tensor that is only read may share memory with them: its old value is read.
        """
        for one, other in shared_pairs(self._tensors(filled, written=True)):
            raise errors.CustomOpError(
                f"{self.schema.qualified} writes to {one} and {other}, which share memory",
                hint=f"pass a copy of one of them: {other}.clone()",
            )

    def _write(self, *args: Any, **keywords: Any) -> Any:
        filled = self.schema.filled(args, keywords)
        if not self.pure.has_meaning:
            self._check_apart(filled)
        elif not (is_transformed() or is_intercepted()) and self._reads_what_it_writes(filled):
            # Run the function in PyTorch, since it may read what it has written.
            return self.schema.check_results(self.schema.call(self.function, filled))
        values = self.pure.schema.as_tuple(
            self.schema.call(self.pure.op, self._keep_arguments(filled))
        )
        count = len(self.schema.results)
        torch_pytree.tree_map(_overwrite, self.schema.written_of(filled), list(values[count:]))
        return values[0] if count == 1 else values[:count] or None


def _overwrite(old: Any, new: Any) -> None:
    if isinstance(old, torch.Tensor):
        old.copy_(new)
