"""How often each number occurs: programs add to one buffer of counts at once, by atomics."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

N, BINS, BLOCK, T = tkl.sym.N, tkl.sym.BINS, tkl.sym.BLOCK, tkl.types.T
DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


@tk.gen.kernel(N // BLOCK, blocks={BLOCK: 256})
def histogram(x: tkl.InputBuffer[N, T], counts: tkl.OutputBuffer[BINS, tkl.i64].filled(0)) -> None:
    values = tkl.load(x, (tkl.program_id(0) * BLOCK,), (BLOCK,))
    # A number that is no bin would be an error; without the check it is masked off.
    tkl.atomic_add(counts, (values,), 1, check=False)


def main() -> int:
    kernel = histogram.using(BINS=100)
    for dtype in DTYPES:
        for size in (0, 1, 1000):
            x = torch.randint(0, 120, (size,)).to(dtype)
            expected = torch.bincount(x[x < 100].long(), minlength=100)
            torch.testing.assert_close(kernel(x), expected)
        print(f"histogram of {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
