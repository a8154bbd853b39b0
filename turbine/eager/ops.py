"""What each kind of op does on the device: compute, view, write, draw random numbers, or read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only, tree_unflatten

from turbine import errors
from turbine.capture.effects import draws
from turbine.eager import recorder
from turbine.eager.layouts import layout_of
from turbine.eager.recorder import read, record
from turbine.eager.storage import Ref, View, reference
from turbine.eager.tensor import DEVICE, INSIDE, DeviceTensor, from_cpu, wrap
from turbine.eager.trace_tree import LOCK, MixedDevices, Node, check_device

aten = torch.ops.aten

# Ops that ran in PyTorch by themselves, with reasons; reads and random ops are not among them.
fallbacks: Counter[tuple[str, str]] = Counter()

Kind = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
# By the id of an op, as hashing one takes longer; with the op, so that the id stays its own.
_kinds: dict[int, tuple[Any, Kind]] = {}


def dispatch(
    cls: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """Record an op, or run it: __torch_dispatch__ of the tensors."""
    with LOCK:
        known = _kinds.get(id(func))
        if known is None:
            known = _kinds[id(func)] = func, _classify(func)
        if not kwargs:
            kwargs = {}
        elif "device" in kwargs:
            kwargs = dict(kwargs)
            if not _is_here(kwargs["device"]):
                return _leave(func, args, kwargs)
            kwargs["device"] = _CPU
        result = known[1](func, args, kwargs)
        recorder.end_if_long()
        return result


DeviceTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]
_CPU = torch.device("cpu")


def _is_here(device: Any) -> bool:
    return device is None or torch.device(device).type in (DEVICE, INSIDE.type)


def _classify(func: Any) -> Kind:
    if func in _SPECIAL:
        return _SPECIAL[func]
    schema = func._schema
    written = [one for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    given = [one for one in schema.arguments if "Tensor" in str(one.type)]
    if [one.name for one in written] == ["out"] and given == written:
        return _fill
    if draws(func):
        return _DRAWN.get(func, _run)
    if func.namespace not in ("aten", "prims") or "quantize_per" in schema.name:
        return _run
    if written:
        return _classify_write(func, written)
    returns = [str(one.type) for one in schema.returns]
    if any(one.alias_info for one in schema.returns):
        return _view
    tensors = all(one in ("Tensor", "List[Tensor]", "Tensor[]") for one in returns)
    return _compute if returns and tensors else _run


def _classify_write(func: Any, written: Sequence[Any]) -> Kind:
    schema = func._schema
    twin = _twin(func)
    if twin is None:
        return _run
    if any(one.alias_info for one in twin._schema.returns):
        return partial(_become_view, twin)
    if schema.name.endswith("_") and len(written) == 1 and schema.arguments[0] is written[0]:
        is_list = str(written[0].type) == "List[Tensor]"
        return partial(_write_each if is_list else _write, twin)
    if all(one.kwarg_only for one in written):
        names = [one.name for one in written]
        return partial(_write_out, twin, names)
    return _run


def _twin(func: Any) -> Any:
    """The op without a write: add.Tensor for add_.Tensor and for add.out."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(aten, name, None)
    if packet is None:
        return None
    given = [
        (one.name, str(one.type))
        for one in func._schema.arguments
        if not (one.kwarg_only and one.alias_info)
    ]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if [(one.name, str(one.type)) for one in found._schema.arguments] == given:
            return found
    return None


def _compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op without effects."""
    try:
        node, first = record(func, args, kwargs)
    except MixedDevices:
        raise
    except Exception as error:
        return _fall_back(func, args, kwargs, error)
    if node.spec is None:
        return recorder.result(first)
    results = [_result(node, place, first) for place in range(len(node.op.results))]
    return tree_unflatten(results, node.spec)


def _result(node: Node, place: int, first: int) -> Tensor | None:
    """The tensor of a result that was recorded, or None if it is not defined."""
    return None if node.op.results[place] is None else recorder.result(first + place)


def _instead(op: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _compute(op, args, kwargs)


def _view(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op whose results share memory with its first argument."""
    base = args[0]
    if kwargs:
        return _run(func, args, kwargs)
    settings = tuple([tuple(one) if type(one) is list else one for one in args[1:]])
    storage, found = base._storage, base._view.under(func, settings)
    if type(found) is View:
        return wrap(storage, found)
    return [wrap(storage, one) for one in found]


def _become_view(twin: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """unsqueeze_ and the like: a tensor becomes a view of itself, and its memory stays."""
    target = args[0]
    target.data = _view(twin, args, kwargs)
    return target


def _become(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """set_: a tensor becomes another."""
    target, source = args
    target.data = source
    return target


def _write(twin: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An in-place op: the first argument gets the result of the op without the write."""
    target = args[0]
    if isinstance(target, DeviceTensor) and not target._view.layout.repeats:
        try:
            node, first = record(twin, args, kwargs)
        except MixedDevices:
            raise
        except Exception:
            return _run(func, args, kwargs)
        if node.spec is None and _fits(node, 0, target) and _put(target, node, 0, first):
            return target
    return _run(func, args, kwargs)


def _write_each(twin: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An in-place op on a list: each of its tensors gets a result of the op without the write."""
    targets = args[0]
    if not all(isinstance(one, DeviceTensor) for one in targets):
        return _run(func, args, kwargs)
    written = {id(one._storage) for one in targets}
    read = {
        id(one._storage) for one in tree_leaves(list(args[1:])) if isinstance(one, DeviceTensor)
    }
    if len(written) < len(targets) or written & read:
        return _run(func, args, kwargs)  # a write may change what a later element reads
    try:
        node, first = record(twin, args, kwargs)
    except MixedDevices:
        raise
    except Exception:
        return _run(func, args, kwargs)
    for place, target in enumerate(targets):
        if target._view.layout.repeats or not _fits(node, place, target):
            return _run(func, args, kwargs)
    for place, target in enumerate(targets):
        if not _put(target, node, place, first):
            aten.copy_.default(target, _result(node, place, first))
    return None


def _fits(node: Node, place: int, target: DeviceTensor) -> bool:
    """Whether PyTorch writes a result to a tensor, converted if necessary."""
    layout, own = node.op.results[place], target._view.layout
    if layout is None or layout.size != own.size:
        return False
    return layout.dtype == own.dtype or torch.can_cast(layout.dtype, own.dtype)


def _put(target: DeviceTensor, node: Node, place: int, first: int) -> bool:
    """Write a result, as the dtype of the target; False if that takes a write to memory."""
    layout = node.op.results[place]
    assert layout is not None
    result = reference(first + place)
    if layout.dtype != target._view.layout.dtype:
        result = _convert(result, target.dtype)
    return recorder.write(target, result)


def _convert(tensor: Ref | Tensor, dtype: torch.dtype) -> Ref:
    _, first = record(aten._to_copy.default, [tensor], {"dtype": dtype})
    return reference(first)


def _write_out(
    twin: Any, names: Sequence[str], func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """An op with out=, which is resized if it has other sizes."""
    outs = [kwargs[name] for name in names]
    named = {name: one for name, one in kwargs.items() if name not in names}
    if not all(isinstance(one, DeviceTensor) for one in outs):
        raise MixedDevices(f"out= of {func} is not on {DEVICE}:0, as its operands are")
    results = twin(*args, **named)
    for out, result in zip(outs, [results] if len(outs) == 1 else results, strict=True):
        if out.shape != result.shape:
            result = result.to(out.dtype)
            out.data = result
        else:
            aten.copy_.default(out, result)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _fill(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """arange and the like, which PyTorch calls with out= after it made the tensor."""
    out = kwargs["out"]
    data = func(*args, **{**kwargs, "out": torch.empty(0, dtype=out.dtype)})
    if data.shape != out.shape:
        out.data = from_cpu(data)
    elif not recorder.write_data(out, data):
        aten.copy_.default(out, from_cpu(data))
    return out


def _copy(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """copy_, also from and to other devices."""
    target, source = args[:2]
    if not isinstance(target, DeviceTensor):
        data = read(source, "a copy")
        target.copy_(data)
        return target
    layout = target._view.layout
    if layout.repeats:
        return _run(func, args, kwargs)
    if not isinstance(source, DeviceTensor):
        data = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype)
        with torch.no_grad():
            data.copy_(source.detach())
        if recorder.write_data(target, data):
            return target
        return _run(func, [target, from_cpu(data), *args[2:]], kwargs)
    like = source
    if source._view.layout.size != layout.size:
        like = aten.expand.default(source, list(layout.size))
    if recorder.write(target, _convert(like, layout.dtype)):
        return target
    return _run(func, args, kwargs)


def _draw_in_place(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op that fills a tensor with random numbers: those of PyTorch's generator, at once."""
    target = args[0]
    layout = target._view.layout
    data = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype)
    func(data, *args[1:], **kwargs)
    if not layout.repeats and recorder.write_data(target, data):
        return target
    return aten.copy_.default(target, from_cpu(data))


def _draw_like(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op that draws random numbers for the sizes of its argument, whose values it ignores."""
    return from_cpu(func(args[0]._view.layout.make("cpu"), *args[1:], **kwargs))


def _drop(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """native_dropout, whose mask is drawn at once."""
    x, p, train = args
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    like = x._view.layout.make("meta")
    kept = torch.empty_like(like, dtype=torch.bool, device="cpu").bernoulli_(1 - p)
    mask = from_cpu(kept)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return (x * mask) * scale, mask


def _fall_back(func: Any, args: Sequence[Any], kwargs: dict[str, Any], why: Exception) -> Any:
    """An op that cannot be recorded: run it in PyTorch, which gives the answer or the error."""
    result = _run(func, args, kwargs)
    reason = str(why).splitlines()[0] if str(why) else type(why).__name__
    if "nonzero" in reason or "data-dependent" in reason or "unique" in reason:
        reason = "the size of its result depends on values"
    key = str(func), reason
    if key not in fallbacks:
        errors.warn(f"{func} runs in PyTorch by itself on the turbine device: {reason}")
    fallbacks[key] += 1
    return result


def _run_now(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op that reads values, writes to memory or is not known: run it in PyTorch now."""
    if func._schema.is_mutable:
        recorder.flush(f"{func}, which writes to memory")
    known: dict[int, DeviceTensor] = {}

    def on_cpu(one: Tensor) -> Tensor:
        if not isinstance(one, DeviceTensor):
            check_device(one)
            return one
        data = read(one, str(func))
        known[id(data)] = one
        return data

    own, named = tree_map_only(Tensor, on_cpu, (list(args), dict(kwargs)))
    with torch.no_grad():
        result = func(*own, **named)
    tensors = [one for one in tree_leaves((own, named)) if isinstance(one, Tensor)]
    taken = {one.untyped_storage().data_ptr() for one in tensors}
    for data in tensors:
        one = known.get(id(data))
        if one is not None and data.shape != one.shape and one._view.parent is None:
            _resize(one, data)

    def wrapped(one: Tensor) -> Tensor:
        found = known.get(id(one))
        if one.layout is not torch.strided or one.is_quantized:
            kind = "quantized" if one.is_quantized else str(one.layout)
            raise NotImplementedError(
                f"{func} gives a {kind} tensor, and the turbine device has plain strided ones: "
                "call .cpu() first"
            )
        return from_cpu(recorder.own(one, layout_of(one), taken)) if found is None else found

    return tree_map_only(Tensor, wrapped, result)


_run: Kind = torch.compiler.disable(_run_now)


def _resize(tensor: DeviceTensor, data: Tensor) -> None:
    """Let a tensor be as its memory is after an op that resized it; its views stay as they were."""
    before, after = tensor._view.layout, layout_of(data)
    tensor._storage.value.data = data.as_strided(before.size, before.stride, 0)
    if data.numel() <= math.prod(before.size):
        size = after.size, after.stride, 0
        view = View(after, tensor._view, aten.as_strided.default, size)
        tensor.data = wrap(tensor._storage, view)
    else:
        tensor.data = from_cpu(data)


def _leave(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op whose result is on another device."""
    own, named = tree_map_only(
        DeviceTensor, lambda one: read(one, "a copy to another device"), (list(args), kwargs)
    )
    result = func(*own, **named)
    return tree_map_only(Tensor, lambda one: one.clone(), result)


_FILLS = ("normal_", "uniform_", "random_", "exponential_", "log_normal_", "cauchy_")
_LIKES = ("rand_like", "randn_like", "randint_like")


def _overloads(*names: str) -> list[Any]:
    packets = [getattr(aten, name) for name in names]
    return [
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if "out" not in overload and "Tensor" not in overload
    ]


_DRAWN: dict[Any, Kind] = {
    **dict.fromkeys([*_overloads(*_FILLS), aten.bernoulli_.float], _draw_in_place),
    **dict.fromkeys([*_overloads(*_LIKES), aten.bernoulli.p], _draw_like),
    aten.native_dropout.default: _drop,
}
# Views that are a flag on a tensor elsewhere.
_FLAGS = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
_SPECIAL: dict[Any, Kind] = {
    aten.set_.source_Tensor: _become,
    **{view: partial(_instead, op) for view, op in _FLAGS.items()},
    aten.copy_.default: _copy,
    aten._has_compatible_shallow_copy_type.default: lambda _, args, __: all(
        isinstance(one, DeviceTensor) for one in args
    ),
}
