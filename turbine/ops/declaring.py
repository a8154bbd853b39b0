"""Declare an op: a schema and a function in, an op of PyTorch's that is compiled out."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch._library.utils import lookup_op
from torch.autograd import forward_ad
from torch.fx.operator_schemas import _SCHEMA_TO_SIGNATURE_CACHE
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.capture.declared_ops import EMITTED, KEEP_OPERANDS, MEANINGS
from turbine.mlir import context as mlir_context
from turbine.ops import emitting, gradients, schema, templates
from turbine.ops.expanding import expansion
from turbine.ops.launching import Launcher
from turbine.ops.repeating import Repeat
from turbine.ops.schema import Schema
from turbine.ops.specializing import Static
from turbine.passes import expand_custom_ops

Function = Callable[..., Any]
DECLARED: dict[str, DeclaredOp] = {}


def custom_op(
    text: str, *, static: Static | None = None, leave: Collection[str] = ()
) -> Callable[[Function], DeclaredOp]:
    """Declare an op by its schema; the function below it says what it means.

    Written with PyTorch's ops, the function is compiled, and gradients are derived from it. Where
    the op has an emission of its own (`register_emission`, `register_template`), the function is
    the shape rule: it is run on tensors without data. `static` names axes whose sizes are part of
    the code, `{"x": [1], "weight": True}`, or is called with a call's arguments to say so; code
    serves any size of the others. `leave` names kernels that the caller registers with
    torch.library, "Meta" and "CPU".

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
        return kind(parsed, function, static or {}, leave)

    return declare


class DeclaredOp(ABC):
    """An op that was declared; calling it calls the op of PyTorch's."""

    op: Any = None

    def __init__(
        self, parsed: Schema, function: Function, static: Static, leave: Collection[str] = ()
    ) -> None:
        _check(parsed, function, static)
        self.schema = parsed
        self.function = function
        self.__doc__ = function.__doc__
        self.static = static
        self.leave = leave
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
        expand_custom_ops.DECLARED.pop(self.schema.dotted, None)
        # PyTorch remembers schemas by name, and would take the next op's for this one's.
        _SCHEMA_TO_SIGNATURE_CACHE.pop((self.schema.qualified, ""), None)
        self.library._destroy()
        # Once the library is garbage, PyTorch would take these back again, from the next op.
        self.library._op_defs.clear()
        self.library._op_impls.clear()
        self.op = partial(_refuse_removed, self.schema.qualified)

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that holds the op is copied and pickled; the op itself is declared once.
        return _declared, (self.schema.qualified,)

    @property
    @abstractmethod
    def core(self) -> PureOp:
        """The op that computes, which writes nothing."""

    @abstractmethod
    def _implement(self) -> None:
        """Give the op its kernels."""

    def register_emission(
        self, emit: emitting.Emit, *, keeps_operands: bool = False
    ) -> emitting.Emit:
        """Give the op IR of its own: `emit(builder, *arguments)` gives its values.

        Of an op that writes, it gives the new values of what is written after the results. IREE
        may let some IR, such as `tensor.insert_slice`, change its operand, so tensors of the
        caller's are copied first, unless the IR is known to be none of that.
        """
        _check_takes(self.schema, emit, "emission", "builder")
        self.core.emit_by(emit)
        own = expansion(self.schema, self.core.schema.qualified)
        expand_custom_ops.DECLARED[self.schema.dotted] = own
        if keeps_operands:
            KEEP_OPERANDS.add(self.core.schema.qualified)
        return emit

    def register_template(
        self,
        text: str,
        *,
        engine: str | None = None,
        function: str | None = None,
        example: Sequence[Any] | None = None,
    ) -> None:
        """Give the op IR of its own by a text: a function of its tensors and sizes, in order.

        With the engine "format" (of str) or "jinja" it has blanks, which `turbine.ops.templates`
        describes. It is parsed and checked now: one with blanks, for `example` arguments. Of
        several functions, `function` says which is the op; else it has its name.
        """
        emit = templates.emission(self.schema, text, engine, function)
        if engine is not None and example is None:
            raise errors.CustomOpError(
                f"{self.schema.qualified}: a template with blanks is checked for arguments",
                hint="give some, example=(torch.ones(2, 3),)",
            )
        if example is None:
            templates.check(self.schema, text, function)
        with _put_back_on_failure(self):
            self.register_emission(emit)
            if example is not None:
                self.check(*example)

    @abstractmethod
    def register_eager(self, execute: Function) -> Function:
        """Let a function take calls on tensors; for NotImplemented the op's code is run."""

    @abstractmethod
    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        """Give the op a gradient, as torch.library.register_autograd takes it."""

    def register_vmap(self, rule: Function) -> Function:
        """Give the op a vmap rule, as torch.library.register_vmap takes it."""
        self.core.batch = rule
        return rule

    def check(self, *args: Any, **keywords: Any) -> str:
        """Emit the op for such arguments without compiling it; gives the IR as text."""
        launcher = self.core.launcher
        return mlir_context.to_text(launcher.lowered(self.schema.filled(args, keywords)))


class PureOp(DeclaredOp):
    """An op that only gives results."""

    @property
    def core(self) -> PureOp:
        return self

    def _implement(self) -> None:
        name, library = self.schema.name, self.library
        self.launcher = Launcher(self.schema, self.op, self.static, instead=self._expanded)
        # Calls to repeat without the layers below: at the dispatcher's autograd, and before it.
        self.repeat: Repeat | None = None
        self.direct: Repeat | None = None
        self.has_meaning = True
        self.eager: Function | None = None
        MEANINGS[self.op] = self._expanded
        self.has_own_gradient = False
        self._differentiate_by(gradients.derived(self.schema, self._meaning))
        self.batch = gradients.loop(self.op)
        self.takes_keyword_tensors = any(
            argument.keyword_only and argument.kind.startswith("Tensor")
            for argument in self.schema.arguments
        )
        if not self.takes_keyword_tensors:  # which torch's rules do not know
            torch.library.register_vmap(self.schema.qualified, self._batched, lib=library)
        if "Meta" not in self.leave:
            torch.library.register_fake(self.schema.qualified, self._shaped, lib=library)
        if "CPU" not in self.leave:
            library.impl(name, self._launch, "CPU")
            library.impl(name, self._elsewhere, "CompositeExplicitAutograd")
        library.impl(name, self._differentiable, "Autograd", with_keyset=True)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the op; a call like the one before skips PyTorch's dispatcher."""
        if keywords or torch.compiler.is_compiling() or _is_watched() or _is_transformed():
            return self.op(*args, **keywords)
        direct = self.direct
        if direct is not None:
            result = direct(args, keywords)
            if result is not None:
                return result
        results = self.op(*args)
        self.direct = self._repeat_of(args)
        return results

    def emit_by(self, emit: emitting.Emit) -> None:
        """Take the function for a shape rule from now on, and the emission for the code."""
        self.forget()
        self.has_meaning = False
        EMITTED[self.schema.qualified] = emitting.rule(self.schema, emit)
        self.launcher = Launcher(self.schema, self.op, self.static)
        self.repeat = self.direct = None
        if not self.has_own_gradient:
            self._differentiate_by(Info(self._no_gradient, None))

    def register_eager(self, execute: Function) -> Function:
        self.eager = execute
        self.repeat = self.direct = None
        return execute

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        self._differentiate_by(Info(backward, setup_context))
        self.has_own_gradient = True

    def _differentiate_by(self, info: Info) -> None:
        self.autograd = make_autograd_impl(self.op, info)
        self.transformed = gradients.under_transforms(self.op, self.schema, info)

    def remove(self) -> None:
        self.forget()
        super().remove()
        self.direct = None

    def forget(self) -> None:
        """Take back what stands for the op in compiled code."""
        EMITTED.pop(self.schema.qualified, None)
        KEEP_OPERANDS.discard(self.schema.qualified)
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
        filled = self.schema.filled(args, keywords)
        inputs = [leaf for leaf in torch_pytree.tree_leaves(filled) if _is_tensor(leaf)]
        results = self._meaning(*filled)
        return torch_pytree.tree_map_only(torch.Tensor, lambda t: _own(t, inputs), results)

    def _launch(self, *args: Any, **keywords: Any) -> Any:
        if self.eager is None:
            return self.launcher(*args, **keywords)
        results = self._executed(self.eager, self.schema.filled(args, keywords))
        return self.launcher(*args, **keywords) if results is NotImplemented else results

    def _executed(self, eager: Function, filled: Sequence[Any]) -> Any:
        """What the function for tensors gives, in memory of its own."""
        results = self.schema.call(eager, filled)
        if results is NotImplemented:
            return results
        taken = {_address(t) for t in torch_pytree.tree_leaves(list(filled)) if _is_tensor(t)}
        conforming = self.schema.conforming(results)
        return torch_pytree.tree_map_only(torch.Tensor, lambda t: _apart(t, taken), conforming)

    def _elsewhere(self, *args: Any, **keywords: Any) -> Any:
        """On devices that are not CPUs, PyTorch runs the function if it is written for that."""
        filled = self.schema.filled(args, keywords)
        if self.eager is not None:
            results = self._executed(self.eager, filled)
            if results is not NotImplemented:
                return results
        if self.has_meaning:
            return self._expanded(*filled)
        devices = {str(t.device) for t in torch_pytree.tree_leaves(filled) if _is_tensor(t)}
        raise errors.CustomOpError(
            f"{self.schema.qualified} was called with tensors on {', '.join(sorted(devices))}",
            hint="its emission runs on the CPU: move the tensors there",
        )

    def _differentiable(self, keyset: Any, *args: Any, **keywords: Any) -> Any:
        transformed = _is_transformed()
        repeat = self.repeat
        if repeat is not None and not transformed:
            result = repeat(args, keywords)
            if result is not None:
                return result
        is_derived = self.has_meaning and not self.has_own_gradient
        if is_derived and (transformed or self._needs_keywords_gradient(keywords)):
            # torch.func's transforms do not take ops with gradients of their own.
            return self._expanded(*args, **keywords)
        if transformed:
            self._check_has_no_tangent([*args, *keywords.values()])
            if torch._C._functorch.maybe_current_level() is not None:
                return self.transformed(keyset, *args, **keywords)
        results = self.autograd(keyset, *args, **keywords)
        self.repeat = None if keywords else self._repeat_of(args)
        return results

    def _needs_keywords_gradient(self, keywords: dict[str, Any]) -> bool:
        """Whether a gradient is wanted that PyTorch does not ask ops for."""
        return self.takes_keyword_tensors and _any_requires_grad(list(keywords.values()))

    def _check_has_no_tangent(self, args: Sequence[Any]) -> None:
        tensors = filter(_is_tensor, torch_pytree.tree_leaves(list(args)))
        if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
            raise errors.CustomOpError(
                f"{self.schema.qualified} has no forward-mode gradient",
                hint="one is derived if the op is a function of PyTorch's ops without a backward",
            )

    def _repeat_of(self, args: tuple[Any, ...]) -> Repeat | None:
        """The call that the launcher remembers, if it was this one."""
        below = self.launcher.repeat
        if below is None or self.eager is not None or torch._C._any_requires_grad(*args):
            return None
        return below.again(args)

    def _batched(self, info: Any, in_dims: Any, *args: Any, **keywords: Any) -> Any:
        return self.batch(info, in_dims, *args, **keywords)

    def _no_gradient(self, ctx: Any, *grads: Any) -> Any:
        raise errors.CustomOpError(
            f"{self.schema.qualified} has no gradient", hint="give it one with register_autograd"
        )


class WritingOp(DeclaredOp):
    """An op that writes to arguments: one that gives their new values does the work."""

    @property
    def core(self) -> PureOp:
        return self.pure

    def _implement(self) -> None:
        computed = partial(self._computed, self.function)
        self.pure = PureOp(self.schema.functional(), computed, self.static)
        for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
            self.library.impl(self.schema.name, self._write, key)

    def register_eager(self, execute: Function) -> Function:
        self.pure.register_eager(partial(self._computed, execute))
        return execute

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        raise errors.CustomOpError(
            f"{self.schema.qualified} writes to arguments, and so has no gradient of its own",
            hint="declare an op that returns what this one writes",
        )

    def remove(self) -> None:
        functional = DECLARED.get(self.schema.functional().qualified)
        if functional is not None:
            functional.remove()
        super().remove()

    def _computed(self, function: Function, *args: Any, **keywords: Any) -> Any:
        """The results of a function on copies of what it writes, and those copies."""
        own = self.schema.with_copies(self.schema.filled(args, keywords))
        results = self.schema.call(function, own)
        if results is NotImplemented:
            return results
        results = self.schema.conforming(results)
        values = (*self.schema.as_tuple(results), *self.schema.written_of(own))
        return values[0] if len(values) == 1 else values

    def _kept(self, filled: Sequence[Any]) -> list[Any]:
        """The arguments; where a gradient may want them later, copies of what is written."""
        if not (torch.is_grad_enabled() and _any_requires_grad(filled)):
            return list(filled)
        return self.schema.with_copies(filled)

    def _reads_what_it_writes(self, filled: Sequence[Any]) -> bool:
        """Whether a tensor that is written shares memory with another argument."""
        tensors = [
            (argument.is_written, leaf)
            for argument, value in zip(self.schema.arguments, filled, strict=True)
            for leaf in torch_pytree.tree_leaves(value)
            if type(leaf) is torch.Tensor and leaf.device.type == "cpu"
        ]
        written = {_address(tensor) for is_written, tensor in tensors if is_written}
        return sum(_address(tensor) in written for _, tensor in tensors) > len(written)

    def _written_in_pytorch(self, filled: Sequence[Any]) -> Any:
        """What the function does step by step, as one that reads what it has written needs."""
        if not self.pure.has_meaning:
            raise errors.CustomOpError(
                f"{self.schema.qualified} writes to an argument that shares memory with another",
                hint="pass a copy of it, tensor.clone()",
            )
        return self.schema.conforming(self.schema.call(self.function, filled))

    def _write(self, *args: Any, **keywords: Any) -> Any:
        filled = self.schema.filled(args, keywords)
        is_plain = not (_is_transformed() or _is_watched())
        if is_plain and self._reads_what_it_writes(filled):
            return self._written_in_pytorch(filled)
        values = self.pure.schema.as_tuple(self.schema.call(self.pure.op, self._kept(filled)))
        count = len(self.schema.results)
        torch_pytree.tree_map(_overwrite, self.schema.written_of(filled), list(values[count:]))
        return values[0] if count == 1 else values[:count] or None


@contextmanager
def _put_back_on_failure(op: DeclaredOp) -> Iterator[None]:
    """Leave the op as it was if what is tried fails."""
    core = op.core
    facts = dict(vars(core))
    rows: list[tuple[dict[Any, Any], Any]] = [
        (EMITTED, core.schema.qualified),
        (MEANINGS, core.op),
        (expand_custom_ops.DECLARED, op.schema.dotted),
    ]
    before = [table.get(key) for table, key in rows]
    kept_operands = core.schema.qualified in KEEP_OPERANDS
    try:
        yield
    except BaseException:
        vars(core).update(facts)
        if kept_operands:
            KEEP_OPERANDS.add(core.schema.qualified)
        for (table, key), value in zip(rows, before, strict=True):
            table.pop(key, None)
            table.update({} if value is None else {key: value})
        raise


def _check(parsed: Schema, function: Function, static: Static) -> None:
    """Refuse a declaration that cannot hold, before anything of it is registered."""
    name = parsed.qualified
    if torch._C._jit_get_schemas_for_operator(name):
        hint = f"call {name.replace('::', '.')}.remove() first, or choose another name"
        raise errors.CustomOpError(
            f"{name} exists already", hint=hint if name in DECLARED else "choose another name"
        )
    names = [argument.name for argument in parsed.arguments]
    for wrong in sorted(set() if callable(static) else set(static) - set(names)):
        raise errors.CustomOpError(f"{name}: static: {errors.unknown('argument', wrong, names)}")
    _check_takes(parsed, function, "function")


def _check_takes(parsed: Schema, function: Function, role: str, *first: str) -> None:
    """Refuse a function that cannot be called with the arguments of a schema."""
    try:
        takes = inspect.signature(function)
    except ValueError:
        return  # a function of C's
    try:
        names = [argument.name for argument in parsed.arguments]
        parsed.call(partial(takes.bind, *first), names)
    except TypeError as error:
        raise errors.CustomOpError(
            f"{parsed.qualified}: its {role} does not take the arguments of its schema: {error}",
            where=emitting.place(function),
            hint=f"the schema is {parsed.text}",
        ) from error


def _declared(name: str) -> DeclaredOp:
    if name not in DECLARED:
        raise errors.CustomOpError(errors.unknown("custom op", name, DECLARED))
    return DECLARED[name]


def _refuse_removed(name: str, *_: Any, **__: Any) -> Any:
    raise errors.CustomOpError(f"{name} was removed")


def _is_watched() -> bool:
    """Whether something is to see every call of an op."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def _is_transformed() -> bool:
    """Whether a call may be part of one of torch.func's transforms, or of forward-mode AD."""
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._functorch.maybe_current_level() is not None


def _any_requires_grad(values: Any) -> bool:
    tensors = filter(_is_tensor, torch_pytree.tree_leaves(values))
    return any(tensor.requires_grad for tensor in tensors)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _own(result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result in memory of its own, in the order of its axes."""
    if result._is_view() or any(result is one for one in inputs):
        return result.clone(memory_format=torch.contiguous_format)
    return result.contiguous()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _apart(result: torch.Tensor, taken: Collection[int]) -> torch.Tensor:
    """A result in none of the memory that is taken, in the order of its axes."""
    if _address(result) in taken:
        return result.clone(memory_format=torch.contiguous_format)
    return result.contiguous()


def _overwrite(old: Any, new: Any) -> None:
    if isinstance(old, torch.Tensor):
        old.copy_(new)
