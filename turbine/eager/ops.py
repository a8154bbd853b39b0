"""What each kind of op does on the device: compute, view, write, draw random numbers, or read."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only, tree_unflatten

from turbine import errors
from turbine.capture.effects import draws
from turbine.eager import recorder
from turbine.eager.layouts import layout_of
from turbine.eager.recorder import read, record
from turbine.eager.storage import Ref, Storage, View, reference, whole
from turbine.eager.tensor import DEVICE, INSIDE, DeviceTensor, check_index, from_cpu, wrap
from turbine.eager.trace_tree import LOCK, MixedDevices, Node, check_device

aten = torch.ops.aten

# Ops that ran in PyTorch by themselves, with reasons; reads and random ops are not among them.
fallbacks: Counter[tuple[str, str]] = Counter()

Kind = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
# By the id of an op, as hashing one takes longer; ops are kept, so that the id stays their own.
_kinds: dict[int, Kind] = {}
_known: list[Any] = []


def dispatch(
    cls: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """Record an op, or run it: __torch_dispatch__ of the tensors."""
    with LOCK:
        kind = _kinds.get(id(func))
        if kind is None:
            kind = _kinds[id(func)] = _classify(func)
            _known.append(func)
        if not kwargs:
            kwargs = {}
        elif "device" in kwargs and kind is not _decompose:
            kwargs = dict(kwargs)
            if not _is_here(kwargs["device"]):
                return _leave(func, args, kwargs)
            kwargs["device"] = _CPU
        result = kind(func, args, kwargs)
        recorder.end_if_long()
        return result


DeviceTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]
_CPU = torch.device("cpu")


def _is_here(device: Any) -> bool:
    """Whether a device is this one, or None. There is one; others with its name are refused."""
    if device is None:
        return True
    if torch.device(device).type == DEVICE:
        check_index(device)
        return True
    return torch.device(device).type == INSIDE.type


def _classify(func: Any) -> Kind:
    if func in _SPECIAL:
        return _SPECIAL[func]
    if func in _INDEXED:
        return partial(_with_indices, _classify_plain(func))
    return _classify_plain(func)


def _classify_plain(func: Any) -> Kind:
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _decompose
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


def _decompose(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op that PyTorch writes as others. In inference mode, and within ops, it is up to us."""
    return func.decompose(*args, **kwargs)


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
    return tuple(results) if node.is_flat else tree_unflatten(results, node.spec)


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
    settings = tuple(args[1:])
    if list in map(type, settings):
        settings = tuple([tuple(one) if type(one) is list else one for one in settings])
    view = base._view
    storage, found = base._storage, view.views.get((id(func), settings))
    if found is None:
        found = view.under(func, settings)
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch._C._InferenceMode(False):  # a view of a normal tensor is one too
            return _wrap_views(storage, found)
    return wrap(storage, found) if type(found) is View else _wrap_views(storage, found)


def _wrap_views(storage: Storage, found: View | list[View]) -> Any:
    if isinstance(found, View):
        return wrap(storage, found)
    return [wrap(storage, one) for one in found]


def _with_indices(kind: Kind, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An op whose indices may be on the CPU."""
    x, indices, *rest = args
    if any(isinstance(one, Tensor) and not isinstance(one, DeviceTensor) for one in indices):
        indices = [
            one if one is None or isinstance(one, DeviceTensor) else one.to(DEVICE)
            for one in indices
        ]
    return kind(func, [x, indices, *rest], kwargs)


def _pack(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """pack_padded_sequence, whose lengths and counts of rows are on the CPU."""
    x, lengths, *rest = args
    with torch.no_grad():
        rows, counts = func(read(x, str(func)), lengths.cpu(), *rest, **kwargs)
    return from_cpu(rows.clone()), counts


def _normalize_batch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """native_batch_norm, which writes running statistics though its schema does not say so."""
    mean, variance, is_training = args[3:6]
    if not is_training or mean is None or variance is None:
        return _compute(func, args, kwargs)
    *results, new_mean, new_variance = _compute(_BATCH_NORM, args, kwargs)
    aten.copy_.default(mean, new_mean)
    aten.copy_.default(variance, new_variance)
    return tuple(results)


def _take_memory(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """set_ to memory on the CPU: torch.load with map_location="turbine" calls it."""
    target, memory, *layout = args
    data = torch.empty(0, dtype=target.dtype).set_(memory, *layout)
    target.data = from_cpu(data.clone())
    return target


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
    if {*map(type, targets)} != {DeviceTensor}:
        return _run(func, args, kwargs)
    written = {one._storage for one in targets}
    operands = chain.from_iterable([one if type(one) is list else (one,) for one in args[1:]])
    read = {one._storage for one in operands if type(one) is DeviceTensor}
    if len(written) < len(targets) or not written.isdisjoint(read):
        return _run(func, args, kwargs)  # a write may change what a later element reads
    try:
        node, first = record(twin, args, kwargs)
    except MixedDevices:
        raise
    except Exception:
        return _run(func, args, kwargs)
    layouts = [whole.layout for whole in [one._view for one in targets] if whole.parent is None]
    if layouts == node.op.results and not any(layout.repeats for layout in layouts):
        recorder.write_whole(targets, first)
        return None
    for place, target in enumerate(targets):
        if target._view.layout.repeats or not _fits(node, place, target):
            return _run(func, args, kwargs)
    for place, target in enumerate(targets):
        if not _put(target, node, place, first):
            # A write to memory ends the trace: all results that are left have to be held.
            left = [_result(node, n, first) for n in range(place, len(targets))]
            for one, result in zip(targets[place:], left, strict=True):
                aten.copy_.default(one, result)
            break
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
    for one in outs:
        if not isinstance(one, DeviceTensor):
            raise MixedDevices(one)
    _check_out(func, args, kwargs)
    if len(outs) == 1 and named.get("dtype") is None and _has_dtype(twin):
        named["dtype"] = outs[0].dtype  # a sum is computed in the dtype of its result
    results = twin(*args, **named)
    for out, result in zip(outs, [results] if len(outs) == 1 else results, strict=True):
        if out.shape != result.shape:
            result = result.to(out.dtype)
            out.data = result
        else:
            aten.copy_.default(out, result)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _check_out(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise as PyTorch does if it does not write such a result to out=."""

    def stand_in(one: Tensor) -> Tensor:
        return one._view.layout.make("meta") if isinstance(one, DeviceTensor) else one

    own, named = tree_map_only(Tensor, stand_in, (list(args), dict(kwargs)))
    with warnings.catch_warnings(), suppress(NotImplementedError):
        warnings.simplefilter("ignore")  # of resized results
        func(*own, **named)


def _has_dtype(op: Any) -> bool:
    return any(one.name == "dtype" for one in op._schema.arguments)


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
        if one is not None and data.shape != one.shape:
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
    value, after = tensor._storage.value, layout_of(data)
    before = value.layout
    if tensor._view.parent is None:
        value.data = data.as_strided(before.size, before.stride, 0)
        if data.numel() > math.prod(before.size):
            tensor.data = from_cpu(data)
            return
    elif value.data is None or data.untyped_storage().nbytes() > value.data.nbytes:
        raise RuntimeError("resize_ of a view to more memory than it is a view of")
    size = after.size, after.stride, after.offset
    view = View(after, whole(before), aten.as_strided.default, size)
    tensor.data = wrap(tensor._storage, view)


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
_INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index_put.default,
    aten._index_put_impl_.default,
}
_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_SPECIAL: dict[Any, Kind] = {
    aten.native_batch_norm.default: _normalize_batch,
    aten.set_.source_Storage_storage_offset: _take_memory,
    aten._pack_padded_sequence.default: _pack,
    aten.set_.source_Tensor: _become,
    **{view: partial(_instead, op) for view, op in _FLAGS.items()},
    aten.copy_.default: _copy,
    aten._has_compatible_shallow_copy_type.default: lambda _, args, __: all(
        isinstance(one, DeviceTensor) for one in args
    ),
}
