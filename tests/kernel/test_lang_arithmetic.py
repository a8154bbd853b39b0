"""Steps of arange, and errors of arithmetic."""

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from turbine import errors

N = tkl.sym.N


@pytest.mark.parametrize("limits", [(2, 8, 2), (0, 7, 3), (9, 0, -4), (5, 5, 2)])
def test_arange_has_steps(limits: tuple[int, int, int]) -> None:
    wanted = torch.arange(*limits)

    def kernel(y: tkl.OutputBuffer[len(wanted), tkl.i64]) -> None:
        tkl.store(y, (0,), tkl.arange(*limits))

    assert torch.equal(interpreted(kernel, (1,), {})["y"], wanted)


def test_clamp_without_bounds_is_rejected() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
        tkl.store(y, (0,), tkl.clamp(tkl.load(x, (0,), (N,))))

    with pytest.raises(errors.KernelError, match=r"tkl\.clamp has no bound"):
        interpreted(kernel, (1,), {}, x=torch.ones(2))


def test_true_division_of_sizes_suggests_floor_division() -> None:
    with pytest.raises(errors.KernelError, match="write N // 4") as raised:
        tk.gen.kernel(N / 4)
    assert raised.value.where is not None
