"""Square matrices a number of times that the data give, for the exponential of a matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

A, N = tkl.symbols("A N")
T = tkl.types.T
_SIDE = 16  # of a block
_BLOCK = (None, None, _SIDE, _SIDE)


@tk.gen.kernel(A)
def square_repeatedly(
    x: tkl.InputBuffer[A, N, N, T],
    counts: tkl.InputBuffer[A, tkl.i64],
    powers: tkl.OutputBuffer[A, 2, N, N, T],
) -> None:
    """Square a matrix counts times; its last two powers alternate between two places."""
    b = tkl.program_id(0)
    tkl.store(powers, (b, 0, 0, 0), tkl.load(x, (b, 0, 0), (None, N, N)))

    @tkl.for_loop(0, tkl.load(counts, (b,)))
    def over_squares(step: Any) -> None:
        @tkl.for_loop(0, N // _SIDE)
        def over_rows(i: Any) -> None:
            @tkl.for_loop(0, N // _SIDE)
            def over_columns(j: Any) -> None:
                @tkl.for_loop(0, N // _SIDE, init_args=[tkl.zeros((_SIDE, _SIDE), T)])
                def total(k: Any, products: Any) -> Any:
                    left = tkl.load(powers, (b, step % 2, i * _SIDE, k * _SIDE), _BLOCK)
                    right = tkl.load(powers, (b, step % 2, k * _SIDE, j * _SIDE), _BLOCK)
                    return tkl.dot(left, right, products)

                tkl.store(powers, (b, (step + 1) % 2, i * _SIDE, j * _SIDE), total[0])


def square(x: Tensor, counts: Tensor) -> Tensor:
    """x to the power of 2 ** counts, for each matrix of a batch."""
    powers: Tensor = square_repeatedly(x, counts)
    is_odd = (counts % 2 == 1)[:, None, None]
    return torch.where(is_odd, powers[:, 1], powers[:, 0])


KERNELS["square"] = square
