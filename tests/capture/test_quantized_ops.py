"""Ops of the library `quantized_decomposed`, which PyTorch registers on import, match eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor
from torch.export import Dim

from tests.compiled import agrees
from tests.models import compiled

pytestmark = [pytest.mark.run, pytest.mark.sweep(2)]

quantized = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
UINT8 = (0, 255, torch.uint8)
SCALES = torch.tensor([0.11, 0.02, 0.37, 0.4])
ZEROS = torch.tensor([0, 3, -5, 2])
Results = list[Tensor]


def with_numbers(x: Tensor) -> Results:
    signed = quantized.quantize_per_tensor(x, 0.02, 3, *INT8)
    unsigned = quantized.quantize_per_tensor(x.bfloat16(), 0.02, 3, *UINT8)
    return [
        signed,
        unsigned,
        quantized.dequantize_per_tensor(signed, 0.02, 3, *INT8),
        quantized.dequantize_per_tensor(unsigned, 0.02, 3, *UINT8, out_dtype=torch.bfloat16),
    ]


def with_tensors(x: Tensor) -> Results:
    found: Results = []
    for scale, zero in ((SCALES[1:2], ZEROS[1:2]), (SCALES[2].double(), ZEROS[2].int())):
        ends = ZEROS[0] - 100, ZEROS[:1] + 100
        small = quantized.quantize_per_tensor.tensor(x, scale, zero, *INT8)
        found += [
            small,
            quantized.quantize_per_tensor.tensor2(x, scale, zero, *ends, torch.int8),
            quantized.dequantize_per_tensor.tensor(small, scale, zero, *INT8),
            quantized.dequantize_per_tensor.tensor2(
                small, scale, zero, *ends, torch.int8, out_dtype=torch.float16
            ),
        ]
    return found


def with_chosen_parameters(x: Tensor) -> Results:
    found: Results = []
    for tensor in (x, x.bfloat16(), x.abs() + 1):
        scale, zero = quantized.choose_qparams(tensor, *INT8[:2], 1e-5, torch.int8)
        small = quantized.quantize_per_tensor.tensor(tensor, scale, zero, *INT8)
        found += [scale, zero, small]
        found += quantized.choose_qparams_symmetric(tensor, *INT8[:2], 1e-5, torch.int8)
        found += quantized.choose_qparams_symmetric(tensor, *UINT8[:2], 1e-5, torch.uint8)
    return found


def per_channel(x: Tensor) -> Results:
    small = quantized.quantize_per_channel(x, SCALES, ZEROS, 0, *INT8)
    return [
        small,
        quantized.quantize_per_channel(x.t().bfloat16(), SCALES, ZEROS, -1, *INT8),
        quantized.dequantize_per_channel(small, SCALES, ZEROS.int(), 0, *INT8),
        quantized.dequantize_per_channel(small, SCALES.double(), None, 0, *INT8),
        quantized.dequantize_per_channel(small, SCALES, ZEROS, 0, *INT8, out_dtype=torch.bfloat16),
    ]


def per_token(x: Tensor) -> Results:
    scales, zeros = quantized.choose_qparams_per_token_asymmetric(x, torch.int8)
    small = quantized.quantize_per_token(x, scales, zeros, *INT8)
    return [
        scales,
        zeros,
        small,
        quantized.dequantize_per_token(small, scales, zeros, *INT8, torch.float32),
        *quantized.choose_qparams_per_token(x, torch.int8),
        *quantized.choose_qparams_per_token(x.half(), torch.int8),
        *quantized.choose_qparams_per_token(x.bfloat16(), torch.int8),
    ]


def per_group(x: Tensor) -> Results:
    scales, zeros = SCALES.unsqueeze(1).expand(4, 2), ZEROS.int().unsqueeze(1).expand(4, 2)
    small = quantized.quantize_per_channel_group(x, scales, zeros, *INT8, 4)
    dequantize = quantized.dequantize_per_channel_group
    return [
        small,
        dequantize(small, scales, zeros, *INT8, 4, torch.float32),
        dequantize(small, scales, None, *INT8, 4, torch.bfloat16),
    ]


def conversion(x: Tensor) -> Results:
    return [quantized.convert_element_type.no_fuse(x, torch.bfloat16)]


FUNCTIONS: list[Callable[[Tensor], Results]] = [
    with_numbers,
    with_tensors,
    with_chosen_parameters,
    per_channel,
    per_token,
    per_group,
    conversion,
]


def random_rows(rows: int = 4) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("function", FUNCTIONS)
def test_exported_ops_of_quantized_models_match_eager(function: Any) -> None:
    x = random_rows()
    torch.testing.assert_close(compiled(function, x)(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_ops_of_quantized_models_match_eager_under_torch_compile(function: Any) -> None:
    heard = agrees(function, lambda: (random_rows(),), tolerance=0)
    assert all(part.compiled for record in heard for part in record.parts)


def test_parameters_are_chosen_for_a_dynamic_batch() -> None:
    artifact = compiled(with_chosen_parameters, random_rows(), dynamic_shapes=(({0: Dim.AUTO},),))
    x = random_rows(7)
    torch.testing.assert_close(artifact(x), with_chosen_parameters(x), rtol=0, atol=0)


def test_clamped_floats_are_converted_to_uint8() -> None:
    def function(x: Tensor) -> Tensor:
        return x.clamp(0, 255).to(torch.uint8)

    x = torch.tensor([0.0, 5, 127, 128, 255, 300, -3, 1e6] * 4)
    torch.testing.assert_close(compiled(function, x)(x), function(x))
