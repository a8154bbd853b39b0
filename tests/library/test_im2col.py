"""The kernels of im2col and col2im, and what gradients of convolutions make of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.library.placing import count, exported
from tests.models import Fn
from turbine.capture.rules.convolution import Windows, col2im, im2col
from turbine.library.im2col import columns_to_windows, windows_to_columns

pytestmark = pytest.mark.sweep(1)

aten = torch.ops.aten
CASES = [
    Windows((3,), (1,), (1,), (1,)),
    Windows((3, 2), (1, 1), (0, 1), (1, 1)),
    Windows((3, 3), (2, 3), (1, 2), (1, 1)),
    Windows((2, 3), (2, 1), (2, 2), (3, 2)),
    Windows((1, 1), (2, 2), (0, 0), (1, 1)),
    Windows((2, 2, 2), (1, 2, 1), (0, 1, 0), (1, 1, 2)),
]


def unfold(x: Tensor, windows: Windows) -> Tensor:
    """What im2col gives, from slices of the padded images."""
    padded = aten.constant_pad_nd(x, [p for p in reversed(windows.padding) for _ in "ab"])
    taps = []
    for offsets in windows.offsets():
        places = [slice(None)] * 2
        for start, step, n in zip(offsets, windows.stride, windows.count(x.shape[2:]), strict=True):
            places.append(slice(start, start + (n - 1) * step + 1, step))
        taps.append(padded[tuple(places)])
    return torch.stack(taps).movedim(2, 0)


@pytest.mark.parametrize("windows", CASES, ids=str)
def test_windows_become_columns_and_add_up_again(windows: Windows) -> None:
    sizes = [9, 7, 6][: len(windows.taps)]
    x = torch.randn(2, 3, *sizes, dtype=torch.float64, requires_grad=True)
    expected = unfold(x, windows)
    for for_gradient in (True, False):
        columns = im2col(x.detach(), windows, for_gradient=for_gradient)
        assert torch.equal(columns, expected)
    values = torch.randn_like(columns)
    (sums,) = torch.autograd.grad(expected, x, values)
    torch.testing.assert_close(col2im(values, windows, sizes), sums)


def test_gradients_of_convolutions_copy_windows_by_kernels() -> None:
    def gradients(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        settings = [0], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        grad_x, grad_weight, _ = aten.convolution_backward(grad, x, weight, *settings)
        return grad_x, grad_weight

    args = torch.randn(2, 3, 9, 8), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 5, 4)
    program = exported(Fn(gradients), *args)
    key = (3, 3), (2, 2), (1, 1)
    kernels = windows_to_columns(*key, True), columns_to_windows(*key)
    assert count(program, *(kernel.op.op for kernel in kernels)) == 2
    assert count(program, aten.cat.default) == 0
    for found, expected in zip(program.graph(*args), gradients(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
