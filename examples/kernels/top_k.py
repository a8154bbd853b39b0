"""The K largest numbers of each row, and where they are."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, K, T = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.types.T
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)


@tk.gen.kernel(M)
def top_k(
    x: tkl.InputBuffer[M, N, T],
    values: tkl.OutputBuffer[M, K, T],
    places: tkl.OutputBuffer[M, K, tkl.i64],
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N))
    largest, where = tkl.topk(row, K, axis=1)
    tkl.store(values, (i, 0), largest)
    tkl.store(places, (i, 0), where)


def main() -> int:
    kernel = top_k.using(K=3)  # a size that no tensor tells
    for dtype in DTYPES:
        for shape in ((7, 33), (1, 3)):
            x = torch.stack([torch.randperm(shape[1]) for _ in range(shape[0])]).to(dtype)
            expected = torch.topk(x, 3, dim=1)
            values, places = kernel(x)
            torch.testing.assert_close(values, expected.values)
            torch.testing.assert_close(places, expected.indices)
        print(f"top_k of {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
