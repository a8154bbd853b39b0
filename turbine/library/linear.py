"""Products with a weight that is packed once, when an artifact is loaded.

A weight of K rows lies in panels of W columns, each row of a panel after the one before: a program
reads one panel from its beginning to its end, and rows of x where they are. Sums stay in registers
for the whole of K.
"""

from __future__ import annotations

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, K, N = tkl.sym.M, tkl.sym.K, tkl.sym.N
P, W = tkl.sym.P, tkl.sym.W  # panels, and the columns of each
BM = tkl.sym.BM
f32 = tkl.f32


# Blocks of 64 rows: enough of them for many cores, few enough to read the weight seldom.
@tk.gen.kernel(P, M // BM, blocks={BM: 64})
def linear(
    x: tkl.InputBuffer[M, K, f32],
    weight: tkl.InputBuffer[P, K, W, f32],
    bias: tkl.InputBuffer[N, f32],
    y: tkl.OutputBuffer[M, N, f32],
) -> None:
    """x @ weight + bias, for blocks of rows and panels of columns."""
    panel, row = tkl.program_id(0), tkl.program_id(1) * BM
    rows = tkl.load(x, (row, 0), (BM, K))
    columns = tkl.load(weight, (panel, 0, 0), (None, K, W))
    product = tkl.dot(rows, columns) + tkl.load(bias, (panel * W,), (W,))
    tkl.store(y, (row, panel * W), product)
