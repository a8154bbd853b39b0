"""A product of matrices for each batch: the grid has an axis for the batches."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

B, M, N, K, BM, BN, BK = tkl.symbols("B M N K BM BN BK")
T = tkl.types.T
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@tk.gen.kernel(B, M // BM, N // BN)
def batched_gemm(
    a: tkl.InputBuffer[B, M, K, T],
    b: tkl.InputBuffer[B, K, N, T],
    c: tkl.OutputBuffer[B, M, N, T],
) -> None:
    batch, i, j = tkl.program_id(0), tkl.program_id(1) * BM, tkl.program_id(2) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((1, BM, BN), tkl.f32)])
    def product(k, acc):
        x = tkl.load(a, (batch, i, k * BK), (1, BM, BK))
        y = tkl.load(b, (batch, k * BK, j), (1, BK, BN))
        return tkl.dot(x, y, acc)

    tkl.store(c, (batch, i, j), product[0])


def main() -> int:
    for dtype in DTYPES:
        for b, m, n, k in ((3, 50, 37, 41), (1, 1, 1, 1), (5, 8, 9, 0)):
            x, y = torch.randn(b, m, k).to(dtype), torch.randn(b, k, n).to(dtype)
            expected = torch.bmm(x.float(), y.float()).to(dtype)
            torch.testing.assert_close(batched_gemm(x, y), expected)
        print(f"batched_gemm of {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
