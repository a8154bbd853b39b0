"""Builders that `CustomOp.generate` emits IR with: argument values in, yielded values out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from iree.compiler.ir import Block, Context, InsertionPoint, Location, Module, SymbolTable, Type
from iree.compiler.ir import Value as IrValue

from turbine import dtypes, errors
from turbine.compat.merger import module_of
from turbine.compat.op_reg.descriptors import ArgDescriptor, IntArg, TensorArg, TensorListArg
from turbine.compat.op_reg.selection import COUNTED, KernelSelection
from turbine.mlir import context as mlir_context
from turbine.mlir import function, scalars, torch_values

_INDEX = dtypes.SCALARS["index"]
_INT64 = dtypes.SCALARS["int64"]
# The value of an argument, the values of a list, None where it is part of the code or not there.
Binding: TypeAlias = Any


class KernelBuilder:
    """Emits IR at the current insertion point; `arg_bindings` has one item per argument."""

    def __init__(
        self,
        ksel: KernelSelection,
        arg_bindings: Sequence[Binding],
        *,
        ip: InsertionPoint,
        module_body: Block,
    ) -> None:
        self.ksel = ksel
        self.arg_bindings = list(arg_bindings)
        self.ip = ip
        self.module_body = module_body
        self.module_op = module_body.owner
        self.context: Context = self.module_op.context
        self.results: list[IrValue | None] | None = None

    @property
    def symbol_table(self) -> SymbolTable:
        """The current symbol table of the module."""
        return SymbolTable(self.module_op.operation)

    @property
    def module(self) -> Module:
        """The module that IR is added to."""
        return module_of(self.module_op)

    @property
    def yielded(self) -> bool:
        """Whether results were yielded."""
        return self.results is not None

    def arg_value(self, index: int) -> Binding:
        """The value of an argument, or the values of a list."""
        count, op = len(self.arg_bindings), self.ksel.op.qualified
        if not -count <= index < count:
            raise errors.CustomOpError(
                f"{op}: argument index {index} is out of range for {count} arguments", hint=COUNTED
            )
        value = self.arg_bindings[index]
        if value is None:
            raise errors.CustomOpError(
                f"{op}: argument {index} has no value in the IR",
                hint="read an attribute from ksel.arg_descs[...].v; an optional tensor may be None",
            )
        return value

    def constant_index(self, i: int) -> IrValue:
        """A constant of type index."""
        return scalars.constant(i, _INDEX, Location.current)

    def yield_results(self, *results: IrValue) -> None:
        """Set the op's results, followed by the new values of tied arguments."""
        if self.yielded:
            raise errors.CustomOpError(
                f"{self.ksel.op.qualified}: results are yielded twice",
                hint="call kb.yield_results(...) once, with all of them",
            )
        self.results = self.ksel.by_place(results)

    def require_results(self) -> list[IrValue | None]:
        """The yielded values; raises if there are none."""
        if self.results is None:
            raise errors.CustomOpError(
                f"{self.ksel.op.qualified}: `generate` yields no results",
                hint="end it with kb.yield_results(...)",
            )
        return self.results


class InlineKernelBuilder(KernelBuilder):
    """Emits IR in place of the op, inside a function."""

    def __init__(self, ksel: KernelSelection, module: Module, values: Sequence[Any]) -> None:
        pairs = zip(ksel.arg_descs, values, strict=True)
        bindings = [_bind(desc, value) for desc, value in pairs]
        super().__init__(ksel, bindings, ip=InsertionPoint.current, module_body=module.body)


class FreeFuncKernelBuilder(KernelBuilder):
    """Emits a function that takes the arguments and returns the yielded values."""

    def __init__(
        self,
        ksel: KernelSelection,
        *,
        module_body: Block,
        func_name: str | None = None,
        is_public: bool = True,
    ) -> None:
        module = module_of(module_body.owner)
        with module.context, Location.unknown():
            given = [desc for desc in (*ksel.result_descs, *ksel.inplace_tied_arg_descs) if desc]
            block = function.define(
                module,
                func_name or ksel.op.name,
                [of for desc in ksel.arg_descs for of in _types(desc)],
                [of for desc in given for of in _types(desc)],
                Location.current,
                visibility="public" if is_public else "private",
            )
        arguments = iter(block.arguments)
        bindings = [_take(desc, arguments) for desc in ksel.arg_descs]
        super().__init__(ksel, bindings, ip=InsertionPoint(block), module_body=module_body)

    @staticmethod
    def create_module(
        ksel: KernelSelection,
        *,
        context: Context | None = None,
        func_name: str | None = None,
        is_public: bool = True,
    ) -> FreeFuncKernelBuilder:
        """A builder for a function in a new module."""
        context = context or mlir_context.new_context()
        module = Module.create(Location.unknown(context))
        return FreeFuncKernelBuilder(
            ksel, module_body=module.body, func_name=func_name, is_public=is_public
        )

    def yield_results(self, *results: IrValue) -> None:
        """Return from the function."""
        super().yield_results(*results)
        values = [value for value in results if value is not None]
        with self.ip, Location.unknown(self.context):
            function.return_values(values, Location.current)


def _bind(desc: ArgDescriptor | None, value: Any) -> Binding:
    """The value cast to its descriptor's type, in which sizes may be dynamic."""
    values = value if isinstance(desc, TensorListArg) else [value]
    return _take(desc, (_convert(one, of) for one, of in zip(values, _types(desc), strict=False)))


def _convert(value: Any, of: Type) -> IrValue:
    if isinstance(value, int):
        return scalars.constant(value, _INT64, Location.current)
    return torch_values.convert(value, of, Location.current)


def _take(desc: ArgDescriptor | None, arguments: Iterator[IrValue]) -> Binding:
    drawn = [next(arguments) for _ in range(desc.ir_arity if desc is not None else 0)]
    if isinstance(desc, TensorListArg):
        return drawn
    return drawn[0] if drawn else None


def _types(desc: ArgDescriptor | None) -> list[Type]:
    if isinstance(desc, TensorListArg):
        return [Type.parse(text) for text in desc.mlir_type_asm]
    return [Type.parse(desc.mlir_type_asm)] if isinstance(desc, (TensorArg, IntArg)) else []
