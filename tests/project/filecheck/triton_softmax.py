"""A kernel for GPUs: the padding of a row is masked off, and its program needs no mask."""

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, T = tkl.sym.M, tkl.sym.N, tkl.types.T


@tk.gen.kernel(M)
def softmax(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N)).to(tkl.f32)
    powers = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), powers / tkl.sum(powers))


# CHECK: @triton.jit
# CHECK-NEXT: def larger(x, y):
# CHECK: def softmax(x, y, N):
# CHECK-NEXT: program = tl.program_id(0)
# CHECK-NEXT: lane_64 = tl.arange(0, 64)
# CHECK-NEXT: # triton_softmax.py:14
# CHECK-NEXT: x_1 = tl.load(x + (N * program) + lane_64, mask=lane_64 < N, other=0.0)
# CHECK-NEXT: cast = x_1.to(tl.float32)
# CHECK-NEXT: # triton_softmax.py:15
# CHECK-NEXT: max = tl.reduce(tl.where(lane_64 < N, cast, float("-inf")), 0, larger)
# CHECK-NEXT: sub = cast - max
# CHECK-NEXT: exp = libdevice.exp(sub)
# CHECK: tl.store(y + (N * program) + lane_64, cast_1, mask=lane_64 < N)
def text() -> str:
    return softmax.text("triton", torch.randn(17, 33).half())
