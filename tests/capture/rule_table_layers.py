"""Rows of tests/capture/rule_table.py for layers of models and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.capture.rule_rows import (
    FLOATS,
    HALVES,
    HEADS,
    IMAGE,
    INF,
    MATRIX,
    NAN,
    VOLUME,
    WIDE,
    Arguments,
    Operands,
    Row,
    indices,
    random,
    x_and,
)

aten = torch.ops.aten


def attend(*mask: Tensor) -> Arguments:
    return lambda x, y: (x, y[:, :, :3], y[:, :, 3:], *(m.to(x.dtype) for m in mask))


def flash_gradient(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    attend = aten._scaled_dot_product_flash_attention_for_cpu.default
    return x * 2, x, y, y * 0.5, *attend(x, y, y * 0.5), 0.0, False


SEEN = torch.tensor([[True, False, True], [False, False, False]])  # the second row sees nothing
MASK = torch.tensor([[0.5, -INF, 0.25]] * 6)


def ends(*places: int) -> Tensor:
    """Where groups of rows end."""
    return torch.tensor(places, dtype=torch.int32)


BAG = (indices(1, 2, 4, 5, 4, 3, 2, 9), indices(0, 4, 4, 7))  # the second bag is empty
BAG_OF = indices(0, 0, 0, 0, 2, 2, 2, 3)


def bag(mode: int, padding: int = -1) -> Arguments:
    return lambda x, y: (table(x), *BAG, False, mode, False, None, False, padding)


def table(x: Tensor) -> Tensor:
    return torch.cat([x, x + 1, x - 1])[:10]


def bag_gradient(mode: int) -> Arguments:
    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        *_, largest = aten._embedding_bag.default(*bag(mode)(x, y))
        return y, *BAG, BAG_OF, indices(4, 0, 3, 1), largest, 10, False, mode, False, None

    return arguments


def bag_weights_gradient(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return y, table(x), *BAG, BAG_OF, 0


def convolved(
    *taps: int, groups: int = 1, outer: int = 4, stride: int = 1, padding: int = 0, turned: bool
) -> Arguments:
    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        axes, inner = len(taps), x.shape[1]
        ends = (inner, outer // groups) if turned else (outer, inner // groups)
        numbers = torch.arange(float(ends[0] * ends[1] * torch.tensor(taps).prod()))
        weight = torch.sin(numbers).reshape(*ends, *taps).to(x.dtype)
        bias = torch.arange(float(outer)).to(x.dtype)
        each = [[stride] * axes, [padding] * axes, [1] * axes, turned, [0] * axes, groups]
        return x, weight, bias, *each

    return arguments


def convolution_gradient(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    x, weight, bias, *rest = convolved(3, 2, stride=2, padding=1, turned=False)(x, y)
    result = aten.convolution.default(x, weight, bias, *rest)
    return torch.cos(result), x, weight, [4], *rest, [True, True, True]


def pool_gradient(pool: Any, gradient: Callable[..., tuple[Any, ...]]) -> Arguments:
    """Arguments of a pool's gradient, of those of the pool and its results."""

    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        given = pool(x)
        results = (given,) if isinstance(given, Tensor) else given
        return torch.cos(results[0]), x, *gradient(*results[1:])

    return arguments


def distances(p: float) -> Arguments:
    return lambda x, y: (x, y[:3], p, None)


def distances_gradient(p: float) -> Arguments:
    return lambda x, y: (x[:, :3], x, y[:3], p, torch.cdist(x, y[:3], p))


def own_distances_gradient(p: float) -> Arguments:
    return lambda x, y: (y[0], x, p, torch.pdist(x, p))


NORMALIZATION = [
    Row(
        aten.native_layer_norm.default,
        FLOATS,
        MATRIX,
        lambda x, y: (x, [6], x[0], x[1], 1e-5),
        compared=1,
    ),
    Row(
        aten.native_group_norm.default,
        WIDE,
        IMAGE,
        lambda x, y: (x, y[0, 0, 0, :3], None, 2, 3, 42, 3, 1e-5),
    ),
    Row(
        aten._native_batch_norm_legit_no_training.default,
        FLOATS,
        IMAGE,
        lambda x, y: (x, y[0, :, 0, 0], None, y[1, :, 0, 0], y[1, :, 0, 1].abs(), 0.1, 1e-5),
        compared=1,
    ),
    Row(
        aten._native_batch_norm_legit_functional.default,
        WIDE,
        IMAGE,
        lambda x, y: (x, y[0, :, 0, 0], None, y[1, :, 0, 0], y[1, :, 0, 1], True, 0.1, 1e-5),
    ),
    Row(
        aten._native_batch_norm_legit.no_stats,
        WIDE,
        IMAGE,
        lambda x, y: (x, y[0, :, 0, 0], None, True, 0.1, 1e-5),
    ),
]
EMBEDDING = [
    *[
        Row(aten._embedding_bag.default, WIDE, MATRIX, bag(mode, 2), compared=1)
        for mode in range(3)
    ],
    *[
        Row(aten._embedding_bag_forward_only.default, WIDE, MATRIX, bag(mode), compared=1)
        for mode in range(3)
    ],
    Row(
        aten._embedding_bag.default,
        WIDE,
        MATRIX,
        lambda x, y: (
            table(x),
            indices(1, 2, 4, 5),
            indices(0, 1, 4),
            False,
            0,
            False,
            y[0, :4],
            True,
        ),
        compared=1,
    ),
    Row(
        aten.embedding_dense_backward.default,
        WIDE,
        MATRIX,
        lambda x, y: (x, indices(1, 7, 1, 3), 10, 3, False),
    ),
    *[
        Row(aten._embedding_bag_backward.default, WIDE, MATRIX, bag_gradient(mode))
        for mode in (0, 1, 2)
    ],
    Row(
        aten._embedding_bag_per_sample_weights_backward.default,
        WIDE,
        MATRIX,
        bag_weights_gradient,
    ),
]
PRODUCTS = [
    Row(aten.mm.default, WIDE, MATRIX, lambda x, y: (x, y.t())),
    Row(aten.mm.default, WIDE, MATRIX, lambda x, y: (x[:, :1].t(), y)),
    Row(aten.mm.default, WIDE, MATRIX, lambda x, y: (y.t(), x[:, 1:2])),
    Row(aten.mv.default, WIDE, MATRIX, lambda x, y: (x, y[0])),
    Row(aten.addmm.default, WIDE, MATRIX, lambda x, y: (y[0], x[:, :1].t(), y)),
    Row(
        aten.addmm.default,
        WIDE,
        MATRIX,
        lambda x, y: (x[:, :4], x, y.t()),
        {"beta": 0.5, "alpha": 2},
    ),
    Row(
        aten.baddbmm.default,
        WIDE,
        MATRIX,
        lambda x, y: (x[None, :, :4], x[None], y.t()[None]),
        {"beta": 0.5, "alpha": 2},
    ),
    Row(
        aten._scaled_mm.default,
        (torch.float32,),
        Operands(random(16, 16)),
        lambda x, y: (
            x.to(torch.float8_e4m3fn),
            y.to(torch.float8_e4m3fn).t(),
            torch.tensor(0.5),
            torch.tensor(2.0),
        ),
        {"out_dtype": torch.float32},
    ),
    *[
        Row(aten._grouped_mm.default, (torch.bfloat16,), Operands(random(16, 16)), arguments)
        for arguments in (
            lambda x, y: (x, y.view(2, 16, 8), ends(5, 16)),
            lambda x, y: (x[:1, :8], y.view(4, 8, 8), ends(0, 1, 1, 1)),
            lambda x, y: (x, y, ends(0, 16)),
            lambda x, y: (y.view(2, 8, 16), x, ends(9, 16)),
            lambda x, y: (x.view(2, 8, 16), y.view(2, 16, 8)),
        )
    ],
    Row(
        aten._trilinear.default,
        WIDE,
        MATRIX,
        lambda x, y: (x, y[:, :5], x[:3, :5], [1, 3], [1, 2], [0, 2], [3]),
    ),
    *[
        Row(aten._cdist_forward.default, WIDE, MATRIX, distances(p))
        for p in (0.0, 1.0, 2.0, 3.0, INF)
    ],
    *[
        Row(aten._cdist_backward.default, WIDE, MATRIX, distances_gradient(p))
        for p in (1.0, 2.0, 3.0, INF)
    ],
    *[Row(aten._pdist_forward.default, WIDE, MATRIX, x_and(p)) for p in (1.0, 2.0, 3.0)],
    *[
        Row(aten._pdist_backward.default, WIDE, MATRIX, own_distances_gradient(p))
        for p in (1.0, 2.0, 3.0)
    ],
    Row(aten.convolution.default, FLOATS, IMAGE, convolved(3, 2, turned=False)),
    Row(
        aten.convolution.default,
        FLOATS,
        IMAGE,
        convolved(3, 3, stride=2, padding=1, turned=False),
    ),
    Row(aten.convolution.default, WIDE, IMAGE, convolved(3, 2, stride=2, padding=1, turned=True)),
    Row(
        aten.convolution.default,
        FLOATS,
        IMAGE,
        convolved(3, 2, groups=3, outer=3, stride=2, turned=True),
    ),
    Row(aten.convolution.default, WIDE, VOLUME, convolved(2, 3, 2, padding=1, turned=False)),
    Row(aten.convolution_backward.default, WIDE, IMAGE, convolution_gradient),
]
ATTENTION = [
    *[
        Row(aten.scaled_dot_product_attention.default, FLOATS, HEADS, arguments, options)
        for arguments, options in (
            (attend(), {}),
            (attend(), {"scale": 0.3}),
            (attend(MASK), {}),
            (lambda x, y: (x, y, y * 0.5), {"is_causal": True}),
            (lambda x, y: (x[:, :, :2], y[:, :, :3], y[:, :, 3:], SEEN), {}),
        )
    ],
    Row(
        aten.scaled_dot_product_attention.default,
        FLOATS,
        HEADS,
        lambda x, y: (x, y[:, :2], y[:, 2:]),
        {"enable_gqa": True},
    ),
    Row(
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        WIDE,
        HEADS,
        lambda x, y: (x, y, y * 0.5),
    ),
    Row(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        WIDE,
        HEADS,
        flash_gradient,
    ),
]
POOLING = [
    Row(aten.avg_pool2d.default, FLOATS, IMAGE, x_and([2, 1], [], [0, 0], True)),
    Row(
        aten.avg_pool2d.default,
        FLOATS,
        IMAGE,
        x_and([3, 3], [2, 2], [1, 1], True, False),
    ),
    Row(aten.avg_pool3d.default, WIDE, VOLUME, x_and([1, 3, 2], [1, 3, 3], [0, 1, 1])),
    Row(aten.avg_pool3d.default, WIDE, VOLUME, x_and([2], [], [0], True)),
    Row(
        aten.max_pool2d_with_indices.default,
        (*FLOATS, torch.int64),
        IMAGE,
        x_and([3, 3], [2, 2], [1, 1], [2, 2], True),
    ),
    # A window of one size for all axes.
    Row(aten.max_pool2d_with_indices.default, WIDE, IMAGE, x_and([2])),
    Row(aten.max_pool3d_with_indices.default, WIDE, VOLUME, x_and([2], [1])),
    Row(
        aten.avg_pool2d_backward.default,
        WIDE,
        IMAGE,
        pool_gradient(
            lambda x: aten.avg_pool2d(x, [2], [], [1]),
            lambda: ([2], [], [1], False, True, None),
        ),
    ),
    Row(
        aten.max_pool2d_with_indices_backward.default,
        WIDE,
        IMAGE,
        pool_gradient(
            lambda x: aten.max_pool2d_with_indices(x, [2]),
            lambda i: ([2], [], [0], [1], False, i),
        ),
    ),
    Row(aten.max_pool3d_with_indices.default, WIDE, VOLUME, x_and([2, 1, 3])),
    Row(aten.adaptive_max_pool2d.default, FLOATS, IMAGE, x_and([3, 2])),
    Row(aten.adaptive_max_pool3d.default, WIDE, VOLUME, x_and([1, 2, 3])),
    Row(
        aten.avg_pool2d_backward.default,
        WIDE,
        IMAGE,
        pool_gradient(
            lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1], True, False),
            lambda: ([3, 3], [2, 2], [1, 1], True, False, None),
        ),
    ),
    Row(
        aten.avg_pool3d_backward.default,
        WIDE,
        VOLUME,
        pool_gradient(
            lambda x: aten.avg_pool3d(x, [2, 2, 2], [1, 2, 2], [0, 1, 0]),
            lambda: ([2, 2, 2], [1, 2, 2], [0, 1, 0], False, True, None),
        ),
    ),
    Row(
        aten.max_pool2d_with_indices_backward.default,
        WIDE,
        IMAGE,
        pool_gradient(
            lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]),
            lambda i: ([3, 3], [2, 2], [1, 1], [1, 1], False, i),
        ),
    ),
    Row(
        aten.max_pool3d_with_indices_backward.default,
        WIDE,
        VOLUME,
        pool_gradient(
            lambda x: aten.max_pool3d_with_indices(x, [2, 2, 2], [1, 2, 2]),
            lambda i: ([2, 2, 2], [1, 2, 2], [0, 0, 0], [1, 1, 1], False, i),
        ),
    ),
    Row(
        aten.adaptive_max_pool2d_backward.default,
        WIDE,
        IMAGE,
        pool_gradient(lambda x: aten.adaptive_max_pool2d(x, [3, 4]), lambda i: (i,)),
    ),
    Row(
        aten.adaptive_max_pool3d_backward.default,
        WIDE,
        VOLUME,
        pool_gradient(lambda x: aten.adaptive_max_pool3d(x, [2, 2, 3]), lambda i: (i,)),
    ),
]
SCALES = torch.tensor([0.03, 0.02, 0.11, 0.4])
RANGE = (-128, 127)
FAKE_QUANTIZED = torch.tensor([[0.05, NAN, INF, -INF, 1e30, -300, 300, 1.0]] * 4)


def shifts(dtype: torch.dtype) -> Tensor:
    """A zero point for each row."""
    return torch.tensor([0, 3, -5, 1.5]).to(dtype)


def quantized_rows(of: torch.dtype, special: Tensor | None) -> Arguments:
    """With zero points of a dtype."""

    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        given = x if special is None else special.to(x.dtype)
        return given, SCALES, shifts(of), 0, *RANGE

    return arguments


def quantized_if(enabled: Tensor) -> Arguments:
    return lambda x, y: (x, SCALES[:1], shifts(torch.int32)[1:2], enabled, *RANGE)


def multiplied_by_int4(rows: int) -> Arguments:
    """Rows that PyTorch packs in whole blocks, in a smaller one, or both."""

    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(0, 16, (rows, 64), generator=generator, dtype=torch.int32)
        scales = torch.rand(2, rows, 2, generator=generator).to(x.dtype)
        return x, aten._convert_weight_to_int4pack_for_cpu(weight, 1), 32, scales

    return arguments


QUANTIZED = [
    *[
        Row(
            aten.fake_quantize_per_channel_affine_cachemask.default,
            FLOATS,
            Operands(random(4, 8), rtol=0, atol=0),
            quantized_rows(of, special),
        )
        for of in (torch.int32, torch.float32)
        for special in (None, FAKE_QUANTIZED)
    ],
    Row(
        aten.fake_quantize_per_tensor_affine_cachemask.default,
        FLOATS,
        Operands(random(4, 8), rtol=0, atol=0),
        lambda x, y: (torch.cat([x, FAKE_QUANTIZED.to(x.dtype)]), 0.02, 3, *RANGE),
    ),
    *[
        Row(
            aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
            FLOATS,
            Operands(random(4, 8), rtol=0, atol=0),
            quantized_if(on),
        )
        for on in (indices(0), indices(1))
    ],
    Row(
        aten._weight_int8pack_mm.default,
        (torch.float32, *HALVES),
        Operands(random(4, 32), rtol=1e-5, atol=1e-5),
        lambda x, y: (x, (y.float() * 40).to(torch.int8), SCALES.to(x.dtype)),
    ),
    *[
        Row(
            aten._weight_int4pack_mm_for_cpu.default,
            (torch.float32, *HALVES),
            Operands(random(3, 64), rtol=1e-5, atol=1e-4),
            multiplied_by_int4(rows),
        )
        for rows in (16, 64, 96)
    ],
]
LAYERS = [*NORMALIZATION, *EMBEDDING, *PRODUCTS, *ATTENTION, *POOLING, *QUANTIZED]
