"""Call a function of the module from a procedure: check and convert values, nest the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turbine import dims, dtypes, errors, pytree
from turbine.aot import module_trace
from turbine.aot.arithmetic import INT64, IrScalar, as_scalar, check
from turbine.aot.module_trace import Function
from turbine.aot.values import IrTensor, from_tensor, type_text, without_names
from turbine.dtypes import Dtype, Scalar
from turbine.mlir import function as mlir_function
from turbine.mlir.ir import Value
from turbine.signature import Input, Output, Signature

# A size: known now, or at run time.
Size = int | IrScalar


def call(function: Function, leaves: Sequence[Any]) -> Any:
    """Call a function with the leaves of its arguments; returns its results, nested."""
    signature = function.signature
    arguments = [_argument(spec, leaf) for spec, leaf in zip(signature.inputs, leaves, strict=True)]
    sizes = _check_sizes(signature, arguments)
    values = [
        _cast_to_parameter(spec, argument, sizes).value
        for spec, argument in zip(signature.inputs, arguments, strict=True)
        if spec.kind != "constant"
    ]
    results = mlir_function.call(function.name, values, function.result_types, module_trace.here())
    named = _names(signature, arguments)
    given = [_result(output, value, named) for output, value in _zip_results(signature, results)]
    written = results[len(given) :]
    _write_back(signature, arguments, written)
    return pytree.unflatten(signature.out_tree, signature.result_leaves(given, sizes))


def as_tensor(leaf: Any, row: Dtype, shape: Sequence[int | str | None], what: str) -> IrTensor:
    """A value as a tensor of a dtype and rank; static sizes are checked."""
    tensor = from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf
    expected = type_text(row, tuple(shape))
    if not isinstance(tensor, IrTensor):
        raise _refusal(what, f"is a {type(leaf).__name__}, expected a {expected}")
    fits = tensor.row == row and tensor.rank == len(shape)
    pairs = zip(tensor.shape, shape, strict=False)
    known = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    if not (fits and known):
        raise _refusal(what, f"is a {tensor.text()}, expected a {expected}")
    return tensor


def as_number(leaf: Any, scalar: Scalar, what: str) -> IrScalar:
    """A value as a number of a type; Python ints are accepted for floats."""
    if isinstance(leaf, IrScalar) and leaf.scalar == scalar:
        return leaf
    fits = type(leaf) is scalar.python or (type(leaf) is int and scalar.python is float)
    if not fits:
        kind = leaf.scalar.name if isinstance(leaf, IrScalar) else type(leaf).__name__
        raise _refusal(what, f"is a {kind}, expected a {scalar.name}")
    return as_scalar(leaf, scalar)


def require_size(tensor: IrTensor, axis: int, expected: Size, what: str) -> None:
    """Check a size, now or at run time."""
    actual = tensor.size(axis)
    if isinstance(actual, int) and isinstance(expected, int):
        if actual != expected:
            raise _refusal(what, f"has size {actual} along axis {axis}, expected {expected}")
        return
    known = tensor.shape[axis]
    if isinstance(known, str) and isinstance(expected, int):
        # IREE would raise first, with a message of its own.
        module_trace.require("a size").conditions.append(f"Eq({known}, {expected})")
    wanted = f", expected {expected}" if isinstance(expected, int) else ""
    check(_scalar(actual) == expected, f"{what} has another size along axis {axis}{wanted}")


def _refusal(what: str, reason: str) -> errors.ProcedureError:
    return errors.ProcedureError(f"{what} {reason}", where=module_trace.line())


def _scalar(size: Size) -> IrScalar:
    return size if isinstance(size, IrScalar) else as_scalar(size, dtypes.SCALARS["index"])


def _argument(spec: Input, leaf: Any) -> Any:
    what = f"argument {spec.name!r}"
    if spec.kind == "tensor":
        return as_tensor(leaf, dtypes.from_torch_name(spec.dtype), _name_sizes(spec.shape), what)
    if spec.kind == "scalar":
        return as_number(leaf, dtypes.SCALARS[spec.dtype], what)
    if spec.kind == "int":
        return as_scalar(leaf, INT64) if isinstance(leaf, (int, IrScalar)) else leaf
    if repr(leaf) != repr(spec.value):
        raise _refusal(what, f"is {leaf!r}, but was {spec.value!r} when the program was captured")
    return leaf


def _name_sizes(shape: tuple[Any, ...]) -> list[int | str | None]:
    return [size if isinstance(size, int) else str(size) for size in shape]


def _cast_to_parameter(spec: Input, argument: Any, sizes: dict[str, Size]) -> Any:
    """A tensor cast to the parameter's type, after its sizes were checked."""
    if spec.kind != "tensor":
        return argument
    assert isinstance(argument, IrTensor)
    return argument.as_type(without_names(spec.shape))


def _check_sizes(signature: Signature, arguments: Sequence[Any]) -> dict[str, Size]:
    """Check every size, now or at run time; returns the values of the signature's symbols."""
    sizes: dict[str, Size] = {}
    names: dict[str, Any] = {}
    for spec, argument in zip(signature.inputs, arguments, strict=True):
        if spec.kind == "int":
            sizes[str(spec.value)] = argument
    later = []
    for spec, argument in zip(signature.inputs, arguments, strict=True):
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and dims.is_symbol(dim) and dim not in sizes:
                sizes[dim] = argument.size(axis)
                names[dim] = argument.shape[axis]
            else:
                later.append((spec, argument, axis, dim))
    for spec, argument, axis, dim in later:
        known = names.get(str(dim))
        if known is not None and known == argument.shape[axis]:
            continue
        expected: Any = dims.evaluate(dim, sizes)  # type: ignore[arg-type]
        if expected is not None:
            require_size(argument, axis, expected, f"argument {spec.name!r}")
    _check_limits(signature, sizes, names)
    return sizes


def _check_limits(signature: Signature, sizes: dict[str, Size], names: dict[str, Any]) -> None:
    """Check conditions and ranges of sizes, except ranges that the caller's size also has."""
    trace = module_trace.require("a call")
    places = _places(signature)
    for name, limits in signature.symbols.items():
        size = sizes.get(name)
        if size is None or trace.limits.get(str(names.get(name))) == limits:
            continue
        place = places.get(name, f"size {name}")
        if limits.minimum > 0:
            if isinstance(names.get(name), str):
                trace.conditions.append(f"{names[name]} >= {limits.minimum}")
            _require(size >= limits.minimum, f"{place} is under {limits.minimum}")
        if limits.maximum is not None:
            _require(size <= limits.maximum, f"{place} is over {limits.maximum}")
    for condition in signature.conditions:
        if all(isinstance(names.get(name), str) for name in dims.names(condition)):
            trace.conditions.append(dims.readable(condition, names))
        _require(dims.holds(condition, sizes), f"sizes do not meet {condition}")  # type: ignore[arg-type]


def _places(signature: Signature) -> dict[str, str]:
    """For each symbol, the axis that has it, for messages."""
    return {
        dim: f"the size of argument {spec.name!r} along axis {axis}"
        for spec in reversed(signature.inputs)
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    }


def _require(condition: bool | IrScalar, message: str) -> None:
    if isinstance(condition, IrScalar):
        check(condition, message)
    elif not condition:
        raise errors.ProcedureError(message, where=module_trace.line())


def _names(signature: Signature, arguments: Sequence[Any]) -> dict[str, Any]:
    """The sizes or symbols of the caller for the symbols of a callee."""
    return {
        str(dim): argument.shape[axis]
        for spec, argument in zip(signature.inputs, arguments, strict=True)
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str) and dims.is_symbol(dim)
    }


def _zip_results(signature: Signature, results: Sequence[Value]) -> list[tuple[Output, Value]]:
    outputs = [output for output in signature.outputs if output.kind in ("tensor", "scalar")]
    return list(zip(outputs, results, strict=False))


def _result(output: Output, value: Value, names: dict[str, Any]) -> IrTensor | IrScalar:
    if output.kind == "scalar":
        return IrScalar(value, dtypes.SCALARS[output.dtype])
    row = dtypes.from_torch_name(output.dtype)
    known = tuple(size if isinstance(size, int) else names.get(size) for size in output.shape)
    return IrTensor(value, without_names(output.shape), row).as_type(known)


def _write_back(signature: Signature, arguments: Sequence[Any], written: Sequence[Value]) -> None:
    """Set the arguments that the function mutates to their new values."""
    mutated = [a for s, a in zip(signature.inputs, arguments, strict=True) if s.mutated]
    for argument, value in zip(mutated, written, strict=True):
        new = IrTensor(value, without_names(argument.shape), argument.row)
        argument.become(new.as_type(argument.shape))
