"""Trace procedures: a Python function in, a function of the module and its signature out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as torch_pytree

from turbine import dtypes, errors, pytree
from turbine.aot import calls, module_trace
from turbine.aot.abstract import AbstractScalar, AbstractTensor, abstractify, is_abstract
from turbine.aot.arithmetic import IrScalar
from turbine.aot.globals import snapshot
from turbine.aot.module_trace import Function, Trace
from turbine.aot.values import IrTensor, from_tensor, tensor_type
from turbine.capture import trees
from turbine.capture.model import capture
from turbine.capture.program import Devices, check_devices
from turbine.library.random import STREAM
from turbine.lower import importer
from turbine.mlir import function as mlir_function
from turbine.mlir.ir import InsertionPoint, Location, Type, Value
from turbine.pytree import Tree
from turbine.signature import Input, Output, Range, Signature

PUBLIC, PRIVATE = "public", "private"


class Procedure:
    """A function of a compiled module's class; other procedures call it as a method."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        owner: str,
        devices: Devices | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.owner = owner
        self.devices = devices

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else partial(self._call, instance)

    def _call(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        trace = module_trace.require(f"the procedure {self.name!r}")
        function = self.define(trace, instance)
        try:
            args, kwargs = snapshot((args, kwargs))
            leaves = function.signature.leaves(args, kwargs)
        except errors.ArgumentError as error:
            raise errors.ProcedureError(
                f"a call of {self.name!r}: {error.fact}", where=module_trace.line(), hint=error.hint
            ) from error
        return calls.call(function, leaves)

    def define(self, trace: Trace, instance: Any) -> Function:
        """The function of the module, traced on first use."""
        if self not in trace.functions:
            if self in trace.in_progress:
                names = [procedure.name for procedure in trace.in_progress]
                raise errors.ProcedureError(
                    f"infinite recursion of procedures: {' -> '.join([*names, self.name])}",
                    where=module_trace.line(),
                )
            trace.in_progress.append(self)
            trace.functions[self] = self._trace(trace, instance)
            trace.in_progress.pop()
        return trace.functions[self]

    def _trace(self, trace: Trace, instance: Any) -> Function:
        # A procedure that a subclass overrides is reached only through super().
        is_replaced = inspect.getattr_static(type(instance), self.name) is not self
        name = f"{self.owner}.{self.name}" if is_replaced else self.name
        trace.claim(name, f"the procedure {self.owner}.{self.name}")
        taken = _Parameters(self)
        location = _location(self.function)
        block = mlir_function.define(
            trace.weights.module,
            name,
            taken.types,
            [],
            location,
            visibility=PRIVATE if is_replaced else PUBLIC,
        )
        importer.place_arguments(block, check_devices(self.devices, len(taken.types)))
        with InsertionPoint(block), trace.sizes_within(taken.symbols):
            args, kwargs = taken.unflatten(list(block.arguments))
            result = self._run(instance, args, kwargs)
            values, outputs, out_tree = self._results(result)
            types = [value.type for value in values]
            mlir_function.set_results(block, types)
            mlir_function.return_values(values, location)
            conditions = tuple(dict.fromkeys(trace.conditions))
        signature = Signature(
            tuple(taken.inputs),
            outputs,
            taken.tree,
            out_tree,
            taken.symbols,
            taken.positional,
            conditions,
        )
        return Function(name, signature, taken.types, types)

    def _run(self, instance: Any, args: Any, kwargs: Any) -> Any:
        """Run the Python function; errors name the procedure and the user's line."""
        try:
            return self.function(instance, *args, **kwargs)
        except errors.ProcedureError as error:
            if error.where is not None:
                raise
            raise self._failure(error.fact, error, error.hint) from error
        except errors.TurbineError as error:
            raise self._failure(error.fact, error, error.hint) from error
        except Exception as error:
            hint = "jittables compute with tensors" if isinstance(error, TypeError) else None
            raise self._failure(f"{type(error).__name__}: {error}", error, hint) from error

    def _failure(self, fact: str, error: Exception, hint: str | None) -> errors.ProcedureError:
        return errors.ProcedureError(
            f"procedure {self.name!r} failed: {fact}", where=module_trace.line_of(error), hint=hint
        )

    def _results(self, result: Any) -> tuple[list[Value], tuple[Output, ...], Tree]:
        leaves, spec = torch_pytree.tree_flatten(snapshot(result))
        values, outputs = [], []
        for leaf in leaves:
            output, value = self._result(leaf)
            outputs.append(output)
            values += [] if value is None else [value]
        return values, tuple(outputs), trees.from_spec(spec)

    def _result(self, leaf: Any) -> tuple[Output, Value | None]:
        given = from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf
        if isinstance(given, IrScalar):
            return Output("scalar", given.scalar.name), given.value
        if isinstance(given, IrTensor):
            shape = tuple("?" if size is None else size for size in given.shape)
            return Output("tensor", given.row.name, shape), given.value
        if given is None or isinstance(given, (bool, int, float, str)):
            return Output("constant", value=given), None
        raise errors.ProcedureError(
            f"procedure {self.name!r} returns a {type(given).__name__}, an unsupported type",
            where=_line(self.function),
            hint="return tensors and numbers of the program, plain numbers, or pytrees of these",
        )


class _Parameters:
    """The arguments of a procedure: leaves for the signature and the IR."""

    def __init__(self, procedure: Procedure) -> None:
        self.symbols: dict[str, Range] = {}
        self.inputs: list[Input] = []
        self.types: list[Type] = []
        abstract: dict[str, dict[str, Any]] = {"args": {}, "kwargs": {}}
        for parameter in _parameters(procedure):
            place = "kwargs" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else "args"
            abstract[place][parameter.name] = _abstract(procedure, parameter)
        self._given = _named_sizes(abstract)
        self.positional = tuple(abstract["args"])
        positional = tuple(self._add(*item) for item in abstract["args"].items())
        keywords = tuple(self._add(*item) for item in abstract["kwargs"].items())
        named = Tree("dict", keywords, tuple(abstract["kwargs"]))
        self.tree = Tree("tuple", (Tree("tuple", positional), named))

    def unflatten(self, values: list[Value]) -> tuple[Any, Any]:
        """The (args, kwargs) to run the Python function with."""
        leaves = [_bind(spec, value) for spec, value in zip(self.inputs, values, strict=True)]
        args, kwargs = pytree.unflatten(self.tree, leaves)
        return args, kwargs

    def _add(self, name: str, abstract: Any) -> Tree:
        leaves, spec = torch_pytree.tree_flatten(abstract)
        tree = trees.from_spec(spec)
        for path, leaf in zip(pytree.paths(tree, name), leaves, strict=True):
            if isinstance(leaf, AbstractScalar):
                self.inputs.append(Input(path, "scalar", leaf.scalar.name))
                self.types.append(Type.parse(leaf.scalar.mlir))
                continue
            row, shape = dtypes.of_torch(leaf.dtype), self._shape(path, leaf)
            self.inputs.append(Input(path, "tensor", row.name, shape))
            self.types.append(tensor_type(shape, row))
        return tree

    def _shape(self, path: str, leaf: AbstractTensor) -> tuple[int | str, ...]:
        """Sizes, with a symbol for each dynamic one."""
        stem = re.sub(r"\W+", "_", path).strip("_")
        shape = tuple(
            self._unique(f"{stem}_{axis}") if size is None else size
            for axis, size in enumerate(leaf.size)
        )
        for size in shape:
            if isinstance(size, str):
                self.symbols.setdefault(size, leaf.limits.get(size, Range(0, None)))
        return shape

    def _unique(self, name: str) -> str:
        """A unique symbol for a size."""
        while name in self.symbols or name in self._given:
            name += "_"
        return name


def _named_sizes(abstract: Any) -> set[str]:
    leaves = torch_pytree.tree_leaves(abstract)
    tensors = [leaf for leaf in leaves if isinstance(leaf, AbstractTensor)]
    return {size for tensor in tensors for size in tensor.size if isinstance(size, str)}


def _bind(spec: Input, value: Value) -> IrTensor | IrScalar:
    if spec.kind == "scalar":
        return IrScalar(value, dtypes.SCALARS[spec.dtype])
    return IrTensor(value, spec.shape, dtypes.from_torch_name(spec.dtype))


def _parameters(procedure: Procedure) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(procedure.function).parameters.values())
    if not parameters:
        raise errors.ProcedureError(
            f"procedure {procedure.name!r} takes no self",
            where=_line(procedure.function),
            hint=f"write def {procedure.name}(self, ...)",
        )
    return parameters[1:]


def _abstract(procedure: Procedure, parameter: inspect.Parameter) -> Any:
    """The type of a parameter, from its default or annotation."""
    said = [parameter.default, parameter.annotation]
    known = [value for value in said if value is not inspect.Parameter.empty and is_abstract(value)]
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if not known or parameter.kind in open_ended:
        raise errors.ProcedureError(
            f"nothing is known of the parameter {parameter.name!r} of procedure {procedure.name!r}",
            where=_line(procedure.function),
            hint=f"write {parameter.name}=aot.AbstractTensor(None, 8), or an example value",
        )
    return abstractify(known[0])


def _line(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _location(function: Callable[..., Any]) -> Location:
    code = inspect.unwrap(function).__code__
    return Location.file(code.co_filename, code.co_firstlineno, 0)


class ProgramMember:
    """An exported program of a compiled module's class; procedures call it as a method."""

    def __init__(
        self,
        exported: ExportedProgram,
        name: str,
        owner: str,
        devices: Devices | None = None,
    ) -> None:
        self.exported = exported
        self.name = name
        self.owner = owner
        self.devices = devices

    @property
    def is_public(self) -> bool:
        """Whether the artifact has it as an entry point."""
        return not self.name.startswith("_")

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._call

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        function = self.define(module_trace.require(f"the program {self.name!r}"))
        args, kwargs = snapshot((args, kwargs))
        args = _nest_list(function.signature, args)
        return calls.call(function, function.signature.leaves(args, kwargs))

    def define(self, trace: Trace) -> Function:
        """The function of the module, lowered on first use."""
        if self not in trace.functions:
            trace.claim(self.name, f"the program {self.owner}.{self.name}")
            program = trace.adopt(
                capture(self.exported, arg_device=self.devices, stream=STREAM), self.name
            )
            types = importer.define_function(
                trace.weights,
                self.name,
                program,
                trace.target,
                visibility=PUBLIC if self.is_public else PRIVATE,
                callable_inside=True,
                shape_expressions=trace.shape_expressions,
            )
            trace.functions[self] = Function(self.name, program.signature, *types)
        return trace.functions[self]


def _nest_list(signature: Signature, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The positional arguments; the elements of a program's only list may be passed flat."""
    positional = signature.in_tree.children[0].children
    if len(positional) != 1 or positional[0].kind != "list":
        return args
    is_nested = len(args) == 1 and isinstance(args[0], (list, tuple))
    return args if is_nested or len(args) != len(positional[0].children) else (list(args),)
