"""Attention without the matrix of scores: blocks of keys, a running maximum and a running sum."""

import math
import sys

import torch
from torch.nn import functional as F

import turbine.kernel as tk
import turbine.kernel.lang as tkl

B, H, S, D, BM, BN = tkl.symbols("B H S D BM BN")
In, Out = (kind[B, H, S, D, tkl.types.T] for kind in (tkl.InputBuffer, tkl.OutputBuffer))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def flash_attention(causal: bool, head: int) -> tk.Kernel:
    scale = math.log2(math.e) / math.sqrt(head)  # exp2 of scores that are scaled is their exp

    @tk.gen.kernel(B, H, S // BM)
    def attention(q: In, k: In, v: In, out: Out) -> None:
        b, h, i = (tkl.program_id(axis) for axis in range(3))
        rows = tkl.load(q, (b, h, i * BM, 0), (None, None, BM, D))
        start = [tkl.full((BM,), -math.inf, tkl.f32), tkl.zeros((BM,), tkl.f32)]
        last = tkl.minimum((i + 1) * BM, S) if causal else S  # no key behind the diagonal

        @tkl.for_loop(0, last // BN, init_args=[*start, tkl.zeros((BM, D), tkl.f32)])
        def blocks(j, largest, total, acc):
            keys = tkl.load(k, (b, h, j * BN, 0), (None, None, BN, D))
            values = tkl.load(v, (b, h, j * BN, 0), (None, None, BN, D))
            scores = tkl.dot(rows, tkl.transpose(keys)) * scale
            if causal:
                query, key = i * BM + tkl.arange(BM), j * BN + tkl.arange(BN)
                scores = tkl.where(query[:, None] >= key[None, :], scores, -math.inf)
            new = tkl.maximum(largest, tkl.max(scores, axis=1))
            weights, shrink = tkl.exp2(scores - new[:, None]), tkl.exp2(largest - new)
            total = total * shrink + tkl.sum(weights, axis=1)
            return new, total, tkl.dot(weights.to(q.dtype), values, acc * shrink[:, None])

        _, total, acc = blocks
        tkl.store(out, (b, h, i * BM, 0), acc / total[:, None])

    return attention


def main() -> int:
    for causal in (False, True):
        kernel = flash_attention(causal, head=32)
        for dtype in DTYPES:
            for size in (1, 33, 100):
                q, k, v = (torch.randn(2, 3, size, 32).to(dtype) for _ in range(3))
                expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                torch.testing.assert_close(kernel(q, k, v), expected, atol=1e-2, rtol=1e-2)
            print(f"attention of {dtype}, {causal=}: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
