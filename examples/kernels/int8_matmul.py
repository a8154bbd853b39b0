"""A product of int8 matrices, summed in int32, and scaled by row and by column."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
T = tkl.types.T
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@tk.gen.kernel(M // BM, N // BN)
def int8_matmul(
    a: tkl.InputBuffer[M, K, tkl.i8],
    b: tkl.InputBuffer[N, K, tkl.i8],
    row_scale: tkl.InputBuffer[M, T],
    column_scale: tkl.InputBuffer[N, T],
    c: tkl.OutputBuffer[M, N, T],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.i32)])
    def product(k, acc):
        x = tkl.load(a, (i, k * BK), (BM, BK))
        y = tkl.load(b, (j, k * BK), (BN, BK))
        return tkl.dot(x, tkl.transpose(y), acc)

    rows = tkl.load(row_scale, (i,), (BM,)).to(tkl.f32)
    columns = tkl.load(column_scale, (j,), (BN,)).to(tkl.f32)
    tkl.store(c, (i, j), product[0].to(tkl.f32) * rows[:, None] * columns[None, :])


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row as int8, and the number that makes it the row again."""
    scale = x.abs().amax(dim=1).clamp(min=1e-8) / 127
    return (x / scale[:, None]).round().to(torch.int8), scale


def main() -> int:
    for dtype in DTYPES:
        for m, n, k in ((33, 65, 100), (1, 1, 1)):
            x, y = torch.randn(m, k), torch.randn(n, k)
            (a, rows), (b, columns) = quantized(x), quantized(y)
            rows, columns = rows.to(dtype), columns.to(dtype)
            exact = (a.int() @ b.int().T) * rows.float()[:, None] * columns.float()
            found = int8_matmul(a, b, rows, columns)
            torch.testing.assert_close(found, exact.to(dtype))
            error = (found.float() - x @ y.T).abs().max() / (x @ y.T).abs().max()
            assert error < 0.03, error  # what rounding to 8 bits costs
        print(f"int8_matmul to {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
