"""Matmuls with weights of 4 or 8 bits: a weight is packed once, and used packed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from turbine import errors, packed_weights
from turbine.capture import grouped_product
from turbine.capture.grouped_product import Packed
from turbine.ops.argument_checks import require, require_floats, shape
from turbine.ops.declaration import custom_op

_NAME = "turbine::quantized_matmul"


def pack_weight(weight: Tensor, *, bits: int = 4, group_size: int = 32) -> Packed:
    """Quantize a weight of [outputs, columns] to integers with a scale for each group of columns.

    Args:
        weight: a matrix of floats.
        bits: 4 or 8.
        group_size: columns per scale.

    >>> import torch, turbine.ops
    >>> packed = turbine.ops.pack_weight(torch.eye(64), bits=8)
    >>> (packed.nbytes, torch.equal(packed.unpacked(), torch.eye(64)))
    (4352, True)
    """
    packed_weights.check(bits, group_size, errors.ConfigError)
    require_floats("pack_weight", weight=weight)
    fact = f"weight has shape {shape(weight)}, expected [outputs, columns]"
    require(weight.dim() == 2 and weight.numel() > 0, "pack_weight", f"{fact}, none of them 0")
    require(bool(weight.isfinite().all()), "pack_weight", "weight holds inf or nan")
    return grouped_product.pack(weight, bits, group_size)


def quantized_matmul(x: Tensor, packed: Packed) -> Tensor:
    """x [..., columns] times a packed weight: [..., outputs], computed in float32.

    >>> import torch, turbine.ops
    >>> packed = turbine.ops.pack_weight(torch.eye(64), bits=8)
    >>> turbine.ops.quantized_matmul(torch.ones(2, 64), packed).shape
    torch.Size([2, 64])
    """
    product: Tensor = _op(x, *packed.arguments)
    return product


@custom_op(
    f"{_NAME}(Tensor x, Tensor values, Tensor scales, float factor, int columns, int bits) "
    "-> Tensor",
    static={"x": [-1], "values": True, "scales": True},
)
def _op(
    x: Tensor, values: Tensor, scales: Tensor, factor: float, columns: int, bits: int
) -> Tensor:
    require_floats(_NAME, x=x)
    fact = f"x has shape {shape(x)}, expected [..., {columns}], the columns of the weight"
    require(x.dim() >= 1 and x.shape[-1] == columns, _NAME, fact)
    rows = x.reshape(-1, columns).float()
    y: Tensor = grouped_product.GROUPED_PRODUCT(rows, values, scales, factor, columns, bits)
    return y.reshape(*x.shape[:-1], values.shape[0]).to(x.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, scales, *ctx.rest = inputs
    ctx.save_for_backward(values, scales)
    ctx.dtype = x.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """A packed weight is a constant."""
    weight = grouped_product.unpack(*ctx.saved_tensors, *ctx.rest)
    return (grad.float() @ weight).to(ctx.dtype), None, None, None, None, None


_op.register_autograd(_backward, setup_context=_setup_context)
