"""Products with a weight that is packed once, when an artifact is loaded.

A weight of K rows lies in panels of W columns, each row of a panel after the one before: a program
reads one panel from its beginning to its end, and rows of x where they are. Sums stay in registers
for the whole of K.
"""

from __future__ import annotations

from typing import Any

import turbine.kernel as tk
import turbine.kernel.lang as tkl

B, R, K = tkl.sym.B, tkl.sym.R, tkl.sym.K  # blocks, their rows, what is summed over
P, W, N = tkl.sym.P, tkl.sym.W, tkl.sym.N  # panels, their columns, those of the result
f32 = tkl.f32


@tk.gen.kernel(P, B)
def linear(
    x: tkl.InputBuffer[B, R, K, f32],
    weight: tkl.InputBuffer[P, K, W, f32],
    bias: tkl.InputBuffer[N, f32],
    y: tkl.OutputBuffer[B, R, N, f32],
) -> None:
    """x @ weight + bias, for blocks of rows and panels of columns."""
    panel = tkl.program_id(0)
    product = _product(x, weight) + tkl.load(bias, (panel * W,), (W,))
    tkl.store(y, (tkl.program_id(1), 0, panel * W), product[None])


def _product(x: Any, weight: Any) -> Any:
    rows = tkl.load(x, (tkl.program_id(1), 0, 0), (None, R, K))
    return tkl.dot(rows, tkl.load(weight, (tkl.program_id(0), 0, 0), (None, K, W)))
