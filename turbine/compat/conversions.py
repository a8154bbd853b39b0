"""Dtypes under the names of iree-turbine: each table is a column of `turbine.dtypes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from iree.compiler.ir import Type
from iree.runtime import HalElementType

from turbine import dtypes, errors


def _parser(text: str) -> Callable[[], Type]:
    """A function that parses a type in the caller's context."""
    return lambda: Type.parse(text)


# Quantized dtypes have the elements of another dtype; the inverse tables name only that one.
_ELEMENTS = {
    **{row.torch: row for row in dtypes.TABLE},
    torch.qint8: dtypes.from_torch_name("int8"),
    torch.quint8: dtypes.from_torch_name("uint8"),
}
TORCH_DTYPE_TO_IREE_TYPE = {dtype: _parser(row.mlir) for dtype, row in _ELEMENTS.items()}
TORCH_DTYPE_TO_IREE_TYPE_ASM = {dtype: row.mlir for dtype, row in _ELEMENTS.items()}
TORCH_DTYPE_TO_SIGNED_MLIR_TYPE_ASM = {dtype: row.torch_mlir for dtype, row in _ELEMENTS.items()}
TORCH_DTYPE_TO_MLIR_TYPE_ASM = TORCH_DTYPE_TO_SIGNED_MLIR_TYPE_ASM
# IREE's integers are signless; they map back to signed dtypes.
IREE_TYPE_ASM_TO_TORCH_DTYPE = {row.mlir: row.torch for row in reversed(dtypes.TABLE)}
SIGNED_MLIR_TYPE_ASM_TO_TORCH_DTYPE = {row.torch_mlir: row.torch for row in dtypes.TABLE}
MLIR_TYPE_ASM_TO_TORCH_DTYPE = SIGNED_MLIR_TYPE_ASM_TO_TORCH_DTYPE
# IREE's runtime has no quantized element types: elements of quantized tensors are opaque bytes.
DTYPE_TO_ELEMENT_TYPE = {
    **{row.torch: HalElementType(row.hal) for row in dtypes.TABLE},
    torch.qint8: HalElementType.OPAQUE_8,
    torch.quint8: HalElementType.OPAQUE_8,
}
TORCH_DTYPE_TO_NUMPY = {row.torch: row.numpy for row in dtypes.TABLE}


def dtype_to_element_type(dtype: torch.dtype) -> HalElementType:
    """The HAL element type of a torch dtype."""
    known = DTYPE_TO_ELEMENT_TYPE.get(dtype)
    return HalElementType(dtypes.of_torch(dtype).hal) if known is None else known


def torch_dtype_to_numpy(torch_dtype: torch.dtype) -> numpy.dtype[Any]:
    """The numpy (or ml_dtypes) dtype with the elements of a torch dtype."""
    return dtypes.of_torch(torch_dtype).numpy


def torch_dtyped_shape_to_iree_format(
    shape_or_tensor: torch.Tensor | Sequence[int], dtype: torch.dtype | None = None, /
) -> str:
    """A shape and dtype as IREE's tools write them.

    >>> import torch
    >>> from turbine.compat.conversions import torch_dtyped_shape_to_iree_format
    >>> torch_dtyped_shape_to_iree_format([1, 2], torch.float32)
    '1x2xf32'
    """
    if isinstance(shape_or_tensor, torch.Tensor):
        return _format(shape_or_tensor.shape, dtype or shape_or_tensor.dtype)
    if dtype is None:
        raise errors.ArgumentError(
            f"the shape {tuple(shape_or_tensor)} comes without a dtype",
            hint="pass one after the shape, such as torch.float32",
        )
    return _format(shape_or_tensor, dtype)


def _format(shape: Sequence[int], dtype: torch.dtype) -> str:
    row = _ELEMENTS.get(dtype) or dtypes.of_torch(dtype)
    return "x".join([*map(str, shape), row.mlir])
