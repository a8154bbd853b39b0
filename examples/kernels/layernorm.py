"""Layer normalization of rows, and its gradients in one kernel more."""

import sys

import torch
from torch.nn import functional as F

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, BM, T = tkl.sym.M, tkl.sym.N, tkl.sym.BM, tkl.types.T
Rows, Row, New = tkl.InputBuffer[M, N, T], tkl.InputBuffer[N, T], tkl.OutputBuffer[M, N, T]
Total = tkl.OutputBuffer[N, tkl.f32].filled(0)  # programs add to it
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def normalized(x, i):  # rows of mean 0 and deviation 1, and what they were multiplied by
    rows = tkl.load(x, (i, 0), (BM, N)).to(tkl.f32)
    centered = rows - tkl.sum(rows, axis=1, keepdims=True) / N
    scale = tkl.rsqrt(tkl.sum(centered * centered, axis=1, keepdims=True) / N + 1e-5)
    return centered * scale, scale


@tk.gen.kernel(M // BM, blocks={BM: 8})
def layernorm(x: Rows, w: Row, b: Row, y: New) -> None:
    i = tkl.program_id(0) * BM
    rows = normalized(x, i)[0]
    tkl.store(y, (i, 0), rows * tkl.load(w, (0,), (N,)) + tkl.load(b, (0,), (N,)))


@layernorm.register_backward
@tk.gen.kernel(M // BM, blocks={BM: 8})
def gradients(x: Rows, w: Row, grad_y: Rows, grad_x: New, grad_w: Total, grad_b: Total) -> None:
    i = tkl.program_id(0) * BM
    rows, scale = normalized(x, i)
    outer = tkl.load(grad_y, (i, 0), (BM, N)).to(tkl.f32)
    inner = outer * tkl.load(w, (0,), (N,))
    lost = rows * tkl.sum(inner * rows, 1, keepdims=True) + tkl.sum(inner, 1, keepdims=True)
    tkl.store(grad_x, (i, 0), (inner - lost / N) * scale)
    tkl.atomic_add(grad_w, (0,), tkl.sum(outer * rows, axis=0))
    tkl.atomic_add(grad_b, (0,), tkl.sum(outer, axis=0))


def main() -> int:
    for dtype in DTYPES:
        for m, n in ((7, 100), (65, 33), (1, 1)):
            leaves = [torch.randn(s).to(dtype).requires_grad_() for s in ((m, n), (n,), (n,))]
            wide = [leaf.float() for leaf in leaves]
            ours, theirs = layernorm(*leaves), F.layer_norm(wide[0], (n,), *wide[1:])
            slope = torch.randn(m, n).to(dtype)
            found = [ours, *torch.autograd.grad(ours, leaves, slope)]
            expected = [theirs.to(dtype), *torch.autograd.grad(theirs, leaves, slope.float())]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-2)
        print(f"layernorm of {dtype} and its gradients: same as PyTorch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
