"""Rules of the ops that generated kernels fuse: an ATen op in, an expression of tiles out.

Pointwise ops compute as PyTorch's kernels do: in the promoted dtype, floats of 16 bits in f32, with
a result that is rounded to the dtype of the op's. Rows are along the last axis of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes

import turbine.kernel.lang as tkl
from turbine import dtypes
from turbine.dtypes import Dtype
from turbine.kernel.trace.tracer import Tile

aten = torch.ops.aten

# From the call of an op and its operands to the tiles of its results.
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
# Ops that reduce each row of their first operand, or compute with all of it.
OF_ROWS: set[Any] = set()
# Ops whose kernel alone may be faster than PyTorch's.
ALONE: set[Any] = set()


@dataclass(frozen=True)
class Call:
    """An op that is fused: its node, and the elements of a row."""

    node: fx.Node
    columns: int

    @property
    def result(self) -> Any:
        """The fake result."""
        return self.node.meta["val"]

    def out(self, operand: Any) -> Any:
        """An operand in the dtype of the result; numbers are as they are."""
        return operand.to(_row(self.result.dtype)) if isinstance(operand, Tile) else operand


def rule(*ops: Any, rows: bool = False, alone: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for some ops."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, made))
        OF_ROWS.update(ops if rows else ())
        ALONE.update(ops if alone else ())
        return made

    return register


def apply(call: Call, args: Sequence[Any], keywords: dict[str, Any]) -> tuple[Tile, ...]:
    """The tiles of an op's results, in their dtypes."""
    made = RULES[call.node.target](call, *args, **keywords)
    values = call.result if isinstance(call.result, (tuple, list)) else (call.result,)
    tiles = made if isinstance(made, tuple) else (made,)
    return tuple(tile.to(_row(v.dtype)) for tile, v in zip(tiles, values, strict=True))


def _row(dtype: torch.dtype) -> Dtype:
    return dtypes.of_torch(dtype)


def _wide(x: Any) -> Any:
    """A tile in the dtype in which PyTorch computes norms and the like of it."""
    return x.to(tkl.f32) if x.dtype.bits < 32 else x


# Pointwise ops


def _pointwise(
    make: Callable[..., Any], *ops: Any, kind: PROMOTION = PROMOTION.DEFAULT, count: int = 0
) -> None:
    """Register an op whose first `count` operands, or all, are promoted to one dtype."""

    def convert(call: Call, *args: Any, **keywords: Any) -> Any:
        places = range(count or len(args))
        given = [_value(call.node.args[place]) for place in places]
        compute, _ = elementwise_dtypes(
            *[one for one in given if one is not None], type_promotion_kind=kind
        )
        operands = [
            one.to(_row(compute)) if isinstance(one, Tile) and place in places else one
            for place, one in enumerate(args)
        ]
        return make(*operands, **keywords)

    RULES.update(dict.fromkeys(ops, convert))


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


_FLOAT, _BOOL = PROMOTION.INT_TO_FLOAT, PROMOTION.ALWAYS_BOOL


def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + (y if alpha == 1 else y * alpha)


def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


_pointwise(_add, aten.add.Tensor, aten.add.Scalar, count=2)
_pointwise(_sub, aten.sub.Tensor, aten.sub.Scalar, count=2)
_pointwise(lambda x, y, alpha=1: _sub(y, x, alpha), aten.rsub.Scalar, count=2)
_pointwise(lambda x, y: x * y, aten.mul.Tensor, aten.mul.Scalar)
_pointwise(lambda x, y: x / y, aten.div.Tensor, aten.div.Scalar, kind=_FLOAT)
_pointwise(lambda x: -x, aten.neg.default)
_pointwise(tkl.abs, aten.abs.default)
_pointwise(tkl.maximum, aten.maximum.default)
_pointwise(tkl.minimum, aten.minimum.default)
_pointwise(lambda x: tkl.maximum(x, 0), aten.relu.default)
for _op, _function in {
    aten.exp: tkl.exp,
    aten.exp2: tkl.exp2,
    aten.expm1: tkl.expm1,
    aten.log: tkl.log,
    aten.log2: tkl.log2,
    aten.log1p: tkl.log1p,
    aten.sqrt: tkl.sqrt,
    aten.rsqrt: tkl.rsqrt,
    aten.sin: tkl.sin,
    aten.cos: tkl.cos,
    aten.tanh: tkl.tanh,
    aten.erf: tkl.erf,
    aten.sigmoid: tkl.sigmoid,
}.items():
    _pointwise(_function, _op.default, kind=_FLOAT)
_pointwise(lambda x: 1 / x, aten.reciprocal.default, kind=_FLOAT)
_pointwise(lambda x, y: x == y, aten.eq.Tensor, aten.eq.Scalar, kind=_BOOL)
_pointwise(lambda x, y: x != y, aten.ne.Tensor, aten.ne.Scalar, kind=_BOOL)
_pointwise(lambda x, y: x < y, aten.lt.Tensor, aten.lt.Scalar, kind=_BOOL)
_pointwise(lambda x, y: x <= y, aten.le.Tensor, aten.le.Scalar, kind=_BOOL)
_pointwise(lambda x, y: x > y, aten.gt.Tensor, aten.gt.Scalar, kind=_BOOL)
_pointwise(lambda x, y: x >= y, aten.ge.Tensor, aten.ge.Scalar, kind=_BOOL)
_pointwise(lambda x, y: x & y, aten.bitwise_and.Tensor)
_pointwise(lambda x, y: x | y, aten.bitwise_or.Tensor)
_pointwise(lambda x: ~x, aten.bitwise_not.default)


@rule(aten.logical_not.default)
def _(call: Call, x: Tile) -> Any:
    return x == 0


@rule(aten.logical_and.default)
def _(call: Call, x: Tile, y: Tile) -> Any:
    return (x != 0) & (y != 0)


@rule(aten.logical_or.default)
def _(call: Call, x: Tile, y: Tile) -> Any:
    return (x != 0) | (y != 0)


@rule(aten._to_copy.default)
def _(call: Call, x: Tile, **_: Any) -> Any:
    return x


@rule(aten.clone.default)
def _(call: Call, x: Tile, memory_format: Any = None) -> Any:
    return x


@rule(aten.where.self)
def _(call: Call, condition: Tile, x: Any, y: Any) -> Any:
    return tkl.where(condition, call.out(x), call.out(y))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _(call: Call, x: Tile, mask: Tile, value: Any) -> Any:
    return tkl.where(mask, call.out(value), x)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else tkl.maximum(x, low)
    return x if high is None else tkl.minimum(x, high)


_pointwise(_clamp, aten.clamp.default, aten.clamp_min.default)
_pointwise(lambda x, low=-1, high=1: _clamp(x, low, high), aten.hardtanh.default)
_pointwise(lambda x, high: tkl.minimum(x, high), aten.clamp_max.default)
_pointwise(lambda x, slope=0.01: tkl.where(x > 0, x, x * slope), aten.leaky_relu.default, count=1)
# Exponents for which PyTorch multiplies, divides or takes roots.
_POWERS: dict[float, Callable[[Any], Any]] = {
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: tkl.sqrt,
    -0.5: tkl.rsqrt,
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}
_pointwise(lambda x, y: _POWERS[y](x), aten.pow.Tensor_Scalar, count=1)

# Activations, and the gradients that PyTorch has ops for

_SQRT_HALF, _SQRT_2_OVER_PI, _CUBIC = math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return x * 0.5 * (1 + tkl.erf(x * _SQRT_HALF))
    return 0.5 * x * (1 + tkl.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)))


def _gelu_backward(grad: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        density = tkl.exp(x * x * -0.5) * (0.5 * _SQRT_2_OVER_PI)
        return grad * (0.5 * (1 + tkl.erf(x * _SQRT_HALF)) + x * density)
    tanh = tkl.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x * x)
    return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)


def _silu_backward(grad: Any, x: Any) -> Any:
    sigmoid = tkl.sigmoid(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))


_pointwise(_gelu, aten.gelu.default, count=1)
_pointwise(_gelu_backward, aten.gelu_backward.default, count=2)
_pointwise(lambda x: x * tkl.sigmoid(x), aten.silu.default)
_pointwise(_silu_backward, aten.silu_backward.default)
_pointwise(lambda grad, y: grad * (1 - y) * y, aten.sigmoid_backward.default)
_pointwise(lambda grad, y: grad * (1 - y * y), aten.tanh_backward.default)
_pointwise(
    lambda grad, x, least: tkl.where(x <= least, 0, grad),
    aten.threshold_backward.default,
    count=2,
)


@rule(aten.native_dropout_backward.default)
def _(call: Call, grad: Tile, mask: Tile, scale: float) -> Any:
    return _wide(grad) * mask.to(_wide(grad).dtype) * scale


# Rows


def _sum(x: Any) -> Any:
    return tkl.sum(x, axis=-1, keepdims=True)


def _max(x: Any) -> Any:
    return tkl.max(x, axis=-1, keepdims=True)


@rule(aten.sum.dim_IntList, rows=True)
def _(call: Call, x: Tile, *_: Any, **__: Any) -> Any:
    wanted = _row(call.result.dtype)
    return _sum(_wide(x.to(wanted)))


@rule(aten.mean.dim, rows=True)
def _(call: Call, x: Tile, *_: Any, **__: Any) -> Any:
    return _sum(_wide(call.out(x))) / call.columns


@rule(aten.amax.default, rows=True)
def _(call: Call, x: Tile, *_: Any) -> Any:
    return _max(x)


@rule(aten.amin.default, rows=True)
def _(call: Call, x: Tile, *_: Any) -> Any:
    return tkl.min(x, axis=-1, keepdims=True)


def _variance(call: Call, x: Any, correction: float) -> tuple[Any, Any]:
    """The variance of each row, and its mean."""
    mean = _sum(x) / call.columns
    centered = x - mean
    return _sum(centered * centered) / (call.columns - correction), mean


def _correction(correction: Any = None, **_: Any) -> float:
    return 1 if correction is None else correction


@rule(aten.var.correction, rows=True)
def _(call: Call, x: Tile, *_: Any, **keywords: Any) -> Any:
    return _variance(call, _wide(x), _correction(**keywords))[0]


@rule(aten.var_mean.correction, rows=True)
def _(call: Call, x: Tile, *_: Any, **keywords: Any) -> Any:
    return _variance(call, _wide(x), _correction(**keywords))


@rule(aten._softmax.default, rows=True, alone=True)
def _(call: Call, x: Tile, *_: Any) -> Any:
    wide = _wide(x)
    powers = tkl.exp(wide - _max(wide))
    return powers / _sum(powers)


@rule(aten._log_softmax.default, rows=True, alone=True)
def _(call: Call, x: Tile, *_: Any) -> Any:
    wide = _wide(x)
    shifted = wide - _max(wide)
    return shifted - tkl.log(_sum(tkl.exp(shifted)))


@rule(aten._softmax_backward_data.default, rows=True, alone=True)
def _(call: Call, grad: Tile, y: Tile, *_: Any) -> Any:
    grad, y = _wide(grad), _wide(y)
    return y * (grad - _sum(grad * y))


@rule(aten._log_softmax_backward_data.default, rows=True, alone=True)
def _(call: Call, grad: Tile, y: Tile, *_: Any) -> Any:
    grad, y = _wide(grad), _wide(y)
    return grad - tkl.exp(y) * _sum(grad)


@rule(aten.native_layer_norm.default, rows=True, alone=True)
def _(call: Call, x: Tile, shape: Any, weight: Tile | None, bias: Tile | None, eps: float) -> Any:
    wide = _wide(x)
    variance, mean = _variance(call, wide, 0)
    scale = tkl.rsqrt(variance + eps)
    y = (wide - mean) * scale
    y = y if weight is None else y * _wide(weight)
    return (y if bias is None else y + _wide(bias)), mean, scale


@rule(aten._fused_rms_norm.default, rows=True, alone=True)
def _(call: Call, x: Tile, shape: Any, weight: Tile | None, eps: float) -> Any:
    wide = _wide(x)
    scale = tkl.rsqrt(_sum(wide * wide) / call.columns + eps)
    y = wide * scale
    return (y if weight is None else y * _wide(weight)), scale


# What a node has to be for its rule to hold


def _is_last(node: fx.Node, axes: Any, rank: int) -> bool:
    listed = axes if isinstance(axes, (tuple, list)) else [axes]
    return len(listed) == 1 and listed[0] % rank == rank - 1


def reduces_rows(node: fx.Node) -> bool:
    """Whether an op of `OF_ROWS` is along the last axis."""
    x = node.args[0].meta["val"]  # type: ignore[union-attr]
    if not x.dim():
        return False
    if node.target in _OF_SHAPE:
        return len(node.args[1]) == 1  # type: ignore[arg-type]
    place = _AXES[node.target]
    axes = node.args[place] if len(node.args) > place else node.kwargs.get("dim")
    return axes is not None and _is_last(node, axes, x.dim())


_OF_SHAPE = {aten.native_layer_norm.default, aten._fused_rms_norm.default}
_AXES = dict.fromkeys(OF_ROWS, 1) | {
    aten._softmax_backward_data.default: 2,
    aten._log_softmax_backward_data.default: 2,
}


def holds(node: fx.Node) -> bool:
    """Whether the rule of an op holds for its arguments."""
    target, value = node.target, node.meta["val"]
    results = value if isinstance(value, (tuple, list)) else (value,)
    operands = [one.meta["val"].dtype for one in node.all_input_nodes]
    if not {one.dtype for one in results} | {*operands} <= _DTYPES:
        return False
    if target in _FLOATS_ONLY and not all(dtype.is_floating_point for dtype in operands):
        return False
    if target in _NOT_OF_BOOLS and value.dtype == torch.bool:
        return False
    if target is aten.pow.Tensor_Scalar:
        return node.args[1] in _POWERS and value.dtype.is_floating_point
    if target is aten._fused_rms_norm.default:
        return node.args[3] is not None
    return target is not aten._to_copy.default or _is_conversion(node)


def _is_conversion(node: fx.Node) -> bool:
    """Whether a copy changes the dtype alone; PyTorch leaves large floats as integers open."""
    source, result = node.all_input_nodes[0].meta["val"], node.meta["val"]
    is_cut = source.dtype.is_floating_point and not result.dtype.is_floating_point
    given = {key for key, value in node.kwargs.items() if value not in (None, False)}
    is_plain = source.device == result.device and given <= {"dtype", "memory_format", "device"}
    return is_plain and (not is_cut or result.dtype == torch.bool)


_DTYPES = {
    torch.bool,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_NOT_OF_BOOLS = {
    aten.add.Tensor,
    aten.add.Scalar,
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.maximum.default,
    aten.minimum.default,
    aten.abs.default,
}
_FLOATS_ONLY = {
    *OF_ROWS,
    aten.gelu.default,
    aten.gelu_backward.default,
    aten.silu.default,
    aten.silu_backward.default,
    aten.sigmoid_backward.default,
    aten.tanh_backward.default,
    aten.leaky_relu.default,
}
