"""PyTorch functions that procedures call, captured for the types of each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch.export import Dim
from torch.utils import _pytree as torch_pytree

from turbine import errors, pytree
from turbine.aot import calls, module_trace
from turbine.aot.abstract import dim_range
from turbine.aot.arithmetic import IrScalar
from turbine.aot.declared_sizes import Sizes, declared_sizes
from turbine.aot.globals import snapshot
from turbine.aot.module_trace import Function, Trace
from turbine.aot.values import IrTensor, from_number, from_tensor
from turbine.capture import trees
from turbine.capture.decompositions import extend_aot_decompositions
from turbine.capture.model import capture
from turbine.capture.program import Program
from turbine.capture.weights import bind_weights
from turbine.library.random import STREAM
from turbine.lower import importer
from turbine.signature import Range


@overload
def jittable(
    f: Callable[..., Any],
    *,
    decompose_ops: Iterable[Any] | None = ...,
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = ...,
    dynamic_shapes: Mapping[str, Any] | None = ...,
    function_name: str | None = ...,
    passes: Sequence[str] = ...,
) -> Jittable: ...


@overload
def jittable(
    f: None = None,
    *,
    decompose_ops: Iterable[Any] | None = ...,
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = ...,
    dynamic_shapes: Mapping[str, Any] | None = ...,
    function_name: str | None = ...,
    passes: Sequence[str] = ...,
) -> Callable[[Callable[..., Any]], Jittable]: ...


def jittable(
    f: Callable[..., Any] | None = None,
    *,
    decompose_ops: Iterable[Any] | None = None,
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    dynamic_shapes: Mapping[str, Any] | None = None,
    function_name: str | None = None,
    passes: Sequence[str] = ("functorch_functionalize",),
) -> Jittable | Callable[[Callable[..., Any]], Jittable]:
    """Make a PyTorch function callable in procedures; elsewhere it runs in PyTorch.

    Args:
        f: a function of tensors; without it, `jittable(...)` is a decorator.
        decompose_ops: ops to decompose by PyTorch's rules.
        decomposition_table: ops to decompose, with functions to use in their place.
        dynamic_shapes: ranges and equalities of dynamic sizes by parameter, as for torch.export;
            calls are checked for them. Sizes unknown at a call are dynamic in any case.
        function_name: the name of the function in the IR.
        passes: accepts only "functorch_functionalize", which always runs.

    >>> import torch
    >>> from turbine import aot
    >>> class Double(aot.CompiledModule):
    ...     def run(self, x=aot.AbstractTensor(2)):
    ...         return self._double(x)
    ...     @aot.jittable
    ...     def _double(x):
    ...         return 2 * x
    >>> aot.export(Double).compile().run(torch.ones(2))
    tensor([2., 2.])
    """
    for name in passes:
        if name not in _PASSES:
            raise errors.ProcedureError(
                errors.unknown("pass of a jittable", name, _PASSES),
                hint="leave passes= out: ops in place are made functional in any case",
            )
    rules = dict(decomposition_table or {})
    ops = tuple(decompose_ops or ())

    def wrap(function: Callable[..., Any]) -> Jittable:
        named = function_name or _name(function)
        return Jittable(function, named, ops, rules, dict(dynamic_shapes or {}))

    return wrap if f is None else wrap(f)


_PASSES = ("functorch_functionalize",)


def _name(function: Any) -> str:
    named = isinstance(function, type) or hasattr(function, "__name__")
    name = str(function.__name__) if named else type(function).__name__
    return name if name.isidentifier() else "function"


@dataclass(frozen=True, eq=False)
class Jittable:
    """A function of tensors that procedures can call."""

    function: Callable[..., Any]
    name: str
    decompose_ops: tuple[Any, ...] = ()
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None
    dynamic_shapes: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = module_trace.current()
        if trace is None:
            return self.function(*args, **kwargs)
        nested = snapshot((args, kwargs))
        leaves, spec = torch_pytree.tree_flatten(nested)
        arguments = [_value(leaf) for leaf in leaves]
        places = zip(pytree.paths(trees.from_spec(spec), self.name), arguments, strict=True)
        tensors = {place: argument for place, argument in places if isinstance(argument, IrTensor)}
        binds = trace.quantizer is not None
        key = (self, str(spec), tuple(_type(argument, binds) for argument in arguments))
        if key not in trace.functions:
            with self._name_errors():
                dims = declared_sizes(self.function, self.dynamic_shapes, *nested)
            call = _Call(self.function, arguments, spec, dims)
            trace.functions[key] = self._define(trace, call, tensors)
        function = trace.functions[key]
        return calls.call(function, [tensors[given.name] for given in function.signature.inputs])

    def _define(self, trace: Trace, call: _Call, tensors: Mapping[str, IrTensor]) -> Function:
        program = self._capture(call, trace)
        named = zip(program.signature.inputs, tensors, strict=True)
        inputs = tuple(replace(spec, name=place) for spec, place in named)
        program = replace(program, signature=replace(program.signature, inputs=inputs))
        if trace.quantizer is not None:
            program = bind_weights(program, {p: t.weight for p, t in tensors.items() if t.weight})
        name = trace.unique(self.name, f"the jittable {self.name}")
        types = importer.define_function(
            trace.weights,
            name,
            trace.adopt(program, name),
            trace.target,
            visibility="private",
            callable_inside=True,
        )
        return Function(name, program.signature, *types)

    def _capture(self, call: _Call, trace: Trace) -> Program:
        given = zip(call.arguments, call.sizes, strict=True)
        tensors = [(argument, dims) for argument, dims in given if isinstance(argument, IrTensor)]
        examples, shapes = _examples(tensors, trace)
        with ExitStack() as stack:
            stack.enter_context(self._name_errors())
            if self.decompose_ops:
                stack.enter_context(extend_aot_decompositions(add_ops=self.decompose_ops))
            if self.decomposition_table:
                rules = dict(self.decomposition_table)
                stack.enter_context(extend_aot_decompositions(add_ops=rules))
            sizes = (shapes,) if shapes else None
            return capture(call, examples, dynamic_shapes=sizes, least_sizes=False, stream=STREAM)

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        """Add the function and the line of the call to errors of PyTorch."""
        try:
            yield
        except errors.ExportError as error:
            fact = error.fact.replace(_Call.__name__, "it")
            raise errors.ProcedureError(
                f"jittable {self.name!r}: {fact}", where=module_trace.line(), hint=error.hint
            ) from error


class _Call(torch.nn.Module):
    """A call of a function, as a module of its tensor arguments."""

    def __init__(
        self, function: Any, arguments: Sequence[Any], spec: Any, sizes: Sequence[Sizes]
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.function = function
        self.arguments = list(arguments)
        self.spec = spec
        # Buffers of a module may be written if PyTorch finds it among the modules of this one.
        for name, module in _find_closure_modules(function).items():
            self.add_module(name if name not in dir(self) else f"{name}_", module)

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(a, IrTensor) else a for a in self.arguments]
        args, kwargs = torch_pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def _find_closure_modules(function: Any) -> dict[str, torch.nn.Module]:
    """The modules that a function uses without taking them, by the names it has for them."""
    if not inspect.isfunction(function):
        return {}
    outside = inspect.getclosurevars(function)
    named = {**outside.globals, **outside.nonlocals}
    return {name: value for name, value in named.items() if isinstance(value, torch.nn.Module)}


def _value(leaf: Any) -> Any:
    """A leaf as it is captured: tensors and numbers are inputs, other values are constants."""
    if isinstance(leaf, IrScalar):
        return from_number(leaf)
    return from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _type(argument: Any, binds: bool) -> Any:
    """The part of a captured function's key for one argument; `binds` if it binds weights."""
    if isinstance(argument, IrTensor):
        weight = argument.weight if binds else None
        return argument.row, argument.shape, None if weight is None else weight.name
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return type(argument), repr(argument)
    return _Same(argument)


class _Same:
    """A key for an object by identity; it keeps the object alive, so its id stays unique."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _examples(
    tensors: Sequence[tuple[IrTensor, Sizes]], trace: Trace
) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Tensors to trace with, and which of their sizes PyTorch is to keep open.

    Unknown sizes are alike, and unlike all that are known: those that have to agree then do in the
    trace, which says so, and a call is checked for it.
    """
    known = {size for tensor, _ in tensors for size in tensor.shape if isinstance(size, int)}
    usual = next(size for size in range(_USUAL, _USUAL + len(known) + 1) if size not in known)
    examples, shapes = [], []
    for tensor, dims in tensors:
        sizes = [
            _within(_limits(dims.get(axis), trace.limits.get(str(size))), usual, size)
            for axis, size in enumerate(tensor.shape)
        ]
        examples.append(torch.zeros(sizes, dtype=tensor.dtype))
        unknown = [axis for axis, size in enumerate(tensor.shape) if not isinstance(size, int)]
        shapes.append({axis: dims.get(axis, Dim.AUTO) for axis in unknown})
    return tuple(examples), tuple(shapes)


_USUAL = 11


def _limits(dim: Dim | None, of_caller: Range | None) -> Range | None:
    return of_caller if dim is None else dim_range(dim)


def _within(limits: Range | None, usual: int, size: int | str | None) -> int:
    if isinstance(size, int):
        return size
    if limits is None:
        return usual
    return max(limits.minimum, min(usual, usual if limits.maximum is None else limits.maximum))
