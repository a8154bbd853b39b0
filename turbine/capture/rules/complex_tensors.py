"""Reductions, comparisons, fills and writes of complex tensors, for exported programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.complexes import make_complex, parts

aten = torch.ops.aten


def total(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Part by part; of real numbers with a complex result too."""
    x = x.to(dtype or x.dtype)
    if not x.is_complex():
        return NotImplemented
    if x.dim() == 0:
        return x.clone()
    real, imaginary = (part.sum(dim, keepdim=keepdim) for part in (x.real, x.imag))
    return make_complex(real, imaginary, x.dtype)


def mean(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Part by part."""
    x = x.to(dtype or x.dtype)
    if x.dim() == 0:
        return x.clone()
    axes = dim or [*range(x.dim())]
    real, imaginary = (part.mean(axes, keepdim=keepdim) for part in (x.real, x.imag))
    return make_complex(real, imaginary, x.dtype)


def mean_of_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    """The mean of every element."""
    return mean(x, dtype=dtype)


def product(x: Tensor, *, dtype: Any = None) -> Tensor:
    """The product of every element."""
    return product_along(x.reshape(-1), 0, dtype=dtype)


def product_along(x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product of the lengths, and the sum of the angles."""
    x = x.to(dtype or x.dtype)
    return _combine(x, lambda r: r.prod(dim, keepdim), lambda a: a.sum([dim], keepdim))


def running_product(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The same of the elements up to each."""
    x = x.to(dtype or x.dtype)
    return _combine(x, lambda r: r.cumprod(dim), lambda a: a.cumsum(dim))


def _combine(
    x: Tensor, lengths: Callable[[Tensor], Tensor], angles: Callable[[Tensor], Tensor]
) -> Tensor:
    """The tensor with functions of its lengths and of its angles; one without axes as it is."""
    if x.dim() == 0:
        return x.clone()
    if x.dtype != torch.complex64:
        return NotImplemented
    length, angle = _polar(x)
    return _from_polar(lengths(length), angles(angle), x.dtype)


def running_sum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Part by part."""
    x = x.to(dtype or x.dtype)
    if x.dim() == 0:
        return x.clone()
    return make_complex(x.real.cumsum(dim), x.imag.cumsum(dim), x.dtype)


def _polar(x: Tensor) -> tuple[Tensor, Tensor]:
    """Length and angle in f64."""
    a, b = x.real.to(torch.float64), x.imag.to(torch.float64)
    return torch.sqrt(a * a + b * b), torch.atan2(b, a)


def _from_polar(length: Tensor, angle: Tensor, dtype: torch.dtype) -> Tensor:
    return make_complex(length * torch.cos(angle), length * torch.sin(angle), dtype)


def variance(x: Tensor, dim: Any = None, **options: Any) -> Tensor:
    """The sum of the variances of both parts."""
    return torch.var(x.real, dim, **options) + torch.var(x.imag, dim, **options)


def deviation(x: Tensor, dim: Any = None, **options: Any) -> Tensor:
    """The root of the variance."""
    wide = (part.to(torch.float64) for part in (x.real, x.imag))
    square = sum(torch.var(part, dim, **options) for part in wide)
    return torch.sqrt(torch.as_tensor(square)).to(x.dtype.to_real())


def variance_and_mean(
    x: Tensor, dim: Any = None, *, keepdim: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    """Both; the mean is complex."""
    return variance(x, dim, keepdim=keepdim, **options), mean(x, dim, keepdim)


def equal(x: Tensor, y: Any) -> Tensor:
    """Whether both parts are equal."""
    (a, b), (c, d) = parts(x), parts(y)
    return _compare(torch.eq, a, c) & _compare(torch.eq, b, d)


def unequal(x: Tensor, y: Any) -> Tensor:
    """Whether a part differs."""
    (a, b), (c, d) = parts(x), parts(y)
    return _compare(torch.ne, a, c) | _compare(torch.ne, b, d)


def _compare(op: Any, a: Any, b: Any) -> Any:
    """A comparison of parts, one of which may be a number."""
    return op(a, b) if isinstance(a, Tensor) else op(b, a)


def _of_either_part(op: Any) -> Callable[..., Tensor]:
    """Whether a test is true of a part."""
    return lambda x: op(x.real) | op(x.imag)


def _of_truth(op: Any) -> Callable[..., Tensor]:
    """A logical op of whether numbers are not 0."""

    def apply(x: Tensor, *others: Any) -> Tensor:
        found: Tensor = op(*(v != 0 if isinstance(v, Tensor) else v for v in (x, *others)))
        return found

    return apply


def to_copy(x: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    """Truth, the real part, or both parts in another dtype."""
    if not x.is_complex() or dtype in (None, x.dtype, torch.complex32):
        return NotImplemented
    if dtype.is_complex:
        return make_complex(x.real, x.imag, dtype)
    return x != 0 if dtype == torch.bool else x.real.to(dtype, copy=True)


def full(size: Sequence[int], value: complex, *, dtype: Any = None, **options: Any) -> Tensor:
    """A tensor filled with a complex number."""
    if dtype is None:
        dtype = torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64
    real, imaginary = (
        torch.full(size, part, dtype=dtype.to_real(), device=options.get("device"))
        for part in parts(complex(value))
    )
    return make_complex(real, imaginary, dtype)


def scalar_tensor(value: complex, **options: Any) -> Tensor:
    """The same of rank 0."""
    return full([], value, **options)


def full_like(x: Tensor, value: complex, *, dtype: Any = None, **options: Any) -> Tensor:
    """The same of the size of a tensor."""
    dtype = dtype or x.dtype
    return full(x.shape, value, dtype=dtype) if dtype.is_complex else NotImplemented


def add_product(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """A matmul and an add."""
    scaled = aten.mm.default(a, b)
    scaled = scaled if alpha == 1 else scaled * alpha
    return scaled if beta == 0 else scaled + (x if beta == 1 else x * beta)


def _by_parts(op: Any) -> Callable[..., Tensor]:
    """An op that moves numbers or adds them: on both parts of all complex operands."""

    def apply(x: Tensor, *args: Any, **options: Any) -> Tensor:
        values = [parts(v) if _is_number(v) else (v, v) for v in (x, *args)]
        real, imaginary = (op(*given, **options) for given in zip(*values, strict=True))
        return make_complex(real, imaginary, x.dtype)

    return apply


def _is_number(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex())


def fill_places(x: Tensor, dim: int, index: Tensor, value: complex) -> Tensor:
    """Write a number to places along an axis."""
    return aten.scatter.src(x, dim, index, torch.full(index.shape, value, dtype=x.dtype))


def nan_to_num(x: Tensor, *limits: Any, **options: Any) -> Tensor:
    """Part by part."""
    real, imaginary = (torch.nan_to_num(part, *limits, **options) for part in (x.real, x.imag))
    return make_complex(real, imaginary, x.dtype)


_MOVING = (
    aten.scatter.src,
    aten.scatter_add.default,
    aten.index_add.default,
    aten.index_put.default,
)

OF_COMPLEX: dict[Any, Callable[..., Any]] = {
    aten.sum.default: lambda x, *, dtype=None: total(x, dtype=dtype),
    aten.sum.dim_IntList: total,
    aten.mean.default: mean_of_all,
    aten.mean.dim: mean,
    aten.prod.default: product,
    aten.prod.dim_int: product_along,
    aten.cumsum.default: running_sum,
    aten.cumprod.default: running_product,
    aten.var.correction: variance,
    aten.std.correction: deviation,
    aten.var_mean.correction: variance_and_mean,
    aten.eq.Tensor: equal,
    aten.eq.Scalar: equal,
    aten.ne.Tensor: unequal,
    aten.ne.Scalar: unequal,
    aten.isnan.default: _of_either_part(torch.isnan),
    aten.isinf.default: _of_either_part(torch.isinf),
    aten.any.default: _of_truth(aten.any.default),
    aten.any.dim: _of_truth(aten.any.dim),
    aten.any.dims: _of_truth(aten.any.dims),
    aten.all.default: _of_truth(aten.all.default),
    aten.all.dim: _of_truth(aten.all.dim),
    aten.all.dims: _of_truth(aten.all.dims),
    aten.logical_not.default: _of_truth(aten.logical_not.default),
    aten.logical_and.default: _of_truth(aten.logical_and.default),
    aten.logical_or.default: _of_truth(aten.logical_or.default),
    aten.logical_xor.default: _of_truth(aten.logical_xor.default),
    aten._to_copy.default: to_copy,
    aten.full.default: full,
    aten.full_like.default: full_like,
    aten.scalar_tensor.default: scalar_tensor,
    aten.addmm.default: add_product,
    aten.nan_to_num.default: nan_to_num,
    aten.scatter.value: fill_places,
    **{op: _by_parts(op) for op in _MOVING},
}
