"""ATen ops with arguments and dtypes: a row for each rule and its corner cases.

tests/capture/test_rule_table.py runs them. A new rule is a row here.
"""

from __future__ import annotations

import torch

from tests.capture.rule_rows import (
    ANY,
    BOOL,
    COMPLEX,
    CORNERS,
    FITTED,
    FLOATS,
    HALVES,
    IMAGE,
    INF,
    INTEGERS,
    LINE,
    LONG_TIES,
    MATRIX,
    NAN,
    NUMBERS,
    PLANE,
    TIES,
    VECTOR,
    VOLUME,
    WIDE,
    Row,
    both,
    defaults,
    each,
    half_more,
    index_put,
    indices,
    number_first,
    numbers,
    padded,
    put,
    scattered,
    x_and,
)
from tests.capture.rule_table_layers import LAYERS
from tests.capture.rule_table_matrices import MATRICES

aten = torch.ops.aten

COMPARISONS = [
    (aten.eq.Tensor, aten.eq.Scalar),
    (aten.ne.Tensor, aten.ne.Scalar),
    (aten.lt.Tensor, aten.lt.Scalar),
    (aten.le.Tensor, aten.le.Scalar),
    (aten.gt.Tensor, aten.gt.Scalar),
    (aten.ge.Tensor, aten.ge.Scalar),
]
ARITHMETIC = [
    *each([of_tensors for of_tensors, _ in COMPARISONS], ANY, CORNERS, both),
    *each(
        [of_tensors for of_tensors, _ in COMPARISONS],
        ANY,
        CORNERS,
        lambda x, y: (x, y.to(torch.float64)),
    ),
    *[
        Row(of_number, ANY, CORNERS, x_and(number))
        for _, of_number in COMPARISONS
        for number in (-1, 2, 2.5)
    ],
    Row(aten.eq.Tensor, FLOATS, CORNERS, lambda x, y: (x, x)),
    *[
        Row(aten.pow.Tensor_Scalar, FLOATS, CORNERS, x_and(exponent))
        for exponent in (-3, -2, -1, -1.5, 3)
    ],
    # In float16, eager's roots of -0.0 and -inf depend on the length of the tensor.
    *[
        Row(aten.pow.Tensor_Scalar, (*WIDE, torch.bfloat16), CORNERS, x_and(exponent))
        for exponent in (-0.5, 0.5)
    ],
    *[Row(aten.pow.Tensor_Scalar, INTEGERS, CORNERS, x_and(exponent)) for exponent in (2, 3, 0.5)],
    Row(aten.pow.Tensor_Tensor, WIDE, CORNERS, both),
    Row(aten.pow.Scalar, WIDE, CORNERS, number_first(-2.0)),
    Row(aten.pow.Tensor_Tensor, (torch.int64,), CORNERS, lambda x, y: (x, y.abs() % 9)),
    Row(aten.pow.Scalar, (torch.int64,), CORNERS, lambda x, y: (-3, y.abs() % 9)),
    Row(aten.reciprocal.default, NUMBERS, CORNERS),
    *[
        Row(aten.div.Tensor_mode, NUMBERS, CORNERS, both, {"rounding_mode": mode})
        for mode in ("floor", "trunc")
    ],
    *[
        Row(aten.div.Scalar_mode, NUMBERS, CORNERS, x_and(7), {"rounding_mode": mode})
        for mode in ("floor", "trunc")
    ],
    *each(
        [aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor],
        (*WIDE, *INTEGERS),
        CORNERS,
        both,
    ),
    *each(
        [aten.floor_divide.Scalar, aten.remainder.Scalar, aten.fmod.Scalar],
        (*WIDE, *INTEGERS),
        CORNERS,
        x_and(7),
    ),
    *each(
        [aten.floor_divide.Scalar, aten.remainder.Scalar, aten.fmod.Scalar],
        WIDE,
        CORNERS,
        x_and(3.0),
    ),
    Row(aten.remainder.Scalar_Tensor, (*WIDE, *INTEGERS), CORNERS, number_first(100)),
    *each([aten.gcd.default, aten.lcm.default], (torch.int64,), CORNERS, both),
    *each([aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar], INTEGERS, CORNERS, x_and(6)),
    *each(
        [
            aten.bitwise_and.Scalar_Tensor,
            aten.bitwise_or.Scalar_Tensor,
            aten.bitwise_xor.Scalar_Tensor,
        ],
        INTEGERS,
        CORNERS,
        number_first(6),
    ),
    *each(
        [aten.bitwise_left_shift.Scalar_Tensor, aten.bitwise_right_shift.Scalar_Tensor],
        INTEGERS,
        CORNERS,
        lambda x, y: (100, y.abs() % 7),
    ),
    *each([aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor], NUMBERS, CORNERS, both),
    *each([aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar], NUMBERS, CORNERS, x_and(3)),
    *each([aten.neg.default, aten.abs.default], NUMBERS, CORNERS),
    Row(aten.div.Tensor, NUMBERS, CORNERS, both),
    Row(aten.bitwise_not.default, (*INTEGERS, *BOOL), CORNERS),
    Row(aten.__rshift__.Scalar, INTEGERS, CORNERS, x_and(1)),
    *each([aten.any.default, aten.all.default], ANY, MATRIX),
    *each([aten.any.dim, aten.all.dim], ANY, MATRIX, x_and(1)),
    *each([aten.any.dims, aten.all.dims], ANY, MATRIX, x_and([1])),
    Row(aten.linspace.default, WIDE, VECTOR, lambda x, y: (-1, 1, 27)),
    *[
        Row(aten.arange.start_step, WIDE[:1], VECTOR, numbers(*steps), options)
        for steps in ((0.0, 1.0, 0.1), (0, 1, 0.3), (1.0, 0.0, -0.1), (0, 7, 1))
        for options in ({}, *({"dtype": dtype} for dtype in HALVES))
    ],
    Row(aten.constant_pad_nd.default, FLOATS, MATRIX, x_and([1, 1], 0.1)),
    Row(aten.copysign.Tensor, ANY, CORNERS, both),
    Row(aten.copysign.Scalar, ANY, CORNERS, x_and(-2)),
    Row(aten.atan2.default, (*WIDE, *INTEGERS, *BOOL), CORNERS, both),
    Row(aten.atan2.default, INTEGERS, CORNERS, lambda x, y: (x - x[0], y - y[0])),
    Row(aten.mul.Tensor, ANY, CORNERS, lambda x, y: (x.float(), y)),
    Row(aten.hypot.default, FLOATS, CORNERS, both),
    *each(
        [aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default],
        ANY,
        CORNERS,
        both,
    ),
    Row(aten.clamp.default, NUMBERS, CORNERS, x_and(3, 100)),
    Row(aten.clamp.default, FLOATS, CORNERS, x_and(-0.5, 2.0)),
    Row(aten.clamp.Tensor, NUMBERS, CORNERS, lambda x, y: (x, y, y + 2)),
    *each([aten.clamp_min.default, aten.clamp_max.default], NUMBERS, CORNERS, x_and(3)),
    Row(aten.clamp_min.default, FLOATS, LINE, x_and(0.25)),
    *each([aten.clamp_min.Tensor, aten.clamp_max.Tensor], NUMBERS, CORNERS, both),
    Row(aten.hardtanh.default, FLOATS, LINE),
]
FUNCTIONS = [
    *each(
        defaults(
            "sin cos tan asin acos atan sinh asinh atanh tanh exp expm1 log log1p log2 log10 erf "
            "erfc sigmoid signbit relu round softplus hardsigmoid gelu elu"
        ),
        WIDE,
        LINE,
    ),
    Row(aten.gelu.default, WIDE, LINE, options={"approximate": "tanh"}),
    *each(
        defaults(
            "lgamma digamma erfinv special_ndtri special_erfcx angle i0 special_i0e special_i1 "
            "special_i1e special_modified_bessel_i0 special_modified_bessel_i1 "
            "special_modified_bessel_k0 special_modified_bessel_k1 "
            "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
            "special_spherical_bessel_j0"
        ),
        WIDE,
        FITTED,
    ),
    *each(
        defaults("special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1"),
        (torch.float32,),
        FITTED,
    ),
    Row(aten.polygamma.default, WIDE, FITTED, lambda x, y: (2, x)),
]
_EXPONENTS = (0, 1, 2, 3, 5, -1, -2, 0.5, -0.5, 2.5, 1 - 2j)
_AS_COMPLEX = {"dtype": torch.complex64}
COMPLEXES = [
    *each([aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor], COMPLEX, MATRIX, both),
    *each([aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar], COMPLEX, MATRIX, x_and(2.5)),
    *each(
        defaults("neg conj_physical _conj_physical _conj abs angle exp reciprocal sigmoid"),
        COMPLEX,
        MATRIX,
    ),
    *each(
        defaults(
            "sqrt rsqrt log log2 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh "
            "atanh sgn isnan isinf logical_not"
        ),
        COMPLEX,
        PLANE,
    ),
    *each(
        defaults("sqrt log log10 expm1 exp2 tanh sum mean prod any all nan_to_num isnan isinf sgn"),
        COMPLEX,
        MATRIX,
    ),
    *[Row(aten.pow.Tensor_Scalar, COMPLEX, MATRIX, x_and(p)) for p in _EXPONENTS],
    Row(aten.pow.Tensor_Scalar, COMPLEX, PLANE, x_and(0.5)),
    Row(aten.pow.Tensor_Scalar, WIDE, MATRIX, x_and(1 + 2j)),
    Row(aten.pow.Tensor_Tensor, COMPLEX, MATRIX, both),
    Row(aten.pow.Tensor_Tensor, COMPLEX, MATRIX, lambda x, y: (x, y.real)),
    Row(aten.pow.Scalar, COMPLEX, MATRIX, number_first(2.0)),
    Row(aten.div.Tensor, COMPLEX, MATRIX, both),
    Row(aten.div.Tensor, COMPLEX, MATRIX, lambda x, y: (x.real, y)),
    Row(aten.div.Tensor, COMPLEX, MATRIX, lambda x, y: (x, y.real)),
    Row(aten.div.Tensor, COMPLEX, MATRIX, lambda x, y: (x, 0 * y.real)),
    *[Row(aten.div.Scalar, COMPLEX, MATRIX, x_and(number)) for number in (2.0, 1 - 2j)],
    Row(aten.lerp.Scalar, COMPLEX, MATRIX, lambda x, y: (x, y, 0.25)),
    Row(aten.lerp.Scalar, COMPLEX, MATRIX, lambda x, y: (x, y, 1j)),
    *each([aten.cumsum.default, aten.cumprod.default], COMPLEX, MATRIX, x_and(0)),
    *each([aten.sum.dim_IntList, aten.mean.dim], COMPLEX, MATRIX, x_and([1], True)),
    *[Row(op, COMPLEX, VECTOR, lambda x, y: (x[0],)) for op in defaults("sum mean prod")],
    Row(aten.sum.default, (torch.float32,), MATRIX, options={"dtype": torch.complex64}),
    *each([aten.prod.dim_int, aten.any.dim, aten.all.dim], COMPLEX, MATRIX, x_and(1)),
    *each([aten.any.dims, aten.all.dims], COMPLEX, MATRIX, x_and([0, 1])),
    *each(
        [aten.var.correction, aten.std.correction, aten.var_mean.correction],
        COMPLEX,
        MATRIX,
        x_and([1]),
    ),
    *each([aten.eq.Tensor, aten.ne.Tensor], COMPLEX, PLANE, both),
    *each([aten.eq.Scalar, aten.ne.Scalar], COMPLEX, PLANE, x_and(1 - 1j)),
    *each(defaults("logical_and logical_or logical_xor"), COMPLEX, PLANE, both),
    *[
        Row(aten._to_copy.default, COMPLEX, MATRIX, options={"dtype": dtype})
        for dtype in (torch.bool, torch.float32, torch.complex128)
    ],
    Row(aten.full.default, COMPLEX, MATRIX, lambda x, y: ([2, 3], 1 + 2j)),
    Row(aten.scalar_tensor.default, COMPLEX, MATRIX, lambda x, y: (1 + 2j,), _AS_COMPLEX),
    Row(aten.full_like.default, COMPLEX, MATRIX, x_and(1 + 2j)),
    Row(
        aten.addmm.default,
        COMPLEX,
        MATRIX,
        lambda x, y: (x[:, :4], x, y.t().contiguous()),
        {"beta": 2, "alpha": 1j},
    ),
    *each(
        [aten.scatter.src, aten.scatter_add.default],
        COMPLEX,
        MATRIX,
        lambda x, y: (x, 1, indices(0, 2, 3).expand(4, 3), y),
    ),
    Row(aten.scatter.value, COMPLEX, VECTOR, lambda x, y: (x, 0, indices(0, 2), 1j)),
    Row(aten.index_add.default, COMPLEX, VECTOR, lambda x, y: (x, 0, indices(0, 0, 2), y[:3])),
    Row(aten.index_put.default, COMPLEX, VECTOR, lambda x, y: (x, [indices(0, 2)], y[:2])),
    Row(aten.polar.default, WIDE, MATRIX, both),
    Row(aten._to_copy.default, WIDE, MATRIX, options={"dtype": torch.complex64}),
    Row(aten._fft_c2c.default, COMPLEX, MATRIX, lambda x, y: (x[:2, :3], [0, 1], 0, True)),
    Row(aten._fft_c2c.default, COMPLEX, VECTOR, x_and([0], 2, False)),
    Row(aten._fft_r2c.default, (torch.float32,), VECTOR, x_and([0], 0, True)),
    Row(aten._fft_c2r.default, COMPLEX, VECTOR, lambda x, y: (x[:4], [0], 2, 7)),
]
ALONG_AXES = [
    Row(aten.sum.dim_IntList, ANY, MATRIX, x_and([1])),
    Row(aten.mean.dim, FLOATS, MATRIX, x_and([1])),
    Row(aten.mean.default, FLOATS, MATRIX),
    *each([aten.cumsum.default, aten.cumprod.default], ANY, MATRIX, x_and(1)),
    Row(aten.sum.default, ANY, MATRIX),
    Row(aten.prod.default, ANY, MATRIX),
    Row(aten.max.default, ANY, MATRIX),
    *each(
        [aten._softmax.default, aten._log_softmax.default],
        FLOATS,
        MATRIX,
        x_and(1, False),
    ),
    Row(aten.logcumsumexp.default, WIDE, MATRIX, x_and(1)),
    *[
        Row(aten.linalg_vector_norm.default, FLOATS, MATRIX, x_and(p, [1]))
        for p in (0, 1, 2, 3, INF)
    ],
    *each(
        [aten.var_mean.correction, aten.var.correction, aten.std.correction],
        FLOATS,
        MATRIX,
        x_and([1]),
    ),
    Row(aten.var.correction, FLOATS, MATRIX, x_and([1]), {"correction": 6}),
    Row(aten._softmax.default, FLOATS, VECTOR, lambda x, y: (x[1], 0, False)),
    Row(aten.histc.default, WIDE, MATRIX, x_and(5, -2, 2)),
]
SORTED = (torch.float32, torch.float64, *INTEGERS)
ORDERING = [
    *[
        Row(aten.sort.stable, ANY, operands, options={"stable": True, "descending": descending})
        for operands in (TIES, LONG_TIES)
        for descending in (False, True)
    ],
    Row(aten.sort.default, SORTED, TIES, compared=1),
    *[
        Row(
            aten.topk.default,
            SORTED,
            operands,
            x_and(k, 1, most),
            compared=1,
        )
        for operands, k, most in ((TIES, 3, True), (LONG_TIES, 5, False), (LONG_TIES, 150, True))
    ],
    Row(aten.kthvalue.default, SORTED, TIES, x_and(4), compared=1),
    *[Row(aten.kthvalue.default, SORTED, LONG_TIES, x_and(k), compared=1) for k in (20, 199)],
    *each([aten.median.dim, aten.nanmedian.dim], SORTED, TIES, x_and(1), compared=1),
    *each([aten.median.default, aten.nanmedian.default], SORTED, TIES),
    Row(aten.nanmedian.dim, SORTED, LONG_TIES, x_and(1), compared=1),
    *each([aten.argmax.default, aten.argmin.default], SORTED, TIES),
    *each([aten.argmax.default, aten.argmin.default], SORTED, TIES, x_and(1)),
    *each([aten.max.dim, aten.min.dim], SORTED, TIES, x_and(1)),
    *each([aten.amax.default, aten.amin.default], ANY, TIES, x_and([1])),
    Row(aten.amax.default, ANY, TIES),
    *each([aten.amax.default, aten.amin.default], ANY, VECTOR, lambda x, y: (x[1],)),
    *each([aten.cummax.default, aten.cummin.default], SORTED, TIES, x_and(1)),
    Row(aten.cummax.default, SORTED, LONG_TIES, x_and(1), compared=1),
    *[
        Row(aten.searchsorted.Tensor, SORTED, TIES, lambda x, y: (y, x), {"right": right})
        for right in (False, True)
    ],
    Row(aten.searchsorted.Tensor, WIDE, TIES, lambda x, y: (y[0, :0], x)),
    Row(
        aten.searchsorted.Tensor,
        WIDE,
        CORNERS,
        lambda x, y: (torch.tensor([-1, 2, NAN]).to(x), x),
        {"right": True},
    ),
    Row(aten.searchsorted.Scalar, SORTED, TIES, lambda x, y: (y[0], 1)),
    Row(aten.searchsorted.Scalar, SORTED, TIES, lambda x, y: (y[0], 0.5)),
    Row(aten.bucketize.Tensor, ANY, CORNERS, lambda x, y: (x, torch.tensor([-1, 0, 1]))),
    Row(aten.bucketize.Scalar, SORTED, TIES, lambda x, y: (1, y[0])),
]
_PLACES = indices(-1, 0, -4, 3)
_SPREAD = torch.tensor([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]])
_CHOSEN = torch.tensor([[0, 1, 5], [2, 2, 3], [4, 0, 1], [5, 5, 5]])
_EVERY_THIRD = torch.arange(24).reshape(4, 6) % 3 == 0
INDEXING = [
    Row(aten.scatter.src, ANY, VECTOR, lambda x, y: (x, -1, indices(0, 2, 1, 5), y[:4])),
    Row(aten.scatter_add.default, ANY, VECTOR, scattered(axis=-1)),
    Row(aten.scatter.value, ANY, VECTOR, scattered(2, source=False)),
    Row(aten.scatter.value, ANY, VECTOR, lambda x, y: (x[:1], 0, indices(0), 3)),
    Row(aten.scatter.value, ANY, VECTOR, lambda x, y: (x[1], 0, torch.tensor(0), 1)),
    Row(aten.scatter.src, ANY, MATRIX, lambda x, y: (x, -2, _SPREAD, y[:2])),
    Row(aten.scatter_reduce.two, ANY, MATRIX, lambda x, y: (x, -2, _SPREAD, y[:2], "prod")),
    Row(aten.scatter.value_reduce, ANY, MATRIX, x_and(-2, _SPREAD, 2), {"reduce": "multiply"}),
    *[
        Row(aten.scatter_reduce.two, ANY, VECTOR, scattered(by), {"include_self": own})
        for by in ("sum", "prod", "amax", "amin")
        for own in (True, False)
    ],
    *[
        Row(op, (*WIDE, torch.int64, torch.int8), VECTOR, scattered("mean"), {"include_self": own})
        for op in (aten.scatter_reduce.two, aten.index_reduce.default)
        for own in (True, False)
    ],
    Row(
        aten.scatter_reduce.two,
        ANY,
        VECTOR,
        lambda x, y: (x[:1], 0, indices(0), y[:1], "sum"),
        {"include_self": False},
    ),
    Row(aten.scatter.reduce, ANY, VECTOR, scattered(), {"reduce": "multiply"}),
    Row(aten.scatter.value_reduce, ANY, VECTOR, scattered(2, source=False), {"reduce": "add"}),
    Row(aten.index_add.default, ANY, VECTOR, scattered()),
    Row(aten.index_add.default, NUMBERS, VECTOR, scattered(), {"alpha": 2}),
    Row(aten.index_add.default, ANY, MATRIX, lambda x, y: (x, 1, indices(0, 1), y[:, :2])),
    Row(aten.index_copy.default, ANY, MATRIX, lambda x, y: (x, 1, indices(5, 1), y[:, :2])),
    Row(aten.index_fill.int_Scalar, ANY, VECTOR, scattered(2, source=False)),
    Row(aten.index_fill.int_Tensor, ANY, MATRIX, lambda x, y: (x, -1, indices(1, -1), y[0, 0])),
    *[Row(aten.put.default, ANY, VECTOR, put(accumulate)) for accumulate in (False, True)],
    *[Row(aten.index_put.default, ANY, VECTOR, index_put(more)) for more in (False, True)],
    Row(aten.index_put.default, ANY, MATRIX, lambda x, y: (x, [None, _PLACES[:2]], y[:, :2], True)),
    Row(
        aten.index_put.default, ANY, MATRIX, lambda x, y: (x, [_PLACES[:2], _PLACES[1:3]], y[0, :2])
    ),
    Row(aten.index_put.default, ANY, MATRIX, lambda x, y: (x, [_PLACES[:2].int()], y[:2])),
    Row(
        aten.index_put.default,
        ANY,
        IMAGE,
        lambda x, y: (
            x,
            [torch.tensor([0]), None, torch.tensor([0, 1])],
            y[0, :, :2, :].movedim(1, 0),
        ),
    ),
    Row(aten.take.default, ANY, MATRIX, lambda x, y: (x, indices(3, -1, 20))),
    *[Row(aten.gather.default, ANY, MATRIX, x_and(k, _CHOSEN)) for k in (1, -1)],
    Row(aten.index_select.default, ANY, MATRIX, x_and(-1, _CHOSEN[0])),
    Row(
        aten.max_unpool2d.default,
        WIDE,
        IMAGE,
        lambda x, y: (x[0, :, :2, :3], torch.arange(18).reshape(3, 2, 3), [4, 5]),
    ),
    Row(
        aten.max_unpool3d.default,
        WIDE,
        VOLUME,
        lambda x, y: (
            x[0, :, :1, :2, :3],
            torch.arange(18).reshape(3, 1, 2, 3),
            [2, 4, 6],
            [2, 2, 2],
            [0, 0, 0],
        ),
    ),
    Row(aten.diagonal_scatter.default, ANY, MATRIX, lambda x, y: (x, y[0, :4], 1)),
    Row(aten.diagonal_scatter.default, ANY, MATRIX, lambda x, y: (x, half_more(y[0, :4]), 1)),
    Row(aten.as_strided_scatter.default, ANY, VECTOR, lambda x, y: (x, y[:2], [2], [2], 1)),
    Row(
        aten.as_strided_scatter.default,
        ANY,
        VECTOR,
        lambda x, y: (x, half_more(y[:2]), [2], [2], 1),
    ),
    Row(aten.select_scatter.default, ANY, MATRIX, lambda x, y: (x, y[0], 0, 2)),
    Row(aten.select_scatter.default, ANY, MATRIX, lambda x, y: (x, half_more(y[0]), 0, 2)),
    Row(aten.slice_scatter.default, ANY, MATRIX, lambda x, y: (x, y[:, :2], 1, 1, 5, 2)),
    Row(aten.slice_scatter.default, ANY, MATRIX, lambda x, y: (x, half_more(y[:, :2]), 1, 1, 5, 2)),
    Row(aten.roll.default, ANY, MATRIX, x_and([1, -2], [0, 1])),
    Row(aten.masked_scatter.default, ANY, MATRIX, lambda x, y: (x, _EVERY_THIRD, y)),
    Row(
        aten.masked_scatter_backward.default,
        FLOATS,
        MATRIX,
        x_and(_EVERY_THIRD, [2, 6]),
    ),
    Row(aten.replication_pad1d_backward.default, WIDE, MATRIX, padded(2, 1)),
    Row(aten.replication_pad2d_backward.default, WIDE, IMAGE, padded(2, 1, 0, 3)),
    Row(
        aten.grid_sampler_2d.default,
        WIDE,
        IMAGE,
        lambda x, y: (x, torch.tanh(y[:, 0, :, :2]).unsqueeze(1), 0, 0, False),
    ),
    Row(aten.replication_pad3d_backward.default, WIDE, VOLUME, padded(2, 1, 0, 3, 1, 1)),
    Row(aten.as_strided.default, ANY, MATRIX, x_and([3, 2], [1, 7], 2)),
    Row(aten.index.Tensor, ANY, MATRIX, x_and([None, _EVERY_THIRD[0]])),
    Row(aten.index.Tensor, ANY, MATRIX, x_and([_EVERY_THIRD])),
    Row(aten.nonzero.default, ANY, VECTOR, lambda x, y: (x[1],)),
    Row(aten.masked_select.default, ANY, MATRIX, x_and(_EVERY_THIRD[:1])),
    Row(aten._unique2.default, INTEGERS, TIES, x_and(True, True, True)),
    Row(aten.unique_consecutive.default, SORTED, TIES, x_and(True, True)),
    Row(aten.repeat_interleave.Tensor, (torch.int64,), VECTOR, lambda x, y: (x.flatten() % 4,)),
]
SHAPES = [
    Row(aten.eye.default, WIDE[:1], VECTOR, numbers(300)),
    Row(aten.eye.m, WIDE[:1], VECTOR, numbers(2, 300), {"dtype": torch.int64}),
    Row(aten.view.default, ANY, MATRIX, x_and([3, 8])),
    Row(aten.view.dtype, (torch.float32,), VECTOR, lambda x, y: (x[1], torch.int32)),
    Row(aten.flip.default, ANY, MATRIX, x_and([0, 1])),
    Row(aten.flip.default, ANY, VECTOR, lambda x, y: (x[1], [])),
    Row(aten.cat.default, ANY, MATRIX, lambda x, y: ([x.unsqueeze(-1), y.unsqueeze(-1)], -1)),
    Row(aten.constant_pad_nd.default, ANY, MATRIX, x_and([1, 1], 2)),
    Row(aten.constant_pad_nd.default, ANY, MATRIX, x_and([-1, 2, 1, -2], 3)),
    *[Row(aten.unfold.default, ANY, MATRIX, x_and(1, n, 2)) for n in (3, 5)],
    *each([aten.split.Tensor, aten.unsafe_split.Tensor], ANY, MATRIX, x_and(4, 1)),
    *each(
        [aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default],
        ANY,
        MATRIX,
        x_and([1, 3, 2], 1),
    ),
    Row(aten.unbind.int, ANY, MATRIX),
    Row(torch.ops.prims.copy_strided.default, ANY, MATRIX, x_and([1, 4])),
    Row(aten.detach_copy.default, ANY, MATRIX),
    Row(aten.select_copy.int, ANY, MATRIX, x_and(1, 2)),
    Row(aten.slice_copy.Tensor, ANY, MATRIX, x_and(1, 1, 3)),
    Row(aten.split_copy.Tensor, ANY, MATRIX, x_and(4, 1)),
    Row(aten.full_like.default, ANY, MATRIX, x_and(-2)),
    Row(aten.masked_fill.Scalar, ANY, MATRIX, x_and(_EVERY_THIRD, 2)),
]
ROWS = [
    *ARITHMETIC,
    *FUNCTIONS,
    *COMPLEXES,
    *ALONG_AXES,
    *ORDERING,
    *INDEXING,
    *SHAPES,
    *LAYERS,
    *MATRICES,
]
DTYPES = tuple(dict.fromkeys(dtype for row in ROWS for dtype in row.dtypes))


def rows_of(dtype: torch.dtype) -> list[Row]:
    return [row for row in ROWS if dtype in row.dtypes]
