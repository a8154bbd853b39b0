"""Dropout: whether an element is dropped follows from the seed and its place alone."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

N, BLOCK, T = tkl.sym.N, tkl.sym.BLOCK, tkl.types.T
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@tk.gen.kernel(N // BLOCK)
def dropout(x: tkl.InputBuffer[N, T], y: tkl.OutputBuffer[N, T], p: tkl.f32, seed: tkl.i64) -> None:
    start = tkl.program_id(0) * BLOCK
    # Nothing is kept for the backward pass: the same seed drops the same elements of a gradient.
    kept = tkl.rand(seed, start + tkl.arange(BLOCK)) >= p
    scaled = tkl.load(x, (start,), (BLOCK,)).to(tkl.f32) / (1 - p)
    tkl.store(y, (start,), tkl.where(kept, scaled, 0.0))


def main() -> int:
    for dtype in DTYPES:
        for size in (1, 20000):
            x = torch.rand(size).to(dtype) + 1
            y = dropout(x, 0.25, 7)
            expected = torch.where(y != 0, (x.float() / 0.75).to(dtype), 0)
            torch.testing.assert_close(y, expected)
            assert torch.equal(y, dropout(x, 0.25, 7))
            assert torch.equal(dropout(x, 0.0, 7), x)
        share = (y == 0).float().mean().item()
        assert abs(share - 0.25) < 0.02
        assert not torch.equal(y, dropout(x, 0.25, 8))
        print(f"dropout of {dtype}: {share:.1%} dropped, the rest same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
