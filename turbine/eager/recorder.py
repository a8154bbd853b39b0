"""Record ops on tensors of the device, and run them when a value is read."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.eager import programs, tensor
from turbine.eager.interpreter import rescue
from turbine.eager.layouts import Layout, layout_of
from turbine.eager.storage import Ref, Storage, Value, inverse, reference, whole
from turbine.eager.tensor import DeviceTensor, wrap
from turbine.eager.trace_tree import (
    LOCK,
    MOST_OPS,
    NeedsMemory,
    Node,
    Number,
    Trace,
    find_period,
    prune,
)

_trace = Trace()
# Why programs ended, and how often.
ends: Counter[str] = Counter()
LENGTH = "many ops"
# The calls before the trace, among which a loop is found.
_history: deque[Any] = deque(maxlen=8 * MOST_OPS)


def record(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Node, int]:
    """Add an op that was called; gives its node and the index of its first result."""
    try:
        found = _trace.record(func, args, kwargs)
    except NeedsMemory:
        flush("a view by memory")
        found = _trace.record(func, args, kwargs)
    _trace.calls.append(func)
    return found


def result(index: int) -> Tensor:
    """The tensor of a result of the trace."""
    value = _trace.hold(index)
    return wrap(Storage(value), value.layout.whole or whole(value.layout))


def pending() -> list[str]:
    """The ops of the trace as text, a line each."""
    lines, first = [], 0
    program = _trace.program()

    def text(argument: Any) -> str:
        if isinstance(argument, list):
            return f"[{', '.join(map(text, argument))}]"
        is_number = isinstance(argument, Number)
        return str(program.numbers[argument.index] if is_number else argument)

    for op in program.ops:
        given = [text(one) for one in op.args]
        given += [f"{name}={text(one)}" for name, one in op.kwargs.items()]
        kinds = ", ".join(map(str, op.results))
        where = f"  # {op.where}" if op.where is not None else ""
        lines.append(f"%{first} = {op.target}({', '.join(given)}) -> {kinds}{where}")
        first += len(op.results)
    return lines


def end_if_long() -> None:
    """Run the trace if it is long, or one turn of a loop."""
    if len(_trace.calls) >= _trace.most:
        flush(LENGTH)


def flush(why: str) -> None:
    """Run the ops of the trace."""
    if _trace.values:
        _run_trace(why)


def _prepare_fork() -> None:
    """Run what was called before a fork: PyTorch's threads do not run in the child."""
    LOCK.acquire()
    with suppress(Exception):  # raised again where the values are read
        flush("a fork")


os.register_at_fork(
    before=_prepare_fork,
    after_in_parent=LOCK.release,
    after_in_child=LOCK._at_fork_reinit,  # type: ignore[attr-defined]
)


def _run_now(why: str) -> None:
    global _trace
    trace = _trace
    _history.extend(trace.calls)
    period = trace.period
    if why == LENGTH and len(trace.calls) != period:
        period = find_period([*_history])
    _trace = Trace(period)
    program = trace.program()
    if not program.outputs:
        return
    prune(programs.often_run)
    ends[why] += 1
    raised: Exception | None = None
    results: Sequence[Tensor | Exception]
    try:
        with torch._C._InferenceMode(False):  # ops may have been called outside of it
            try:
                results = programs.run(program)
            except programs.InputsOverwritten:
                raise
            except Exception as error:
                raised, results = error, rescue(program)
    except programs.InputsOverwritten as error:
        _lose(trace, error)
        raise
    except BaseException:  # such as KeyboardInterrupt
        _lose(trace, errors.RunError("the run that computes this value was interrupted"))
        raise
    written = {update.input for update in program.updates}
    taken = {
        one.untyped_storage().data_ptr()
        for number, one in enumerate(program.inputs)
        if number not in written
    }
    for index, data in zip(program.outputs, results, strict=True):
        ref = trace.values[index]
        value = ref() if ref is not None else None
        if value is None:
            continue
        try:
            if isinstance(data, Exception):
                raise data
            value.data = own(data, value.layout, taken)
        except Exception as error:
            value.error = error
            raised = raised or error
    if raised is not None:
        raise raised


def _lose(trace: Trace, error: Exception) -> None:
    """Let the values of a trace raise an error when they are read."""
    for ref in trace.values:
        value = ref() if ref is not None else None
        if value is not None:
            value.error = error


# torch.compile compiles users' code, and not what runs while it is traced.
_run_trace: Callable[[str], None] = torch.compiler.disable(_run_now)


def own(data: Tensor, layout: Layout, taken: set[int]) -> Tensor:
    """A result in memory of its own, laid out as its tensor says."""
    if data.shape != layout.size or data.dtype != layout.dtype:
        raise errors.RunError(f"an op gave {layout_of(data)}, where {layout} was expected")
    if data.is_neg() or (data.dtype.is_complex and data.is_conj()):
        data = data.resolve_conj().resolve_neg()
    storage = data.untyped_storage()
    memory = storage.data_ptr()
    is_whole = storage.nbytes() == layout.nbytes
    if memory in taken or not is_whole or data.stride() != layout.stride:
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype).copy_(data)
    if memory:
        taken.add(memory)
    return data


def read(one: DeviceTensor, why: str) -> Tensor:
    """The values of a tensor, in the memory of its storage."""
    value = one._storage.value
    if value.data is None:
        with LOCK:
            flush(why)
    data = value.data
    if data is None:
        assert value.error is not None
        raise value.error
    return one._view.of(data)


tensor.read = read


def write(target: DeviceTensor, new: Ref) -> bool:
    """Give a tensor a result of its size and dtype, and with it the tensors that share memory.

    False if that takes a write to memory.
    """
    storage, view = target._storage, target._view
    while view.parent is not None:
        try:
            parent = _trace.locate(storage.value, view.parent)
        except NeedsMemory:
            return False
        call = inverse(view, parent, new)
        if call is None:
            return False
        new, view = _call(*call), view.parent
    storage.value = _trace.replace(storage.value, new.index)
    return True


def write_whole(targets: Sequence[DeviceTensor], first: int) -> None:
    """Give tensors, which are no views, the results from the first on."""
    for index, target in enumerate(targets, first):
        storage = target._storage
        storage.value = _trace.replace(storage.value, index)


def write_data(target: DeviceTensor, data: Tensor) -> bool:
    """Give a tensor the values of a CPU tensor, which nothing else refers to."""
    storage, view = target._storage, target._view
    if view.parent is None:
        storage.value = Value(view.layout, own(data, view.layout, set()))
        return True
    return write(target, _trace.locate(Value(layout_of(data), data), whole(layout_of(data))))


def _call(target: Any, args: Sequence[Any]) -> Ref:
    _, first = _trace.record(target, args, {})
    return reference(first)
