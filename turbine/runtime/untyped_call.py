"""Call a function without a signature: arguments are checked as far as its code has types."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import iree.runtime as iree

from turbine import dtypes, errors
from turbine.dtypes import Dtype
from turbine.runtime import gpu_buffers, libraries
from turbine.runtime.convention import BITS_OF_INT, FLOATS, REF, Convention
from turbine.runtime.executable import EntryPoint
from turbine.runtime.overlap import Span, overlaps

_VIEW = iree.HalBufferView


class UntypedCall:
    """Calls one function with tensors, arrays and numbers.

    With `keeps_weights`, results are copied, since they may be the memory of a weight.
    """

    def __init__(self, entry: EntryPoint, convention: Convention, *, keeps_weights: bool) -> None:
        self.entry = entry
        self.convention = convention
        self.keeps_weights = keeps_weights
        self.libraries: Any = libraries if entry.is_on_host else gpu_buffers
        self.fencing = threading.Lock()

    def __call__(self, args: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The results; with outputs, these are returned for the tensors."""
        places = self.convention.places_of(args, outputs)
        device = self.entry.device()
        taken: list[Span] = []
        positions = range(len(self.convention.arguments))
        plain = [n for n in positions if n not in places]
        made = {n: self._argument(device, n, args[k], taken) for k, n in enumerate(plain)}
        storage = {k: self._storage(device, n, outputs[k], taken) for n, k in places.items()}
        for n, k in places.items():
            made[n] = storage[k][0]
        if not self.entry.is_on_host:
            self._library_for([*args, *outputs]).wait()
        results = self._invoke(device, [made[n] for n in positions])
        values = self._values(device, results, [*args, *outputs], taken)
        if not outputs:
            return values
        copies = {k: view for k, (view, is_copy) in storage.items() if is_copy}
        return self._fill_outputs(device, values, outputs, copies)

    def _argument(self, device: Any, position: int, value: Any, taken: list[Span]) -> Any:
        letter = self.convention.arguments[position]
        if letter != REF:
            return _number(letter, position, value)
        library = self.libraries.of(value)
        if library is None:
            raise _refusal(position, f"is a {type(value).__name__}, expected a tensor", _TENSOR)
        return self._view(device, position, value, library, taken)

    def _view(self, device: Any, position: int, value: Any, library: Any, taken: list[Span]) -> Any:
        row = library.dtype_of(value)
        expected = self.convention.types.get(position)
        reason = expected.problem(row, value.shape) if expected is not None else None
        view = library.to_view(device, value, row, taken) if reason is None else None
        if view is None:
            hint = None if expected is None else f"the program takes {expected.text}"
            raise _refusal(position, reason or library.problem(value, row), hint)
        return view

    def _storage(
        self, device: Any, position: int, output: Any, taken: list[Span]
    ) -> tuple[Any, bool]:
        """A view of an output to write a result to, and whether it is one of a copy."""
        library = self._library_of_output(output)
        shared: list[Span] = []
        view = self._view(device, position, output, library, shared)
        # An output that overlaps an argument would change it while it is read.
        if shared and not overlaps(shared[0], taken):
            return view, False
        copy = library.plain_copy(output)
        return self._view(device, position, copy, library, []), True

    def _invoke(self, device: Any, values: Sequence[Any]) -> Any:
        arguments = iree.VmVariantList(len(values))
        for letter, value in zip(self.convention.arguments, values, strict=True):
            _PUSH[letter](arguments, value)
        try:
            if self.convention.fenced:
                return self._invoke_fenced(device, arguments)
            return self.entry.invoke(arguments, len(self.convention.results))
        except errors.RunError as error:
            refused = _REFUSED.search(error.fact)
            if refused is None:
                raise
            raise errors.ArgumentError(
                f"{self.convention.name} refuses its arguments: {refused[1]}", hint=error.hint
            ) from error

    def _invoke_fenced(self, device: Any, arguments: Any) -> Any:
        """Call an asynchronous function, and wait for it."""
        with self.fencing:
            done = push_fences(device, arguments)
            results = self.entry.invoke(arguments, len(self.convention.results))
            try:
                done.wait()
            except (RuntimeError, ValueError) as error:
                raise errors.RunError(
                    f"the compiled program failed: {error}",
                    hint="check the values of its arguments, such as indices",
                ) from error
        return results

    def _values(
        self, device: Any, results: Any, given: Sequence[Any], taken: list[Span]
    ) -> list[Any]:
        library = self._library_for(given)
        values = []
        for index, letter in enumerate(self.convention.results):
            if letter != REF:
                values.append(results.get_variant(index))
                continue
            view = results.get_as_object(index, _VIEW)
            value = library.from_view(device, view, _row(view))
            span = library.span(value)
            # IREE may return an argument's memory, a weight's, or one buffer twice.
            if self.keeps_weights or overlaps(span, taken):
                value = library.copy(value)
            taken.append(span)
            values.append(value)
        return values

    def _library_for(self, given: Sequence[Any]) -> Any:
        """The library for results: that of highest priority among the arguments."""
        found = [library for value in given if (library := self.libraries.of(value)) is not None]
        best = max(found, key=lambda library: int(library.PRIORITY), default=None)
        return self.libraries.default() if best is None else best

    def _library_of_output(self, output: Any) -> Any:
        library = self.libraries.of(output)
        if library is None:
            raise errors.ArgumentError(
                f"an output is a {type(output).__name__}, expected a tensor", hint=_TENSOR
            )
        if not library.is_writable(output):
            raise errors.ArgumentError(
                "an output cannot be written to",
                hint="it is read-only, or its elements share memory as after expand; pass a copy",
            )
        return library

    def _fill_outputs(
        self, device: Any, values: list[Any], outputs: Sequence[Any], copies: Mapping[int, Any]
    ) -> list[Any]:
        """Copy results to outputs that the program did not write; returns results and outputs."""
        tensors = [n for n, value in enumerate(values) if libraries.of(value) is not None]
        if not tensors:
            for k, view in copies.items():
                library = self._library_of_output(outputs[k])
                row = library.dtype_of(outputs[k])
                library.write(outputs[k], library.from_view(device, view, row))
            return [*values, *outputs]
        for n, output in zip(tensors, outputs, strict=True):
            self._write(output, values[n])
            values[n] = output
        return values

    def _write(self, output: Any, value: Any) -> None:
        library = self._library_of_output(output)
        made_by = self._library_for([value])
        wanted, row = library.dtype_of(output), made_by.dtype_of(value)
        if tuple(output.shape) != tuple(value.shape) or wanted.mlir != row.mlir:
            raise errors.ArgumentError(
                f"an output is {wanted.name}{[*output.shape]}, "
                f"the result {row.name}{[*value.shape]}",
                hint="pass an output of the result's shape and dtype",
            )
        if library is not made_by or library.span(output) != library.span(value):
            library.write(output, value)


def push_fences(device: Any, arguments: Any) -> Any:
    """Append the fences of an asynchronous function; returns the one to wait for."""
    timeline = device.create_semaphore(0)
    done = iree.HalFence.create_at(timeline, 1)
    arguments.push_ref(iree.HalFence.create_at(timeline, 0))
    arguments.push_ref(done)
    return done


_PUSH: dict[str, Any] = {
    REF: lambda arguments, value: arguments.push_ref(value),
    **dict.fromkeys(BITS_OF_INT, lambda arguments, value: arguments.push_int(value)),
    **dict.fromkeys(FLOATS, lambda arguments, value: arguments.push_float(value)),
}
# IREE's message about a tensor of the wrong type.
_REFUSED = re.compile(r"INVALID_ARGUMENT; ((?:input\d+|tensor) .*? mismatch.*?)(?:; while|$)")
# Signless integers are signed.
_SIGNLESS = {row.hal & 0xF0FFFFFF: row for row in dtypes.TABLE if row.kind == "int"}
_ROWS = {**_SIGNLESS, **{row.hal: row for row in dtypes.TABLE}}


def _row(view: Any) -> Dtype:
    code = int(view.element_type)
    if code not in _ROWS:
        raise errors.UnsupportedDtype(
            f"a result is of IREE's element type {code:#x}",
            hint="let the program return another element type, such as f32",
        )
    return _ROWS[code]


def _number(letter: str, position: int, value: Any) -> int | float:
    if letter in FLOATS:
        if isinstance(value, Real):
            return float(value)
        raise _refusal(position, f"is a {type(value).__name__}, expected a float")
    if not isinstance(value, Integral):
        raise _refusal(position, f"is a {type(value).__name__}, expected an int")
    limit = 2 ** (BITS_OF_INT[letter] - 1)
    if not -limit <= value < limit:
        raise _refusal(position, f"is {value}, expected an int of {BITS_OF_INT[letter]} bits")
    return int(value)


_TENSOR = "pass a torch tensor or a numpy array"


def _refusal(position: int, reason: str, hint: str | None = None) -> errors.ArgumentError:
    return errors.ArgumentError(f"argument {position} {reason}", hint=hint)
