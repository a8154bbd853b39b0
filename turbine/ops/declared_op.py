"""The base of declared ops: a schema and a function in, a PyTorch op out."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch._library.utils import lookup_op
from torch.fx.operator_schemas import _SCHEMA_TO_SIGNATURE_CACHE

from turbine import errors
from turbine.capture.declared_ops import EMITTED, KEEP_OPERANDS, MEANINGS
from turbine.mlir import context as mlir_context
from turbine.ops import ir_builder, templates
from turbine.ops.expansion import expansion
from turbine.ops.launcher import OpLauncher
from turbine.ops.schema import Schema
from turbine.ops.specialization import Static
from turbine.passes import expand_custom_ops

Function = Callable[..., Any]
DECLARED: dict[str, DeclaredOp] = {}


class Core(Protocol):
    """The op that computes, which writes nothing."""

    schema: Schema
    op: Any
    launcher: OpLauncher
    batch: Function

    def emit_by(self, emit: ir_builder.Emit) -> None:
        """Use an emission for the code from now on."""

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        """Set the op's gradient."""


class DeclaredOp(ABC):
    """A custom op; calling it calls the PyTorch op."""

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
        """Remove the op, as if it had not been declared."""
        DECLARED.pop(self.schema.qualified, None)
        expand_custom_ops.DECLARED.pop(self.schema.dotted, None)
        # PyTorch caches schemas by name, and would use this one for the next op.
        _SCHEMA_TO_SIGNATURE_CACHE.pop((self.schema.qualified, ""), None)
        self.library._destroy()
        # When the library is collected, PyTorch would remove these again, from the next op.
        self.library._op_defs.clear()
        self.library._op_impls.clear()
        self.op = partial(_refuse_removed, self.schema.qualified)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or unpickled model refers to the same op, by name.
        return _find_declared, (self.schema.qualified,)

    @property
    @abstractmethod
    def core(self) -> Core:
        """The op that computes, which writes nothing."""

    @abstractmethod
    def _implement(self) -> None:
        """Register the op's kernels."""

    def register_emission(
        self, emit: ir_builder.Emit, *, keeps_operands: bool = False
    ) -> ir_builder.Emit:
        """Set the op's emission: `emit(builder, *arguments)` returns its results.

        For an op that mutates arguments, their new values follow the results. IREE may run some
        IR, such as `tensor.insert_slice`, in place, so the caller's tensors are copied first,
        unless `keeps_operands` says that the IR never does.
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
        """Set the op's emission by MLIR text: a function of its tensors and sizes, in order.

        With the engine "format" (str.format) or "jinja" it has placeholders, which
        `turbine.ops.templates` describes. It is parsed and checked at once; a text with
        placeholders, for `example` arguments. `function` names the op's function, by default
        the op's name.
        """
        emit = templates.emission(self.schema, text, engine, function)
        if engine is not None and example is None:
            raise errors.CustomOpError(
                f"{self.schema.qualified}: a template with placeholders needs example arguments",
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
        """Set a function for eager calls; if it returns NotImplemented, the op's code is run."""

    @abstractmethod
    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        """Set the op's gradient, as in torch.library.register_autograd."""

    def register_vmap(self, rule: Function) -> Function:
        """Set the op's vmap rule, as in torch.library.register_vmap."""
        self.core.batch = rule
        return rule

    def check(self, *args: Any, **keywords: Any) -> str:
        """Emit the op for example arguments without compiling; returns the IR as text."""
        launcher = self.core.launcher
        return mlir_context.to_text(launcher.lower(self.schema.filled(args, keywords)))


@contextmanager
def _put_back_on_failure(op: DeclaredOp) -> Iterator[None]:
    """Restore the op's emission if the block raises."""
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
    """Raise for an invalid declaration, before anything is registered."""
    name = parsed.qualified
    if torch._C._jit_get_schemas_for_operator(name):
        hint = f"call {name.replace('::', '.')}.remove() first, or choose another name"
        raise errors.CustomOpError(
            f"{name} exists already", hint=hint if name in DECLARED else "choose another name"
        )
    names = [argument.name for argument in parsed.arguments]
    for wrong in sorted(set() if callable(static) else set(static) - set(names)):
        raise errors.CustomOpError(
            f"{name}: static: {errors.unknown('argument', wrong, names)}",
            where=ir_builder.place(function),
        )
    _check_takes(parsed, function, "function")


def _check_takes(parsed: Schema, function: Function, role: str, *first: str) -> None:
    """Raise unless a function takes the arguments of a schema."""
    try:
        takes = inspect.signature(function)
    except ValueError:
        return  # a C function
    try:
        names = [argument.name for argument in parsed.arguments]
        parsed.call(partial(takes.bind, *first), names)
    except TypeError as error:
        raise errors.CustomOpError(
            f"{parsed.qualified}: its {role} does not take the arguments of its schema: {error}",
            where=ir_builder.place(function),
            hint=f"the schema is {parsed.text}",
        ) from error


def _find_declared(name: str) -> DeclaredOp:
    if name not in DECLARED:
        raise errors.CustomOpError(errors.unknown("custom op", name, DECLARED))
    return DECLARED[name]


def _refuse_removed(name: str, *_: Any, **__: Any) -> Any:
    raise errors.CustomOpError(f"{name} was removed", hint="declare it again before it is called")
