"""What every declared op has: a schema and a function in, a PyTorch op out."""

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
from turbine.ops.launcher import Launcher
from turbine.ops.schema import Schema
from turbine.ops.specialization import Static
from turbine.passes import expand_custom_ops

Function = Callable[..., Any]
DECLARED: dict[str, DeclaredOp] = {}


class Core(Protocol):
    """The op that computes, which writes nothing."""

    schema: Schema
    op: Any
    launcher: Launcher
    batch: Function

    def emit_by(self, emit: ir_builder.Emit) -> None:
        """Take the emission for the code from now on."""

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        """Give the op a gradient."""


class DeclaredOp(ABC):
    """An op that was declared; calling it calls the PyTorch op."""

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
        return _find_declared, (self.schema.qualified,)

    @property
    @abstractmethod
    def core(self) -> Core:
        """The op that computes, which writes nothing."""

    @abstractmethod
    def _implement(self) -> None:
        """Give the op its kernels."""

    def register_emission(
        self, emit: ir_builder.Emit, *, keeps_operands: bool = False
    ) -> ir_builder.Emit:
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
        return mlir_context.to_text(launcher.lower(self.schema.filled(args, keywords)))


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
        raise errors.CustomOpError(
            f"{name}: static: {errors.unknown('argument', wrong, names)}",
            where=ir_builder.place(function),
        )
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
            where=ir_builder.place(function),
            hint=f"the schema is {parsed.text}",
        ) from error


def _find_declared(name: str) -> DeclaredOp:
    if name not in DECLARED:
        raise errors.CustomOpError(errors.unknown("custom op", name, DECLARED))
    return DECLARED[name]


def _refuse_removed(name: str, *_: Any, **__: Any) -> Any:
    raise errors.CustomOpError(f"{name} was removed", hint="declare it again before it is called")
