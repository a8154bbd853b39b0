"""Call compiled functions from Python: check arguments, share memory, unflatten results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import iree.runtime as iree
import numpy

from turbine import dims, dtypes, errors, pytree
from turbine.dims import Dim
from turbine.dtypes import Dtype
from turbine.runtime import gpu_buffers, libraries, numpy_buffers
from turbine.runtime.executable import EntryPoint
from turbine.runtime.overlap import Span, overlaps, share_memory
from turbine.signature import Input, Output, Signature


class Caller:
    """Calls one function with arguments checked against its signature."""

    def __init__(self, signature: Signature, entry: EntryPoint, code_and_weights: Span) -> None:
        self.signature = signature
        self.libraries: Any = libraries if entry.is_on_host else gpu_buffers
        self.library_of_type: Mapping[type, Any] = self.libraries.BY_TYPE
        self.entry = entry
        self.fixed_span = code_and_weights
        self.flat_count = _flat_count(signature)
        self.inputs = [(spec, _row(spec), _static_shape(spec)) for spec in signature.inputs]
        self.sizes = _dynamic_sizes(signature)
        self.returned = [(o, _row(o)) for o in signature.outputs if o.kind in ("tensor", "scalar")]
        self.mutated = [(k, _row(s)) for k, s in enumerate(signature.inputs) if s.mutated]
        self.result_count = len(self.returned) + len(self.mutated)
        self.single = signature.out_tree == pytree.LEAF and len(self.returned) == 1
        self.seen_torch = False
        self.quick: Any = None  # set at the first call with torch tensors

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The program's results, unflattened as in the signature."""
        if self.quick is not None and not kwargs and len(args) == self.flat_count:
            result = self.quick.call(args)
            if result is not None:
                return result
        leaves: Sequence[Any] = args
        if kwargs or len(args) != self.flat_count:
            leaves = self.signature.leaves(args, kwargs)
        device = self.entry.device()
        symbols: dict[str, int] = {}
        taken = [self.fixed_span]
        arguments, library = self._arguments(device, leaves, symbols, taken)
        if not self.entry.is_on_host:
            library.wait()
        elif not self.seen_torch and library is not numpy_buffers:
            self.seen_torch = True
            self.quick = _quick_call(self)
        if self.quick is not None and leaves is args:
            self.quick.remember(args)
        if self.mutated:
            self._check_apart(leaves)
        results = self.entry.invoke(arguments, self.result_count)
        written = self._collect_written(device, leaves, results, taken) if self.mutated else ()
        values = self._values(device, library, results, taken)
        # Last, since a result may share an argument's memory.
        for leaf, value in written:
            self.libraries.of(leaf).write(leaf, value)
        if self.single:
            return values[0]
        return pytree.unflatten(
            self.signature.out_tree, self.signature.result_leaves(values, symbols)
        )

    def _arguments(
        self, device: Any, leaves: Sequence[Any], symbols: dict[str, int], taken: list[Span]
    ) -> tuple[Any, ModuleType]:
        """The arguments as a VM list, and the library for results."""
        arguments = iree.VmVariantList(len(leaves))
        made_of: ModuleType | None = None
        for k, leaf in enumerate(leaves):
            spec, row, shape = self.inputs[k]
            if row is None:
                if spec.kind == "scalar":
                    _push_number(arguments, spec, leaf)
                elif _is_passed(spec, leaf, symbols):
                    arguments.push_int(leaf)
                continue
            library = self.library_of_type.get(type(leaf)) or self._library_of(spec, leaf)
            view = library.to_view(device, leaf, row, taken)
            if view is None:
                raise _refusal(spec, library.problem(leaf, row))
            if leaf.shape != shape:
                _check_shape(spec, tuple(leaf.shape))
            if spec.mutated and not library.is_writable(leaf):
                raise _refusal(
                    spec,
                    "cannot be written to, but the program mutates it",
                    hint="it is read-only, or its elements share memory as after expand; "
                    "pass a copy",
                )
            arguments.push_ref(view)
            # A call with both torch tensors and numpy arrays returns tensors.
            if made_of is None or library.PRIORITY > made_of.PRIORITY:
                made_of = library
        if self.sizes or symbols:
            self._check_symbols(leaves, symbols)
        return arguments, made_of or self.libraries.default()

    def _library_of(self, spec: Input, leaf: Any) -> Any:
        library = self.libraries.of(leaf)
        if library is None:
            raise _refusal(spec, f"is a {type(leaf).__name__}, expected a tensor")
        return library

    def _check_symbols(self, leaves: Sequence[Any], symbols: dict[str, int]) -> None:
        """Bind symbols to sizes; check equal sizes, size expressions, ranges and conditions."""
        for index, axis, dim in self.sizes:
            size = leaves[index].shape[axis]
            expected = dims.match(dim, size, symbols)
            if expected != size:
                wanted = f"{dim} = {expected}" if expected is not None else dim
                raise _refusal(
                    self.signature.inputs[index],
                    f"has size {size} along axis {axis}, expected {wanted}",
                )
        empty = next((name for name, size in symbols.items() if size == 0), None)
        if empty is not None and not self.entry.is_on_host:
            raise errors.ArgumentError(
                f"{_describe_size(self.signature, empty, symbols)}, and IREE cannot run programs "
                "of dynamic sizes on empty tensors on GPUs",
                hint="skip the call",
            )
        for name, limits in self.signature.symbols.items():
            if name in symbols and not limits.holds(symbols[name]):
                raise errors.ArgumentError(
                    f"{_describe_size(self.signature, name, symbols)}, which is out of range: "
                    f"minimum={limits.minimum} maximum={limits.maximum}",
                    hint="export with dynamic_shapes that allow this size",
                )
        for condition in self.signature.conditions:
            if not dims.holds(condition, symbols):
                known = dict.fromkeys(dims.names(condition))
                given = ", ".join(_describe_size(self.signature, name, symbols) for name in known)
                spelled = {name: _spell_symbol(self.signature, name) for name in known}
                raise errors.ArgumentError(
                    f"{given}; the program needs {dims.readable(condition, spelled)}",
                    hint="the model was traced for such sizes; other sizes may take another branch",
                )

    def _check_apart(self, leaves: Sequence[Any]) -> None:
        """Raise if a mutated argument shares memory with another: the trace assumed it does not."""
        layouts = {
            k: self.libraries.of(leaves[k]).layout(leaves[k])
            for k, (_, row, _) in enumerate(self.inputs)
            if row is not None
        }
        for index, _ in self.mutated:
            for k, other in layouts.items():
                if k != index and share_memory(layouts[index], other):
                    raise _refusal(
                        self.signature.inputs[index],
                        f"is written by the program and shares memory with argument "
                        f"{self.signature.inputs[k].name!r}",
                        "pass a copy of one of them: tensor.clone() or array.copy()",
                    )

    def _collect_written(
        self, device: Any, leaves: Sequence[Any], results: Any, taken: list[Span]
    ) -> list[tuple[Any, Any]]:
        """The mutated arguments and their new values."""
        pairs = []
        for k, (index, row) in enumerate(self.mutated, start=len(self.returned)):
            library = self.libraries.of(leaves[index])
            value = library.from_view(device, results.get_as_object(k, _VIEW), row)
            # Two arguments may have been swapped: read both before either is written.
            if overlaps(library.span(value), taken):
                value = library.copy(value)
            pairs.append((leaves[index], value))
        return pairs

    def _values(
        self, device: Any, library: ModuleType, results: Any, taken: list[Span]
    ) -> list[Any]:
        values = []
        for k, (output, row) in enumerate(self.returned):
            if row is None:
                values.append(dtypes.SCALARS[output.dtype].python(results.get_variant(k)))
                continue
            value = library.from_view(device, results.get_as_object(k, _VIEW), row)
            span = library.span(value)
            # IREE may return an argument's memory, a weight's, or one buffer twice.
            if overlaps(span, taken):
                value = library.copy(value)
            else:
                taken.append(span)
            values.append(value)
        return values


_VIEW = iree.HalBufferView


def _quick_call(caller: Caller) -> Any:
    from turbine.runtime import quick_call

    is_flat = caller.flat_count >= 0 and caller.single
    if not is_flat or not quick_call.is_plain(caller.signature):
        return None
    return quick_call.QuickCall(caller.entry, caller.fixed_span)


def _flat_count(signature: Signature) -> int:
    """The number of positional arguments if all are leaves, else -1."""
    positional, keywords = signature.in_tree.children
    flat = not keywords.children and all(c == pytree.LEAF for c in positional.children)
    return len(positional.children) if flat else -1


def _row(leaf: Input | Output) -> Dtype | None:
    return dtypes.from_torch_name(leaf.dtype) if leaf.kind == "tensor" else None


def _static_shape(spec: Input) -> tuple[Dim, ...] | None:
    return spec.shape if all(isinstance(d, int) for d in spec.shape) else None


def _dynamic_sizes(signature: Signature) -> list[tuple[int, int, str]]:
    """(input, axis, size) of every dynamic size; plain symbols first, since they are bound."""
    sizes = [
        (index, axis, dim)
        for index, spec in enumerate(signature.inputs)
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    ]
    return sorted(sizes, key=lambda size: not dims.is_symbol(size[2]))


def _check_shape(spec: Input, shape: tuple[int, ...]) -> None:
    """Check the rank and the static sizes of one tensor."""
    if len(shape) != len(spec.shape):
        raise _refusal(spec, f"has {len(shape)} dims {shape}, expected {len(spec.shape)}")
    for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise _refusal(spec, f"has size {size} along axis {axis}, expected {dim}")


def _push_number(arguments: Any, spec: Input, leaf: Any) -> None:
    """Pass a scalar; an int is converted to float, a float is not converted to int."""
    wanted = dtypes.SCALARS[spec.dtype]
    is_bool = isinstance(leaf, bool | numpy.bool_)
    fits = isinstance(leaf, _NUMBERS[wanted.python])
    if not fits or is_bool != (wanted.python is bool):
        raise _refusal(spec, f"is a {type(leaf).__name__}, expected a {wanted.python.__name__}")
    number = leaf.item() if isinstance(leaf, numpy.generic) else leaf
    if not wanted.holds(number):
        kind = {int: "an int", float: "a float"}[wanted.python]
        raise _refusal(spec, f"is {number}, expected {kind} of {wanted.bits} bits")
    if wanted.python is float:
        arguments.push_float(float(number))
    else:
        arguments.push_int(int(number))


# Accepted types of numbers, by the Python type of the parameter.
_NUMBERS: dict[type, tuple[type, ...]] = {
    bool: (bool, numpy.bool_),
    int: (int, numpy.integer),
    float: (float, int, numpy.floating, numpy.integer),
}


def _is_passed(spec: Input, leaf: Any, symbols: dict[str, int]) -> bool:
    """Whether an int is passed at run time; a constant has to equal the traced value."""
    if spec.kind == "int":
        if not isinstance(leaf, int):
            raise _refusal(spec, f"is a {type(leaf).__name__}, expected an int")
        if not -(2**63) <= leaf < 2**63:
            raise _refusal(spec, f"is {leaf}, expected an int of 64 bits")
        symbols[str(spec.value)] = leaf
        return True
    # Equal is not enough: True == 1, 0.0 == -0.0, and NaN differs from itself.
    if repr(leaf) != repr(spec.value):
        raise _refusal(spec, f"is {leaf!r}, but the model was exported with {spec.value!r}")
    return False


def _refusal(spec: Input, reason: str, hint: str | None = None) -> errors.ArgumentError:
    if hint is None and spec.kind == "tensor":
        hint = f"the program takes {spec.name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]"
    return errors.ArgumentError(f"argument {spec.name!r} {reason}", hint=hint)


def _describe_size(signature: Signature, symbol: str, symbols: Mapping[str, int]) -> str:
    """The value of a symbol in a call, in terms of the argument it is bound to."""
    spec, axis = _place(signature, symbol)
    if axis is None:
        return f"argument {spec.name!r} is {symbols[symbol]}"
    dim = spec.shape[axis]
    named = f" ({symbol}={symbols[symbol]})" if dim != symbol else ""
    size = dims.evaluate(dim, symbols)
    return f"argument {spec.name!r} has size {size} along axis {axis}{named}"


def _spell_symbol(signature: Signature, symbol: str) -> str:
    """A symbol as Python code, such as `x.shape[0]`, if an argument binds it."""
    spec, axis = _place(signature, symbol)
    if axis is None:
        return spec.name
    return f"{spec.name}.shape[{axis}]" if spec.shape[axis] == symbol else symbol


def _place(signature: Signature, symbol: str) -> tuple[Input, int | None]:
    """The input that binds a symbol, and the axis; None for an int."""
    for spec in signature.inputs:
        if spec.kind == "int" and spec.value == symbol:
            return spec, None
    places = [
        (spec, axis)
        for spec in signature.inputs
        for axis, dim in enumerate(spec.shape)
        if symbol in dims.names(dim)
    ]
    return min(places, key=lambda place: place[0].shape[place[1]] != symbol)
