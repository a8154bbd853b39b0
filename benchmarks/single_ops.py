"""Time single ops as artifacts beside eager PyTorch: what no kernel was tuned for shows here.

The slowest ops come first. A ratio is eager's time over the artifact's: above 1 the artifact is
faster.

    python benchmarks/single_ops.py --ops cumsum,sort --seconds 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timing import Call, calls_in, round_robin, warn_if_busy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from turbine import aot, errors
from turbine.tables import table

SHORTEST_TURN = 1e-3  # seconds
ERROR_LIMIT = 1e-3

Op = tuple[Callable[..., Any], tuple[Any, ...]]


class Calling(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def uniform(*sizes: int) -> Tensor:
    return torch.rand(*sizes)


def normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes)


def indices(limit: int, *sizes: int) -> Tensor:
    return torch.randint(limit, sizes)


def layer(module: nn.Module, *args: Tensor) -> Op:
    return module.eval(), args


def loops() -> dict[str, Op]:
    """A value for each element."""
    x, y = normal(1024, 1024), normal(1024, 1024)
    column, row = normal(1024, 1), normal(1024)
    return {
        "add": (torch.add, (x, y)),
        "add_row": (torch.add, (x, row)),
        "add_column": (torch.add, (x, column)),
        "add_transposed": (lambda x, y: x + y.T, (x, y)),
        "exp": (torch.exp, (x,)),
        "log": (torch.log, (uniform(1024, 1024),)),
        "sin": (torch.sin, (x,)),
        "tanh": (torch.tanh, (x,)),
        "gelu": (F.gelu, (x,)),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (x,)),
        "silu": (F.silu, (x,)),
        "softplus": (F.softplus, (x,)),
        "pow": (torch.pow, (uniform(1024, 1024), 1.7)),
        "sqrt_divide": (lambda x, y: x / (y.sqrt() + 1e-5), (x, y.abs())),
        "where": (torch.where, (x > 0, x, y)),
        "clamp": (lambda x: x.clamp(-1, 1), (x,)),
        "to_bf16": (lambda x: x.bfloat16(), (x,)),
        "from_int8": (lambda x: x.float() * 0.1, (indices(127, 1024, 1024).to(torch.int8),)),
        "erf": (torch.erf, (x,)),
        "integer_divide": (lambda x: x // 7, (indices(10**6, 1024, 1024),)),
        "logical": (lambda x, y: (x > 0) & (y > 0), (x, y)),
    }


def reductions() -> dict[str, Op]:
    x, image = normal(1024, 1024), normal(8, 64, 56, 56)
    labels = indices(1024, 1024)
    return {
        "sum": (torch.sum, (x,)),
        "sum_rows": (lambda x: x.sum(-1), (x,)),
        "sum_columns": (lambda x: x.sum(0), (x,)),
        "mean_rows": (lambda x: x.mean(-1), (x,)),
        "mean_image": (lambda x: x.mean((2, 3)), (image,)),
        "mean_batch": (lambda x: x.mean((0, 2, 3)), (image,)),
        "max_rows": (lambda x: x.amax(-1), (x,)),
        "argmax_rows": (lambda x: x.argmax(-1), (x,)),
        "argmax_columns": (lambda x: x.argmax(0), (x,)),
        "max_with_index": (lambda x: x.max(-1), (x,)),
        "var_rows": (lambda x: x.var(-1), (x,)),
        "norm_rows": (lambda x: x.norm(dim=-1), (x,)),
        "normalize": (F.normalize, (x,)),
        "softmax": (lambda x: x.softmax(-1), (x,)),
        "softmax_columns": (lambda x: x.softmax(0), (x,)),
        "log_softmax": (lambda x: x.log_softmax(-1), (x,)),
        "logsumexp": (lambda x: x.logsumexp(-1), (x,)),
        "cross_entropy": (F.cross_entropy, (x, labels)),
        "mse_loss": (F.mse_loss, (x, normal(1024, 1024))),
        "layer_norm": layer(nn.LayerNorm(1024), x),
        "rms_norm": layer(nn.RMSNorm(1024), x),
        "group_norm": layer(nn.GroupNorm(8, 64), image),
        "instance_norm": layer(nn.InstanceNorm2d(64), image),
        "batch_norm": layer(nn.BatchNorm2d(64), image),
        "cumsum_rows": (lambda x: x.cumsum(-1), (x,)),
        "cumsum_columns": (lambda x: x.cumsum(0), (x,)),
        "cumprod": (lambda x: x.cumprod(-1), (uniform(1024, 1024) + 0.5,)),
        "cummax": (lambda x: x.cummax(-1), (x,)),
        "any_rows": (lambda x: (x > 3).any(-1), (x,)),
        "count": (lambda x: (x > 0).sum(), (x,)),
        "sum_int": (lambda x: x.sum(-1), (indices(100, 1024, 1024),)),
    }


def movement() -> dict[str, Op]:
    """Values that only move."""
    x, image = normal(1024, 1024), normal(8, 64, 56, 56)
    table_of_rows, places = normal(30000, 256), indices(30000, 2048)
    columns = indices(1024, 1024, 1024)
    distinct = torch.randperm(2**20).float()  # of equal elements the order is open
    return {
        "transpose": (lambda x: x.T.contiguous(), (x,)),
        "permute_image": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (image,)),
        "permute_heads": (
            lambda x: x.view(8, 128, 16, 64).transpose(1, 2).contiguous(),
            (x,),
        ),
        "cat_rows": (lambda x: torch.cat([x, x]), (x,)),
        "cat_columns": (lambda x: torch.cat([x, x, x], 1), (x,)),
        "stack": (lambda x: torch.stack([x, x], -1), (x,)),
        "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), (image,)),
        "pad_reflect": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (image,)),
        "roll": (lambda x: x.roll((3, 5), (0, 1)), (x,)),
        "flip": (lambda x: x.flip(-1), (x,)),
        "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (x,)),
        "tile": (lambda x: x.repeat(2, 2), (x,)),
        "strided_slice": (lambda x: x[:, ::2].contiguous(), (x,)),
        "tril": (torch.tril, (x,)),
        "embedding": (F.embedding, (places, table_of_rows)),
        "index_select": (lambda x, i: x.index_select(1, i), (x, indices(1024, 512))),
        "gather": (lambda x, i: x.gather(1, i), (x, columns)),
        "take_pairs": (lambda x, i, j: x[i, j], (x, indices(1024, 10**5), indices(1024, 10**5))),
        "scatter_add": (lambda x, i: torch.zeros_like(x).scatter_add(1, i, x), (x, columns)),
        "index_add": (
            lambda x, i: torch.zeros(1024, 1024).index_add(0, i, x),
            (x, indices(1024, 1024)),
        ),
        "index_put": (
            lambda x, i, y: x.index_put((i,), y),
            (x, torch.randperm(1024)[:256], x[:256]),
        ),
        "masked_fill": (lambda x: x.masked_fill(x > 0, 1.0), (x,)),
        "one_hot": (lambda i: F.one_hot(i, 1000), (indices(1000, 1024),)),
        "embedding_bag": layer(nn.EmbeddingBag(30000, 128, mode="mean"), indices(30000, 512, 20)),
        "sort": (lambda x: x.sort(-1), (distinct.view(1024, 1024),)),
        "argsort_long": (lambda x: x.argsort(), (torch.randperm(10**5).float(),)),
        "topk": (lambda x: x.topk(10, -1), (x,)),
        "topk_long": (lambda x: x.topk(50), (normal(50000),)),
        "bincount": (lambda x: torch.bincount(x, minlength=256), (indices(256, 10**6),)),
        "searchsorted": (torch.searchsorted, (torch.arange(10**4).float(), 1e4 * uniform(10**5))),
        "arange": (lambda x: torch.arange(10**6).float() + x, (normal(1),)),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), (image,)),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (image,)),
    }


def matmuls() -> dict[str, Op]:
    x = normal(512, 512)
    return {
        "mm": (torch.mm, (x, normal(512, 512))),
        "mm_transposed": (lambda x, y: x.T @ y, (x, normal(512, 512))),
        "mm_by_transposed": (lambda x, y: x @ y.T, (x, normal(512, 512))),
        "mm_odd": (torch.mm, (normal(501, 333), normal(333, 617))),
        "mm_tall": (torch.mm, (normal(20000, 64), normal(64, 64))),
        "mm_deep": (torch.mm, (normal(64, 20000), normal(20000, 64))),
        "mm_f64": (torch.mm, (x.double(), normal(512, 512).double())),
        "mm_bf16": (torch.mm, (x.bfloat16(), normal(512, 512).bfloat16())),
        "mm_int32": (torch.mm, (indices(9, 256, 256).int(), indices(9, 256, 256).int())),
        "mv": (torch.mv, (normal(2048, 2048), normal(2048))),
        "vm": (lambda v, m: v @ m, (normal(2048), normal(2048, 2048))),
        "dot": (torch.dot, (normal(10**6), normal(10**6))),
        "outer": (torch.outer, (normal(1024), normal(1024))),
        "bmm_small": (torch.bmm, (normal(512, 32, 32), normal(512, 32, 32))),
        "bmm_few": (torch.bmm, (normal(8, 256, 256), normal(8, 256, 256))),
        "bmm_rows": (torch.bmm, (normal(64, 1, 512), normal(64, 512, 256))),
        "einsum_heads": (
            lambda q, k: torch.einsum("bshd,bthd->bhst", q, k),
            (normal(4, 128, 8, 64), normal(4, 128, 8, 64)),
        ),
        "einsum_bilinear": (
            lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y),
            (normal(64, 64), normal(64, 64, 64), normal(64, 64)),
        ),
        "linear": layer(nn.Linear(512, 512), x),
        "linear_one_row": layer(nn.Linear(1024, 1024), normal(1, 1024)),
        "linear_narrow": layer(nn.Linear(1024, 10), normal(1024, 1024)),
        "bilinear": layer(nn.Bilinear(64, 64, 32), normal(128, 64), normal(128, 64)),
        "cdist": (torch.cdist, (normal(512, 64), normal(512, 64))),
        "cosine_similarity": (F.cosine_similarity, (normal(4096, 256), normal(4096, 256))),
        "attention": (F.scaled_dot_product_attention, tuple(normal(3, 2, 8, 256, 64))),
        "attention_causal": (
            lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True),
            tuple(normal(3, 2, 8, 256, 64)),
        ),
        "attention_few_keys": (F.scaled_dot_product_attention, tuple(normal(3, 32, 8, 49, 32))),
        "attention_bf16": (
            F.scaled_dot_product_attention,
            tuple(normal(3, 2, 8, 256, 64).bfloat16()),
        ),
        "cholesky": (torch.linalg.cholesky, (torch.eye(64) * 70 + uniform(64, 64),)),
        "solve": (torch.linalg.solve, (torch.eye(64) * 70 + uniform(64, 64), normal(64, 8))),
    }


def convolutions() -> dict[str, Op]:
    image, small, line = normal(4, 64, 56, 56), normal(4, 3, 112, 112), normal(8, 64, 512)
    volume = normal(2, 16, 16, 32, 32)
    return {
        "conv1x1": layer(nn.Conv2d(64, 64, 1), image),
        "conv3x3": layer(nn.Conv2d(64, 64, 3, padding=1), image),
        "conv3x3_stride2": layer(nn.Conv2d(64, 128, 3, padding=1, stride=2), image),
        "conv3x3_valid": layer(nn.Conv2d(64, 64, 3), image),
        "conv7x7_rgb": layer(nn.Conv2d(3, 64, 7, padding=3, stride=2), small),
        "conv_patches": layer(nn.Conv2d(3, 192, 16, stride=16), small),
        "conv_dilated": layer(nn.Conv2d(64, 64, 3, padding=2, dilation=2), image),
        "conv_grouped": layer(nn.Conv2d(64, 64, 3, padding=1, groups=4), image),
        "conv_depthwise": layer(nn.Conv2d(64, 64, 3, padding=1, groups=64), image),
        "conv_depthwise7": layer(nn.Conv2d(64, 64, 7, padding=3, groups=64), image),
        "conv_depthwise_dilated": layer(
            nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=64), image
        ),
        "conv_bf16": layer(nn.Conv2d(64, 64, 3, padding=1).bfloat16(), image.bfloat16()),
        "conv1d": layer(nn.Conv1d(64, 64, 5, padding=2), line),
        "conv1d_dilated": layer(nn.Conv1d(64, 64, 3, padding=4, dilation=4), line),
        "conv3d": layer(nn.Conv3d(16, 32, 3, padding=1), volume),
        "conv_transposed": layer(nn.ConvTranspose2d(64, 32, 2, stride=2), image),
        "conv_transposed4": layer(nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), image),
        "conv_transposed1d": layer(nn.ConvTranspose1d(64, 32, 4, stride=2, padding=1), line),
        "max_pool": layer(nn.MaxPool2d(2), image),
        "max_pool3_stride2": layer(nn.MaxPool2d(3, 2, 1), image),
        "max_pool_indices": layer(nn.MaxPool2d(2, return_indices=True), image),
        "avg_pool": layer(nn.AvgPool2d(2), image),
        "avg_pool3": layer(nn.AvgPool2d(3, 1, 1), image),
        "adaptive_pool": layer(nn.AdaptiveAvgPool2d(7), image),
        "max_pool1d": layer(nn.MaxPool1d(2), line),
        "upsample_nearest": (lambda x: F.interpolate(x, scale_factor=2), (image,)),
        "upsample_bilinear": (
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            (image,),
        ),
        "resize_bicubic": (
            lambda x: F.interpolate(x, (80, 80), mode="bicubic"),
            (small,),
        ),
        "grid_sample": (
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            (image, 2 * uniform(4, 56, 56, 2) - 1),
        ),
        "fft": (lambda x: torch.fft.rfft(x).abs(), (normal(64, 1024),)),
        "stft": (
            lambda x, w: torch.stft(x, 400, 160, window=w, return_complex=True).abs(),
            (normal(4, 16000), torch.hann_window(400)),
        ),
    }


def all_ops() -> dict[str, Op]:
    torch.manual_seed(0)
    return loops() | reductions() | movement() | matmuls() | convolutions()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    rows: list[tuple[float, tuple[str, ...]]] = []
    failures = []
    ops = all_ops()
    for name in options.ops:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            eager, ours = measure(*ops[name], seconds=options.seconds)
        except Exception as error:  # whatever it is, the other ops go on
            failures.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        ratio = eager / ours
        rows.append((ratio, (name, f"{1e3 * eager:.3f}", f"{1e3 * ours:.3f}", f"{ratio:.2f}")))
    lines = [("op", "eager ms", "artifact ms", "x"), *(row for _, row in sorted(rows))]
    print(table(lines, right=range(1, 4)))
    print("\n".join(failures), end="\n" if failures else "")
    return 1 if failures else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=lambda text: text.split(","), help="default: all")
    parser.add_argument("--seconds", type=float, default=0.5, help="time spent on an op")
    options = parser.parse_args(arguments)
    known = all_ops()
    options.ops = options.ops or list(known)
    for name in options.ops:
        if name not in known:
            parser.error(errors.unknown("op", name, known))
    return options


@torch.no_grad()
def measure(function: Callable[..., Any], args: tuple[Any, ...], *, seconds: float) -> Any:
    """The median times of eager PyTorch and of an artifact; their results are compared."""
    module = function if isinstance(function, nn.Module) else Calling(function)
    artifact = aot.export(module, args=args).compile()
    compare(tree_leaves(artifact(*args)), tree_leaves(module(*args)))
    calls: dict[str, Call] = {"eager": lambda: module(*args), "artifact": lambda: artifact(*args)}
    timings = round_robin(calls, seconds=seconds, block=calls_in(SHORTEST_TURN, calls["eager"]))
    return timings["eager"].median, timings["artifact"].median


def compare(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        largest = other.double().abs().max().item() or 1.0
        error = (one.double() - other.double()).abs().max().item() / largest
        if not error <= (ERROR_LIMIT if other.dtype != torch.bfloat16 else 0.05):
            raise ValueError(f"wrong by {error:.1e}")


if __name__ == "__main__":
    sys.exit(main())
