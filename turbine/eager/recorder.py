"""Record ops on tensors of the device, and run them when a value is read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.eager import programs
from turbine.eager.layouts import Layout, layout_of
from turbine.eager.storage import BY_MEMORY, View, inverse
from turbine.eager.tensor import DEVICE, DeviceTensor
from turbine.eager.trace import MOST_OPS, Operand, Trace, Value, find_period, reference, rescue

aten = torch.ops.aten

_trace = Trace()
# Why programs ended, and how often.
ends: Counter[str] = Counter()
LENGTH = "many ops"
# The calls before the trace, among which a loop is found.
_history: deque[Any] = deque(maxlen=8 * MOST_OPS)


def record(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Value | None], Any]:
    """Add an op to the trace; gives the values of its results, and how they are nested."""
    (layouts, spec), first = _trace.record(func, args, kwargs, operand)
    _trace.calls.append(func)
    values = [
        None if layout is None else _trace.hold(layout, first + place)
        for place, layout in enumerate(layouts)
    ]
    return values, spec


def pending() -> list[str]:
    """The ops of the trace as text, a line each."""
    lines, first = [], 0
    for op in _trace.ops:
        given = [str(one) for one in op.args]
        given += [f"{name}={one}" for name, one in op.kwargs.items()]
        kinds = ", ".join(map(str, op.results))
        lines.append(f"%{first} = {op.target}({', '.join(given)}) -> {kinds}")
        first += len(op.results)
    return lines


def end_if_long() -> None:
    """Run the trace if it is long, or one turn of a loop."""
    if _trace.is_at_end():
        flush(LENGTH)


def flush(why: str) -> None:
    """Run the ops of the trace."""
    global _trace
    trace = _trace
    if not trace.ops:
        return
    _history.extend(trace.calls)
    period = trace.period
    if why == LENGTH and len(trace.calls) != period:
        period = find_period([*_history])
    _trace = Trace(period)
    program = trace.program()
    if not program.outputs:
        return
    ends[why] += 1
    raised: Exception | None = None
    results: Sequence[Tensor | Exception]
    try:
        results = programs.run(program)
    except Exception as error:
        raised, results = error, rescue(program)
    taken = {one.untyped_storage().data_ptr() for one in program.inputs}
    for index, data in zip(program.outputs, results, strict=True):
        ref = trace.values[index]
        value = ref() if ref is not None else None
        if value is None:
            continue
        if isinstance(data, Exception):
            value.error = data
        else:
            value.data = own(data, value.layout, taken)
    if raised is not None:
        raise raised


def own(data: Tensor, layout: Layout, taken: set[int]) -> Tensor:
    """A result in memory of its own, laid out as its tensor says."""
    if data.shape != layout.size or data.dtype != layout.dtype:
        raise errors.RunError(f"an op gave {layout_of(data)}, where {layout} was expected")
    data = data.resolve_conj().resolve_neg()
    storage = data.untyped_storage()
    memory = storage.data_ptr()
    is_whole = storage.nbytes() == data.numel() * data.element_size()
    if memory in taken or not layout.fits(data) or not is_whole:
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype).copy_(data)
    if memory:
        taken.add(memory)
    return data


def read(tensor: DeviceTensor, why: str) -> Tensor:
    """The values of a tensor, in the memory of its storage."""
    value = tensor._storage.value
    if value.data is None:
        flush(why)
    data = value.data
    if data is None:
        assert value.error is not None
        raise value.error
    for view in tensor._views:
        data = view.apply(data)
    return data


def operand(tensor: Tensor) -> Operand:
    """The operand for a tensor among the arguments of an op."""
    if isinstance(tensor, DeviceTensor):
        return _view_of(tensor._storage.value, tensor._views)
    if tensor.dim() or tensor.device.type != "cpu":
        raise MixedDevices(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{DEVICE}:0 and {tensor.device}!"
        )
    return _trace.input(tensor.detach().clone())


class MixedDevices(RuntimeError):
    """Operands on several devices; the message is PyTorch's."""


def _view_of(value: Value, views: tuple[View, ...]) -> Operand:
    """The operand for a view of a value."""
    if not views:
        return _trace.operand(value)
    if value.data is None and any(view.target in BY_MEMORY for view in views):
        flush("a view by memory")
    key = _trace.operand(value).ref, views
    found = _trace.views.get(key)
    if found is None and value.data is not None:
        data = value.data
        for one in views:
            data = one.apply(data)
        found = _trace.input(data)
    elif found is None:
        *above, view = views
        parent = _view_of(value, tuple(above))
        # Results of the trace need not be laid out as their tensors are.
        target = aten.reshape.default if view.target is aten.view.default else view.target
        found = _call(target, [parent, *view.arguments()], view.which or 0)
    _trace.views[key] = found
    return found


def _call(target: Any, args: Sequence[Any], which: int = 0) -> Operand:
    """Add an op on operands; gives one of its results."""
    (layouts, _), first = _trace.record(target, args, {}, operand)
    layout = layouts[which]
    assert layout is not None
    return Operand(reference(first + which), layout)


def write(tensor: DeviceTensor, value: Value) -> bool:
    """Give a tensor a value of its size and dtype, and with it the tensors that share memory.

    False if that takes a write to memory.
    """
    storage, views = tensor._storage, tensor._views
    base = storage.value.layout
    if not views and value.data is None:
        storage.value = _trace.hold(base, value.index)
        return True
    if not views:
        assert value.data is not None
        storage.value = Value(base, own(value.data, base, set()))
        return True
    new = _trace.operand(value)
    for depth in reversed(range(len(views))):
        parent = _view_of(storage.value, views[:depth])
        call = inverse(views[depth], parent, new)
        if call is None:
            return False
        new = _call(*call)
    storage.value = _trace.hold(base, new.ref.index)
    return True
