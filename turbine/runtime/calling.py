"""From a Python call to a compiled one: check arguments, share memory, nest the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import iree.runtime as iree
import numpy

from turbine import dims, dtypes, errors, pytree
from turbine.dtypes import Dtype
from turbine.runtime import numpy_buffers
from turbine.runtime.executable import Executable
from turbine.signature import Input, Output, Signature

Span = tuple[int, int]


class Caller:
    """Calls one executable as its signature says. What can be worked out once, is."""

    def __init__(
        self, signature: Signature, executable: Executable, code_and_weights: Span
    ) -> None:
        self.signature = signature
        self.executable = executable
        self.fixed_span = code_and_weights
        self.flat_count = _flat_count(signature)
        self.inputs = [(spec, _row(spec), _static_shape(spec)) for spec in signature.inputs]
        self.returned = [(o, _row(o)) for o in signature.outputs if o.kind in ("tensor", "scalar")]
        self.mutated = [(k, self.inputs[k][1]) for k, i in enumerate(signature.inputs) if i.mutated]
        self.result_count = len(self.returned) + len(self.mutated)
        self.single = signature.out_tree == pytree.LEAF and len(self.returned) == 1

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves: Sequence[Any] = args
        if kwargs or len(args) != self.flat_count:
            leaves = self.signature.leaves(args, kwargs)
        library = _library(leaves)
        symbols: dict[str, int] = {}
        taken: list[Span] = [self.fixed_span]
        arguments = self._arguments(leaves, symbols, taken)
        results = self.executable.invoke(arguments, self.result_count)
        values = [
            self._result(library, results, k, output, row, taken)
            for k, (output, row) in enumerate(self.returned)
        ]
        if self.mutated:
            self._write_back(library, leaves, results)
        if self.single:
            return values[0]
        return pytree.unflatten(self.signature.out_tree, self._leaves_out(values, symbols))

    def _arguments(
        self, leaves: Sequence[Any], symbols: dict[str, int], taken: list[Span]
    ) -> list[Any]:
        arguments = []
        for (spec, row, shape), leaf in zip(self.inputs, leaves, strict=True):
            if row is None:
                arguments += _scalar(spec, leaf, symbols)
                continue
            library = _library_of(leaf)
            if library is None:
                raise _refusal(spec, f"is a {type(leaf).__name__}, expected a tensor")
            reason = library.problem(leaf, row)
            if reason is not None:
                raise _refusal(spec, reason)
            if leaf.shape != shape:
                _bind_shape(spec, tuple(leaf.shape), symbols)
            taken.append(library.span(leaf))
            arguments.append(library.to_view(self.executable.device, leaf, row))
        if symbols:
            self._check_symbols(leaves, symbols)
        return arguments

    def _check_symbols(self, leaves: Sequence[Any], symbols: dict[str, int]) -> None:
        """Ranges, and sizes that are computed from others."""
        for name, limits in self.signature.symbols.items():
            size = symbols.get(name)
            too_large = size is not None and limits.maximum is not None and size > limits.maximum
            if size is not None and (size < limits.minimum or too_large):
                raise errors.ArgumentError(
                    f"size {name}={size} is out of range: "
                    f"minimum={limits.minimum} maximum={limits.maximum}",
                    where=_places(self.signature, name),
                    hint="export with dynamic_shapes that allow this size",
                )
        for (spec, row, _), leaf in zip(self.inputs, leaves, strict=True):
            if row is None:
                continue
            for axis, dim in enumerate(spec.shape):
                expected = dims.evaluate(dim, symbols)
                if expected is not None and expected != leaf.shape[axis]:
                    raise _refusal(
                        spec,
                        f"has size {leaf.shape[axis]} along axis {axis}, expected {dim} = {expected}",
                    )

    def _result(
        self,
        library: ModuleType,
        results: Any,
        index: int,
        output: Output,
        row: Dtype | None,
        taken: list[Span],
    ) -> Any:
        if row is None or output.kind == "scalar":
            return _SCALARS[output.dtype](results.get_variant(index))
        view = results.get_as_object(index, iree.HalBufferView)
        value = library.from_view(self.executable.device, view, row)
        span = library.span(value)
        # IREE may hand back an argument's memory, a weight's, or one buffer twice.
        for start, end in taken:
            if start <= span[0] < end:
                return library.copy(value)
        taken.append(span)
        return value

    def _write_back(self, library: ModuleType, leaves: Sequence[Any], results: Any) -> None:
        for k, (index, row) in enumerate(self.mutated, start=len(self.returned)):
            view = results.get_as_object(k, iree.HalBufferView)
            assert row is not None
            target = _library_of(leaves[index])
            assert target is not None
            target.write(leaves[index], target.from_view(self.executable.device, view, row))

    def _leaves_out(self, values: list[Any], symbols: dict[str, int]) -> list[Any]:
        returned = iter(values)
        return [
            next(returned)
            if output.kind in ("tensor", "scalar")
            else output.value
            if output.kind == "constant"
            else dims.evaluate(output.value, symbols)
            for output in self.signature.outputs
        ]


_SCALARS: dict[str, type] = {"int64": int, "float64": float, "bool": bool}


def _library(leaves: Sequence[Any]) -> ModuleType:
    """What results are made of: torch if any argument is, or if nothing says otherwise."""
    kinds = {_library_of(leaf) for leaf in leaves}
    if numpy_buffers in kinds and len(kinds - {None}) == 1:
        return numpy_buffers
    return _torch_buffers() if "torch" in sys.modules else numpy_buffers


def _library_of(leaf: Any) -> ModuleType | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        return _torch_buffers()
    return numpy_buffers if isinstance(leaf, numpy.ndarray) else None


def _torch_buffers() -> ModuleType:
    from turbine.runtime import torch_buffers

    return torch_buffers


def _flat_count(signature: Signature) -> int:
    """How many positional arguments make a call that needs no flattening; -1 for none."""
    positional, keywords = signature.in_tree.children
    flat = not keywords.children and all(c == pytree.LEAF for c in positional.children)
    return len(positional.children) if flat else -1


def _row(leaf: Input | Output) -> Dtype | None:
    return dtypes.named(leaf.dtype) if leaf.kind == "tensor" else None


def _static_shape(spec: Input) -> tuple[int, ...] | None:
    return tuple(d for d in spec.shape if isinstance(d, int)) if _is_static(spec) else None


def _is_static(spec: Input) -> bool:
    return all(isinstance(d, int) for d in spec.shape)


def _bind_shape(spec: Input, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    """Check the fixed sizes and learn the symbols of one tensor."""
    if len(shape) != len(spec.shape):
        raise _refusal(spec, f"has {len(shape)} dims {shape}, expected {len(spec.shape)}")
    for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise _refusal(spec, f"has size {size} along axis {axis}, expected {dim}")
        if dims.is_symbol(dim):
            symbols.setdefault(str(dim), size)


def _scalar(spec: Input, leaf: Any, symbols: dict[str, int]) -> list[int]:
    """A run-time int is passed on; a constant only has to be the one the model was traced with."""
    if spec.kind == "int":
        if not isinstance(leaf, int):
            raise _refusal(spec, f"is a {type(leaf).__name__}, expected an int")
        symbols[str(spec.value)] = leaf
        return [leaf]
    if type(leaf) is not type(spec.value) or leaf != spec.value:
        raise _refusal(spec, f"is {leaf!r}, but the model was exported with {spec.value!r}")
    return []


def _refusal(spec: Input, reason: str) -> errors.ArgumentError:
    expected = f"{spec.dtype}[{', '.join(map(str, spec.shape))}]" if spec.kind == "tensor" else None
    hint = f"the program takes {spec.name}: {expected}" if expected is not None else None
    return errors.ArgumentError(f"argument {spec.name!r} {reason}", hint=hint)


def _places(signature: Signature, symbol: str) -> str:
    used = [
        f"axis {axis} of {spec.name!r}"
        for spec in signature.inputs
        for axis, dim in enumerate(spec.shape)
        if symbol in dims.names(dim)
    ]
    return ", ".join(used)
