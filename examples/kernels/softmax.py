"""Softmax of each row: one program a row, which is read once and is as long as the tensor's."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, T = tkl.sym.M, tkl.sym.N, tkl.types.T
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@tk.gen.kernel(M)
def softmax(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32)
    powers = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), powers / tkl.sum(powers))


def main() -> int:
    for dtype in DTYPES:
        for shape in ((17, 33), (3, 1), (1, 1000), (0, 5)):
            x = 3 * torch.randn(shape).to(dtype)
            torch.testing.assert_close(softmax(x), torch.softmax(x, dim=-1))
        print(f"softmax of {dtype}: same as PyTorch")

    # What overflows in a softmax that does not subtract the largest.
    x = torch.tensor([[1e4, 1e4 - 1, -1e4], [-torch.inf, 0, 0]])
    torch.testing.assert_close(softmax(x), torch.softmax(x, dim=-1))
    print("softmax of large numbers: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
