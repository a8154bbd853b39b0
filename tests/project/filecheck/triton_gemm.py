"""A matmul for GPUs: where blocks divide the sizes there are no masks."""

import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
T = tkl.types.T


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 64, BN: 32, BK: 16})
def gemm(
    a: tkl.InputBuffer[M, K, T], b: tkl.InputBuffer[K, N, T], c: tkl.OutputBuffer[M, N, T]
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def body(k, acc):
        x = tkl.load(a, (i, k * BK), (BM, BK))
        return tkl.dot(x, tkl.load(b, (k * BK, j), (BK, BN)), acc)

    tkl.store(c, (i, j), body[0])


# Programs of eight rows of blocks run together.
# CHECK: group = program // (8 * tl.cdiv(N, 32))
# CHECK: carried = tl.full([64, 32], 0.0, tl.float32)
# CHECK-NEXT: for k in range(0, tl.cdiv(K, 16)):
# CHECK-NEXT: # triton_gemm.py
# CHECK-NEXT: a_1 = tl.load(a + (k * 16 + K * program_0 * 64) + (lane_64[:, None] * K + lane_16
# CHECK-NEXT: # triton_gemm.py
# CHECK-NEXT: b_1 = tl.load(
# CHECK-NEXT: dot = tl.dot(a_1, b_1, carried)
# CHECK-NEXT: carried = dot
# CHECK-NOT: mask=
# CHECK: tl.store(c
def text() -> str:
    return gemm.text("triton", torch.ones(128, 64).half(), torch.ones(64, 96).half())
