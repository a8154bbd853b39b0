"""Rules of atomic updates."""

from __future__ import annotations

from torch import fx

from turbine.dtypes import Dtype
from turbine.kernel.backends.triton.emitter import Emitter, Value, rule
from turbine.kernel.backends.triton.memory import block_pointer, element_pointers, to_write
from turbine.kernel.lang import atomics
from turbine.kernel.trace.op import arguments
from turbine.kernel.trace.types import dtype_name

_DTYPES = {
    "add": {"int32", "int64", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"},
    "max": {"int32", "int64", "uint32", "uint64", "float32", "float64"},
    "min": {"int32", "int64", "uint32", "uint64", "float32", "float64"},
}


@rule(atomics.atomic_block)
def _atomic_block(emitter: Emitter, node: fx.Node) -> Value:
    buffer, index, operand, kind = arguments(node)
    source, shape = emitter.sources[buffer], operand.meta["type"].shape
    pointer, axes = block_pointer(emitter, source, index, shape), emitter.axes_of(shape)
    return _update(emitter, node, kind, source.dtype, pointer, axes)


@rule(atomics.atomic_scatter)
def _atomic_scatter(emitter: Emitter, node: fx.Node) -> Value:
    buffer, index, operand, kind = arguments(node)
    source, shape = emitter.sources[buffer], operand.meta["type"].shape
    pointer, axes = element_pointers(emitter, source, index, shape)
    return _update(emitter, node, kind, source.dtype, pointer, axes)


def _update(
    emitter: Emitter, node: fx.Node, kind: str, dtype: Dtype, pointer: str, axes: tuple[int, ...]
) -> Value:
    if dtype.name not in _DTYPES[kind]:
        raise emitter.error(
            f"tkl.atomic_{kind} of {dtype_name(dtype)} elements has no instruction",
            "use a buffer of tkl.i32 or tkl.f32",
        )
    text = to_write(emitter, node, axes)
    old = Value(f"tl.atomic_{kind}({pointer}, {text})", axes, dtype)
    return emitter.assign("old", old)
