"""Insert slices into tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from turbine.capture.sizes import hint
from turbine.ops.argument_checks import require, shape
from turbine.ops.declaration import custom_op

_NAME = "turbine::insert_slice"


@custom_op(f"{_NAME}(Tensor src, Tensor dst, SymInt[] offset, int[] strides) -> Tensor")
def insert_slice(src: Tensor, dst: Tensor, offset: Sequence[int], strides: Sequence[int]) -> Tensor:
    """A copy of dst with src at every `strides`-th element from `offset` on, for each axis."""
    _check(src, dst, offset, strides)
    result = dst.clone()
    part = result
    for axis, (start, step) in enumerate(zip(offset, strides, strict=True)):
        count = src.shape[axis]
        stop = start + (count - 1) * step + 1 if count > 0 else start
        part = part[(slice(None),) * axis + (slice(start, stop, step),)]
    part.copy_(src)
    return result


def _check(src: Tensor, dst: Tensor, offset: Sequence[int], strides: Sequence[int]) -> None:
    require(src.dtype == dst.dtype, _NAME, f"src is of {src.dtype} and dst of {dst.dtype}")
    for name, found in (("src", src.dim()), ("offset", len(offset)), ("strides", len(strides))):
        fact = f"{name} has {found} axes, expected {dst.dim()}, as dst {shape(dst)} has"
        require(found == dst.dim(), _NAME, fact)
    for axis, (start, step) in enumerate(zip(offset, strides, strict=True)):
        require(step >= 1, _NAME, f"strides[{axis}] is {step}, expected 1 or more")
        count, there = src.shape[axis], dst.shape[axis]
        end = start + (count - 1) * step + 1 if count > 0 else start
        fact = (
            f"src {shape(src)} does not fit along axis {axis} of dst {shape(dst)} "
            f"with offset {hint(start)} and stride {step}"
        )
        require(start >= 0 and end <= there, _NAME, fact)
