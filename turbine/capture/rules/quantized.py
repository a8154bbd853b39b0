"""Quantization as arithmetic: `quantized_decomposed`, fake quantization and packed matmuls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

aten = torch.ops.aten
Number = Tensor | float


# One scale for a tensor


def quantize_per_tensor(
    x: Tensor, scale: Number, zero_point: Number, low: Number, high: Number, dtype: torch.dtype
) -> Tensor:
    """Quantize in float32; the reciprocal of the scale is computed in float64."""
    inverse = 1.0 / (_element(scale, torch.float64) if isinstance(scale, Tensor) else scale)
    steps = torch.round(x.to(torch.float32) * _element(inverse, torch.float32))
    shifted = steps + _element(zero_point, torch.float32)
    low, high = _element(low, torch.float32), _element(high, torch.float32)
    return torch.clamp(shifted, low, high).to(dtype)  # type: ignore[arg-type]


def dequantize_per_tensor(
    x: Tensor,
    scale: Number,
    zero_point: Number,
    low: Number,
    high: Number,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Each of the two ops is rounded to the dtype of the result."""
    out_dtype = torch.float32 if out_dtype is None else out_dtype
    wide = torch.promote_types(out_dtype, torch.float32)
    shifted = (x.to(out_dtype).to(wide) - _element(zero_point, wide)).to(out_dtype)
    return (shifted.to(wide) * _element(scale, wide)).to(out_dtype)


def _element(value: Number, dtype: torch.dtype) -> Any:
    """The only element of a tensor, as a tensor of rank 0; numbers stay."""
    return value.reshape(()).to(dtype) if isinstance(value, Tensor) else value


def choose_parameters(
    x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The scale and the zero point for the range of a tensor with 0."""
    bottom, top = _range_with_zero(x)
    scale = torch.maximum((top - bottom) / float(high - low), _smallest(eps))
    zero_point = (low - torch.round(bottom / scale)).clamp(low, high)
    return scale.to(torch.float64).reshape(1), zero_point.to(torch.int64).reshape(1)


def choose_symmetric_parameters(
    x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The same for a range with 0 in its middle."""
    bottom, top = _range_with_zero(x)
    largest = torch.maximum(-bottom, top)
    scale = torch.maximum(largest / (float(high - low) / 2), _smallest(eps))
    middle = 128 if dtype == torch.uint8 else 0
    return scale.to(torch.float64).reshape(1), torch.full((1,), middle, dtype=torch.int64)


def _range_with_zero(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amin().clamp(max=0), x.amax().clamp(min=0)


def _smallest(eps: float) -> Tensor:
    return torch.full((), eps, dtype=torch.float32)


# A scale for each index of an axis


def quantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    """Quantize in float32."""
    steps = torch.round(x.to(torch.float32) * (1.0 / _along(scales, x, axis)))
    return torch.clamp(steps + _along(zero_points, x, axis), low, high).to(dtype)


def dequantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Subtract in integers."""
    shifted = x if zero_points is None else x - _along(zero_points, x, axis)
    return (shifted * _along(scales, x, axis)).to(out_dtype or torch.float32)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """A vector as a tensor that broadcasts along the other axes of x."""
    shape: list[Any] = [1] * x.dim()
    shape[axis] = values.shape[0]
    return values.reshape(shape)


# A scale for each row, or for each group of a row


def choose_parameters_per_token(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scale for the largest magnitude of a row; zero points are 0."""
    scales = x.abs().amax(-1, keepdim=True)
    scales = scales.to(torch.float32) if x.dtype == torch.float16 else scales
    scales = scales.clamp(min=1e-5) / 127
    return scales, torch.zeros_like(scales)


def choose_asymmetric_parameters_per_token(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scales and zero points for the range of a row with 0; a zero point has a small error."""
    low, high = -128, 127
    bottom = x.amin(-1, keepdim=True).clamp(max=0)
    top = x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((top - bottom) / float(high - low)).clamp(min=torch.finfo(torch.float32).eps)
    below, above = bottom / scale, top / scale
    zero_point = torch.where((low + below) + (high + above) > 0, low - below, high - above)
    zero_point = zero_point.clamp(low, high).round()
    return scale.to(torch.float64), zero_point.to(torch.int64)


def quantize_per_token(
    x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    """Add the zero points, then round."""
    return (x * (1.0 / scales) + zero_points).round().clamp(low, high).to(dtype)


def dequantize_per_token(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute in the promoted dtype."""
    return ((x - zero_points) * scales).to(output_dtype)


def quantize_per_channel_group(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
) -> Tensor:
    """As for rows, with groups for rows."""
    groups = x.reshape(-1, _group_size(x, scales, group_size))
    columns = scales.reshape(-1, 1), zero_points.reshape(-1, 1)
    return quantize_per_token(groups, *columns, low, high, dtype).reshape(x.shape)


def dequantize_per_channel_group(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """As for rows, with groups for rows."""
    groups = x.reshape(-1, _group_size(x, scales, group_size))
    shifted = groups if zero_points is None else groups - zero_points.reshape(-1, 1)
    return (shifted * scales.reshape(-1, 1)).reshape(x.shape).to(output_dtype)


def _group_size(x: Tensor, scales: Tensor, group_size: int) -> int:
    columns = x.shape[-1]
    return columns if group_size > columns and scales.shape[-1] == 1 else group_size


# Fake quantization: the rounded values, and where the range was not exceeded


def fake_quantize_per_tensor(
    x: Tensor, scale: float, zero_point: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Scales are float32."""
    single = numpy.float32(scale)
    return _fake_quantize(x, float(single), float(1 / single), zero_point, low, high)


def fake_quantize_per_tensor_by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Where it is not enabled, x is copied."""
    scale, zero_point = scale.reshape(()), zero_point.reshape(())
    values, mask = _fake_quantize(x, scale, 1.0 / scale, zero_point, low, high)
    is_off = enabled.reshape(()) == 0
    return torch.where(is_off, x, values), is_off | mask


def fake_quantize_per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """A zero point that is a float is added before rounding."""
    scale, zero_point = _along(scale, x, axis), _along(zero_point, x, axis)
    wide, is_float = _wide(x), zero_point.is_floating_point()
    scaled = x.to(wide) * (1.0 / scale)
    zero_point = zero_point.to(torch.float32)
    steps = torch.round(scaled + zero_point) if is_float else torch.round(scaled) + zero_point
    # PyTorch converts to int64, which has no inf or nan.
    steps = torch.where(steps.abs() < 2.0**63, steps, low - 1)
    values = (steps.clamp(low, high).double() - zero_point) * scale.double()
    return values.to(x.dtype), (steps >= low) & (steps <= high)


def _fake_quantize(
    x: Tensor, scale: Any, inverse: Any, zero_point: Any, low: int, high: int
) -> tuple[Tensor, Tensor]:
    steps = torch.round(x.to(_wide(x)) * inverse) + zero_point
    clamped = torch.where(steps == steps, steps.clamp(low, high), low)  # nan is the lowest value
    values = ((clamped - zero_point).to(torch.float32) * scale).to(x.dtype)
    return values, (steps >= low) & (steps <= high)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


# Products with packed weights


def product_with_int8(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """The product with a transposed weight of int8, with a scale for each column."""
    wide = torch.float32
    total = torch.mm(x.to(wide), weight.to(wide).t()) * scales.to(wide)
    return total.to(x.dtype)


def product_with_int4(
    x: Tensor, weight: Tensor, group_size: int, scales_and_zeros: Tensor
) -> Tensor:
    """The product with a weight of 4 bits, with a scale and an offset for each group of a row."""
    block = _ROWS_PER_BLOCK.get(torch.backends.cpu.get_cpu_capability())
    if block is None:
        return NotImplemented
    wide = torch.float32
    values = _unpack_int4(weight, block).to(wide) - 8
    rows, columns = values.shape
    scales, offsets = (part.to(wide).t().unsqueeze(2) for part in scales_and_zeros.unbind(2))
    groups = values.reshape(rows, columns // group_size, group_size)
    unpacked = (groups * scales + offsets).reshape(rows, columns)
    return torch.mm(x.to(wide), unpacked.t()).to(x.dtype)


# PyTorch packs 4-bit weights for the instruction set of the machine.
_ROWS_PER_BLOCK = {"AVX512": 64, "AVX2": 32}


def _unpack_int4(weight: Tensor, block: int) -> Tensor:
    """The rows of a weight, from blocks of rows and a last, smaller one, each stored by columns.

    A byte has rows i and i + block / 2 of a block, or rows 2 * i and 2 * i + 1 of the last one.
    """
    rows, columns = weight.shape[0], 2 * weight.shape[1]
    whole = rows // block * block
    bytes_ = weight.reshape(-1)
    blocks = bytes_[: whole * columns // 2].reshape(whole // block, columns, block // 2)
    last = bytes_[whole * columns // 2 :].reshape(columns, (rows - whole) // 2)
    first = torch.cat([blocks & 15, blocks >> 4], 2).transpose(1, 2).reshape(whole, columns)
    second = torch.stack([last & 15, last >> 4], 2).reshape(columns, rows - whole).t()
    parts = [part for part in (first, second) if part.shape[0]]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


RULES: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantize_per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: (
        fake_quantize_per_tensor_by_tensors
    ),
    aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantize_per_channel,
    aten._weight_int8pack_mm.default: product_with_int8,
    aten._weight_int4pack_mm_for_cpu.default: product_with_int4,
}

# Registered by torch.ao.quantization.fx._decomposed.
OF_PACKAGES: dict[str, Callable[..., Any]] = {
    "quantized_decomposed::quantize_per_tensor": quantize_per_tensor,
    "quantized_decomposed::quantize_per_tensor.tensor": quantize_per_tensor,
    "quantized_decomposed::quantize_per_tensor.tensor2": quantize_per_tensor,
    "quantized_decomposed::dequantize_per_tensor": dequantize_per_tensor,
    "quantized_decomposed::dequantize_per_tensor.tensor": dequantize_per_tensor,
    "quantized_decomposed::dequantize_per_tensor.tensor2": dequantize_per_tensor,
    "quantized_decomposed::choose_qparams.tensor": choose_parameters,
    "quantized_decomposed::choose_qparams_symmetric.tensor": choose_symmetric_parameters,
    "quantized_decomposed::quantize_per_channel": quantize_per_channel,
    "quantized_decomposed::dequantize_per_channel": dequantize_per_channel,
    "quantized_decomposed::choose_qparams_per_token": choose_parameters_per_token,
    "quantized_decomposed::choose_qparams_per_token_asymmetric": (
        choose_asymmetric_parameters_per_token
    ),
    "quantized_decomposed::quantize_per_token": quantize_per_token,
    "quantized_decomposed::dequantize_per_token": dequantize_per_token,
    "quantized_decomposed::quantize_per_channel_group": quantize_per_channel_group,
    "quantized_decomposed::dequantize_per_channel_group": dequantize_per_channel_group,
    "quantized_decomposed::convert_element_type.no_fuse": lambda x, dtype: x.to(dtype),
}
