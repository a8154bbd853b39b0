"""z = x + y: one program for each block of elements, whatever the size and the element type."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

N, BLOCK = tkl.sym.N, tkl.sym.BLOCK
T = tkl.types.T  # the element type of the tensors that are passed
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = (*FLOATS, torch.int8, torch.int32, torch.int64, torch.uint8)


@tk.gen.kernel(N // BLOCK)
def vector_add(
    x: tkl.InputBuffer[N, T], y: tkl.InputBuffer[N, T], z: tkl.OutputBuffer[N, T]
) -> None:
    start = tkl.program_id(0) * BLOCK
    total = tkl.load(x, (start,), (BLOCK,)) + tkl.load(y, (start,), (BLOCK,))
    tkl.store(z, (start,), total)


def main() -> int:
    for dtype in DTYPES:
        # The last block sticks out: 1025 is one more than a block has, and 0 has none.
        for size in (0, 1, 1025, 5000):
            x, y = (torch.randint(0, 100, (size,)).to(dtype) for _ in range(2))
            torch.testing.assert_close(vector_add(x, y), x + y)
        print(f"vector_add of {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
