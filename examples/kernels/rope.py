"""Rotary position embedding: pairs of numbers, one of each half of a head, are turned."""

import sys

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

B, S, H, HALF, BLOCK = tkl.symbols("B S H HALF BLOCK")
T = tkl.types.T
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@tk.gen.kernel(B, S // BLOCK)
def rope(
    x: tkl.InputBuffer[B, S, H, 2 * HALF, T],
    cos: tkl.InputBuffer[S, HALF, tkl.f32],
    sin: tkl.InputBuffer[S, HALF, tkl.f32],
    y: tkl.OutputBuffer[B, S, H, 2 * HALF, T],
) -> None:
    b, s = tkl.program_id(0), tkl.program_id(1) * BLOCK
    first = tkl.load(x, (b, s, 0, 0), (1, BLOCK, H, HALF))
    second = tkl.load(x, (b, s, 0, HALF), (1, BLOCK, H, HALF))
    # One angle for all heads: an axis of size 1 stands for them.
    c = tkl.load(cos, (s, 0), (BLOCK, HALF))[None, :, None, :]
    d = tkl.load(sin, (s, 0), (BLOCK, HALF))[None, :, None, :]
    tkl.store(y, (b, s, 0, 0), first * c - second * d)
    tkl.store(y, (b, s, 0, HALF), second * c + first * d)


def expected(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    c, d = cos[:, None, :], sin[:, None, :]
    return torch.cat([first * c - second * d, second * c + first * d], dim=-1).to(x.dtype)


def main() -> int:
    for dtype in DTYPES:
        for batch, length, heads, half in ((1, 77, 3, 5), (2, 13, 4, 16), (3, 1, 1, 1)):
            rates = 10000.0 ** (-torch.arange(half) / half)
            angles = torch.arange(length)[:, None] * rates
            x = torch.randn(batch, length, heads, 2 * half).to(dtype)
            found = rope(x, angles.cos(), angles.sin())
            torch.testing.assert_close(found, expected(x, angles.cos(), angles.sin()))
        print(f"rope of {dtype}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
