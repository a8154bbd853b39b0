"""Layer normalization of rows, and its gradients in one kernel more."""

import sys

import torch
from torch.nn import functional as F

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, BM, T = tkl.sym.M, tkl.sym.N, tkl.sym.BM, tkl.types.T
Rows, Row = tkl.InputBuffer[M, N, T], tkl.InputBuffer[N, T]
Total = tkl.OutputBuffer[N, tkl.f32].filled(0)  # programs add to it
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def normalized(x, i):
    """Rows of mean 0 and deviation 1, and what they were multiplied by."""
    rows = tkl.load(x, (i, 0), (BM, N)).to(tkl.f32)
    centered = rows - tkl.sum(rows, axis=1, keepdims=True) / N
    scale = tkl.rsqrt(tkl.sum(centered * centered, axis=1, keepdims=True) / N + 1e-5)
    return centered * scale, scale


@tk.gen.kernel(M // BM, blocks={BM: 8})
def layernorm(x: Rows, w: Row, b: Row, y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0) * BM
    rows, _ = normalized(x, i)
    tkl.store(y, (i, 0), rows * tkl.load(w, (0,), (N,)) + tkl.load(b, (0,), (N,)))


@tk.gen.kernel(M // BM, blocks={BM: 8})
def gradients(dy: Rows, x: Rows, w: Row, dx: tkl.OutputBuffer[M, N, T], dw: Total, db: Total):
    i = tkl.program_id(0) * BM
    rows, scale = normalized(x, i)
    outer = tkl.load(dy, (i, 0), (BM, N)).to(tkl.f32)
    inner = outer * tkl.load(w, (0,), (N,))
    along = rows * tkl.sum(inner * rows, axis=1, keepdims=True)
    tkl.store(dx, (i, 0), (inner - (along + tkl.sum(inner, axis=1, keepdims=True)) / N) * scale)
    tkl.atomic_add(dw, (0,), tkl.sum(outer * rows, axis=0))
    tkl.atomic_add(db, (0,), tkl.sum(outer, axis=0))


def main() -> int:
    for dtype in DTYPES:
        for m, n in ((7, 100), (65, 33), (1, 1)):
            x, w, b, dy = (torch.randn(s).to(dtype) for s in ((m, n), (n,), (n,), (m, n)))
            inputs = [t.to(torch.float32, copy=True).requires_grad_() for t in (x, w, b)]
            y = F.layer_norm(inputs[0], (n,), *inputs[1:])
            expected = y, *torch.autograd.grad(y, inputs, dy.float())
            found = layernorm(x, w, b), *gradients(dy, x, w)
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs.to(ours.dtype), atol=1e-4, rtol=1e-2)
        print(f"layernorm of {dtype} and its gradients: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
