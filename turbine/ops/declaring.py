"""Declare an op: a schema and a function in, an op of PyTorch's that is compiled out."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch._library.utils import lookup_op
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.capture.declared_ops import EMITTED, MEANINGS
from turbine.mlir import context as mlir_context
from turbine.ops import emitting, gradients, schema
from turbine.ops.launching import Launcher
from turbine.ops.repeating import Repeat
from turbine.ops.schema import Schema
from turbine.ops.specializing import Static

Function = Callable[..., Any]
DECLARED: dict[str, DeclaredOp] = {}


def custom_op(text: str, *, static: Static | None = None) -> Callable[[Function], DeclaredOp]:
    """Declare an op by its schema; the function below it says what it means.

    Written with PyTorch's ops, the function is compiled, and gradients are derived from it. Where
    the op has an emission of its own (`register_emission`, `register_template`), the function is
    the shape rule: it is run on tensors without data. `static` names axes whose sizes are part of
    the code, `{"x": [1], "weight": True}`; code serves any size of the others.

    >>> import torch, turbine.ops
    >>> @turbine.ops.custom_op("docs::scaled_add(Tensor x, Tensor y, float alpha=1.0) -> Tensor")
    ... def scaled_add(x, y, alpha):
    ...     return x + alpha * y
    >>> torch.ops.docs.scaled_add(torch.ones(2), torch.ones(2), alpha=2)
    tensor([3., 3.])
    >>> scaled_add.remove()
    """
    parsed = schema.parse(text)

    def declare(function: Function) -> DeclaredOp:
        kind = WritingOp if parsed.written else PureOp
        return kind(parsed, function, static or {})

    return declare


class DeclaredOp(ABC):
    """An op that was declared; calling it calls the op of PyTorch's."""

    op: Any = None

    def __init__(self, parsed: Schema, function: Function, static: Static) -> None:
        _check(parsed, function, static)
        self.schema = parsed
        self.function = function
        self.__doc__ = function.__doc__
        self.static = static
        self.library = torch.library.Library(parsed.namespace, "FRAGMENT")
        try:
            self.library.define(parsed.text, tags=(torch.Tag.pt2_compliant_tag,))
            self.op = lookup_op(parsed.qualified)
            self._implement()
        except BaseException:
            self.remove()
            raise
        DECLARED[parsed.qualified] = self

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the op."""
        return self.op(*args, **keywords)

    def remove(self) -> None:
        """Take the op back, as if it had not been declared."""
        DECLARED.pop(self.schema.qualified, None)
        self.library._destroy()

    @abstractmethod
    def _implement(self) -> None:
        """Give the op its kernels."""

    @abstractmethod
    def register_emission(self, emit: emitting.Emit) -> emitting.Emit:
        """Give the op IR of its own: `emit(builder, *arguments)` gives its values.

        Of an op that writes, it gives the new values of what is written after the results.
        """

    @abstractmethod
    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        """Give the op a gradient, as torch.library.register_autograd takes it."""

    @abstractmethod
    def register_vmap(self, rule: Function) -> Function:
        """Give the op a vmap rule, as torch.library.register_vmap takes it."""

    @abstractmethod
    def check(self, *args: Any, **keywords: Any) -> str:
        """Emit the op for such arguments without compiling it; gives the IR as text."""


class PureOp(DeclaredOp):
    """An op that only gives results."""

    def _implement(self) -> None:
        name, library = self.schema.name, self.library
        self.launcher = Launcher(self.schema, self.op, self.static, instead=self._meaning)
        # Calls to repeat without the layers below: at the dispatcher's autograd, and before it.
        self.repeat: Repeat | None = None
        self.direct: Repeat | None = None
        self.has_meaning = True
        MEANINGS[self.op] = self._expanded
        backward, setup_context = gradients.derived(self.schema, self._meaning)
        self.register_autograd(backward, setup_context=setup_context)
        self.register_vmap(gradients.loop(self.op))
        torch.library.register_fake(self.schema.qualified, self._shaped, lib=library)
        library.impl(name, self._launch, "CPU")
        library.impl(name, self._elsewhere, "CompositeExplicitAutograd")
        library.impl(name, self._differentiable, "Autograd", with_keyset=True)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the op; a call like the one before skips PyTorch's dispatcher."""
        if keywords or torch.compiler.is_compiling() or _is_watched():
            return self.op(*args, **keywords)
        direct = self.direct
        if direct is not None:
            result = direct(args, keywords)
            if result is not None:
                return result
        results = self.op(*args)
        self.direct = self._repeat_of(args)
        return results

    def register_emission(self, emit: emitting.Emit) -> emitting.Emit:
        self._forget()
        self.has_meaning = False
        EMITTED[self.schema.qualified] = emitting.rule(self.schema, emit)
        self.launcher = Launcher(self.schema, self.op, self.static)
        self.register_autograd(self._no_gradient)
        return emit

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        self.autograd = make_autograd_impl(self.op, Info(backward, setup_context))

    def register_vmap(self, rule: Function) -> Function:
        torch.library.register_vmap(self.schema.qualified, rule, lib=self.library)
        return rule

    def check(self, *args: Any, **keywords: Any) -> str:
        return mlir_context.to_text(self.launcher.lowered(self.schema.filled(args, keywords)))

    def remove(self) -> None:
        self._forget()
        super().remove()

    def _forget(self) -> None:
        EMITTED.pop(self.schema.qualified, None)
        MEANINGS.pop(self.op, None)

    def _meaning(self, *args: Any) -> Any:
        """The function's results, which are as the schema says."""
        return self.schema.conforming(self.schema.call(self.function, args))

    def _shaped(self, *args: Any, **keywords: Any) -> Any:
        """Results without data, all of them contiguous."""
        results = self._meaning(*self.schema.filled(args, keywords))
        return torch_pytree.tree_map_only(torch.Tensor, _empty_like, results)

    def _expanded(self, *args: Any, **keywords: Any) -> Any:
        """The function's ops in place of the op, with results such as compiled code gives."""
        leaves, tree = torch_pytree.tree_flatten(self.schema.filled(args, keywords))
        places = [place for place, leaf in enumerate(leaves) if _is_tensor(leaf)]

        def of_tensors(*tensors: torch.Tensor) -> Any:
            own = dict(zip(places, tensors, strict=True))
            filled = [own.get(place, leaf) for place, leaf in enumerate(leaves)]
            results = self._meaning(*torch_pytree.tree_unflatten(filled, tree))
            return torch_pytree.tree_map_only(torch.Tensor, lambda t: _own(t, tensors), results)

        # A function may write to what it has made; graphs do not.
        return dispatch_functionalize(of_tensors)(*[leaves[place] for place in places])

    def _launch(self, *args: Any, **keywords: Any) -> Any:
        return self.launcher(*args, **keywords)

    def _elsewhere(self, *args: Any, **keywords: Any) -> Any:
        """On devices that are not CPUs, PyTorch runs the function if it is written for that."""
        filled = self.schema.filled(args, keywords)
        if self.has_meaning:
            return self._meaning(*filled)
        devices = {str(t.device) for t in torch_pytree.tree_leaves(filled) if _is_tensor(t)}
        raise errors.CustomOpError(
            f"{self.schema.qualified} was called with tensors on {', '.join(sorted(devices))}",
            hint="its emission runs on the CPU: move the tensors there",
        )

    def _differentiable(self, keyset: Any, *args: Any, **keywords: Any) -> Any:
        repeat = self.repeat
        if repeat is not None:
            result = repeat(args, keywords)
            if result is not None:
                return result
        if self.has_meaning and torch._C._functorch.maybe_current_level() is not None:
            # torch.func's transforms do not take ops with gradients of their own.
            return self._meaning(*self.schema.filled(args, keywords))
        results = self.autograd(keyset, *args, **keywords)
        self.repeat = None if keywords else self._repeat_of(args)
        return results

    def _repeat_of(self, args: tuple[Any, ...]) -> Repeat | None:
        """The call that the launcher remembers, if it was this one."""
        below = self.launcher.repeat
        if below is None or torch._C._any_requires_grad(*args):
            return None
        return below.again(args)

    def _no_gradient(self, ctx: Any, *grads: Any) -> Any:
        raise errors.CustomOpError(
            f"{self.schema.qualified} has no gradient", hint="give it one with register_autograd"
        )


class WritingOp(DeclaredOp):
    """An op that writes to arguments: one that gives their new values does the work."""

    def _implement(self) -> None:
        self.pure = PureOp(self.schema.functional(), self._computed, self.static)
        self.library.impl(self.schema.name, self._write, "CompositeImplicitAutograd")

    def register_emission(self, emit: emitting.Emit) -> emitting.Emit:
        return self.pure.register_emission(emit)

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        raise errors.CustomOpError(
            f"{self.schema.qualified} writes to arguments, and so has no gradient of its own",
            hint="declare an op that returns what this one writes",
        )

    def register_vmap(self, rule: Function) -> Function:
        torch.library.register_vmap(self.schema.qualified, rule, lib=self.library)
        return rule

    def check(self, *args: Any, **keywords: Any) -> str:
        return self.pure.check(*self.schema.filled(args, keywords))

    def remove(self) -> None:
        functional = DECLARED.get(self.schema.functional().qualified)
        if functional is not None:
            functional.remove()
        super().remove()

    def _computed(self, *args: Any) -> Any:
        """The results of the function on copies of what it writes, and those copies."""
        pairs = list(zip(self.schema.arguments, args, strict=True))
        own = [_copied(value) if argument.is_written else value for argument, value in pairs]
        results = self.schema.conforming(self.schema.call(self.function, own))
        written = [v for a, v in zip(self.schema.arguments, own, strict=True) if a.is_written]
        values = (*self.schema.as_tuple(results), *written)
        return values[0] if len(values) == 1 else values

    def _write(self, *args: Any, **keywords: Any) -> Any:
        filled = self.schema.filled(args, keywords)
        values = self.pure.schema.as_tuple(self.pure.op(*filled))
        count = len(self.schema.results)
        pairs = zip(self.schema.arguments, filled, strict=True)
        written = [value for argument, value in pairs if argument.is_written]
        torch_pytree.tree_map(_overwrite, written, list(values[count:]))
        return values[0] if count == 1 else values[:count] or None


def _check(parsed: Schema, function: Function, static: Static) -> None:
    """Refuse a declaration that cannot hold, before anything of it is registered."""
    name = parsed.qualified
    if torch._C._jit_get_schemas_for_operator(name):
        hint = f"call {name.replace('::', '.')}.remove() first, or choose another name"
        raise errors.CustomOpError(
            f"{name} exists already", hint=hint if name in DECLARED else "choose another name"
        )
    names = [argument.name for argument in parsed.arguments]
    for wrong in sorted(set(static) - set(names)):
        raise errors.CustomOpError(f"{name}: static: {errors.unknown('argument', wrong, names)}")
    try:
        parsed.call(inspect.signature(function).bind, names)
    except TypeError as error:
        raise errors.CustomOpError(
            f"{name}: its function does not take the arguments of its schema: {error}",
            where=emitting.place(function),
            hint=f"the schema is {parsed.text}",
        ) from error


def _is_watched() -> bool:
    """Whether something is to see every call of an op."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _own(result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result in memory of its own, in the order of its axes."""
    if result._is_view() or any(result is one for one in inputs):
        return result.clone(memory_format=torch.contiguous_format)
    return result.contiguous()


def _copied(value: Any) -> Any:
    return torch_pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, value)


def _overwrite(old: Any, new: Any) -> None:
    if isinstance(old, torch.Tensor):
        old.copy_(new)
