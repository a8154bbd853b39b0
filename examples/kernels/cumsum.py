"""Running sums of rows: block by block, each of which starts with the total of those before."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, BM, BN, T = tkl.sym.M, tkl.sym.N, tkl.sym.BM, tkl.sym.BN, tkl.types.T
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)


@tk.gen.kernel(M // BM, blocks={BM: 4, BN: 32})
def cumsum(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0) * BM
    wide = tkl.f32 if x.dtype.kind == "float" else tkl.i64

    @tkl.for_loop(0, N // BN, init_args=[tkl.zeros((BM, 1), wide)])
    def blocks(j, before):
        block = tkl.load(x, (i, j * BN), (BM, BN)).to(wide)
        tkl.store(y, (i, j * BN), before + tkl.cumsum(block, axis=1))
        return before + tkl.sum(block, axis=1, keepdims=True)


def main() -> int:
    for dtype in DTYPES:
        for shape in ((3, 100), (1, 1), (5, 0)):
            x = torch.randint(-9, 9, shape).to(dtype)  # sums that every type holds exactly
            torch.testing.assert_close(cumsum(x), x.cumsum(dim=1, dtype=dtype))
        print(f"cumsum of {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
