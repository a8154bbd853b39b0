"""gelu(a @ b.T + bias) + residual in one kernel; bias and residual may be left out."""

import sys

import torch
from torch.nn import functional as F

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
T = tkl.types.T
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def gelu(x):  # a part of each kernel that calls it
    return 0.5 * x * (1 + tkl.erf(x / 2**0.5))


@tk.gen.kernel(M // BM, N // BN)
def gemm(
    a: tkl.InputBuffer[M, K, T],
    b: tkl.InputBuffer[N, K, T],
    c: tkl.OutputBuffer[M, N, T],
    bias: tkl.InputBuffer[N, T] | None = None,
    residual: tkl.InputBuffer[M, N, T] | None = None,
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def product(k, acc):
        x = tkl.load(a, (i, k * BK), (BM, BK))
        y = tkl.load(b, (j, k * BK), (BN, BK))
        return tkl.dot(x, tkl.transpose(y), acc)

    y = gelu(product[0] if bias is None else product[0] + tkl.load(bias, (j,), (BN,)))
    if residual is not None:
        y = y + tkl.load(residual, (i, j), (BM, BN))
    tkl.store(c, (i, j), y)


def main() -> int:
    for dtype in DTYPES:
        for m, n, k in ((100, 70, 33), (1, 1, 1), (5, 4, 0), (0, 3, 2)):
            shapes = (m, k), (n, k), (n,), (m, n)
            a, b, bias, residual = (torch.randn(shape).to(dtype) for shape in shapes)
            wide = F.gelu(F.linear(a.float(), b.float(), bias.float())) + residual.float()
            torch.testing.assert_close(gemm(a, b, bias, residual), wide.to(dtype))
        print(f"gemm of {dtype} with bias, gelu and residual: same as PyTorch")
    a = torch.randn(7, 9)
    torch.testing.assert_close(gemm(a, a), F.gelu(a @ a.T))
    print("gemm with gelu and no more: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
