"""Attention kernels: which patterns they replace, and that they match PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.nn import functional as F

import turbine
from tests.library.placing import NEON, count, exported, placed
from tests.models import Fn, compiled
from turbine import target as targets
from turbine.capture.program import Program
from turbine.library.attention import Layouts, kernels
from turbine.library.heads import Layout
from turbine.target import Target

programs = pytest.mark.sweep(1, "programs")

aten = torch.ops.aten
INF = float("inf")
sdpa = F.scaled_dot_product_attention


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def by_hand_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (bias + (q @ k.transpose(-1, -2)) * 0.3).softmax(-1) @ v


def by_hand_with_mask(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    return scores.masked_fill(seen == 0, -INF).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, is_causal=True)


def kernels_in(program: Program) -> list[str]:
    names = [str(node.target).split(".") for node in program.graph.graph.nodes]
    called = [name[1].rstrip("_0123456789") for name in names if name[0] == "tk"]
    return [name for name in called if name.endswith("attention")]


def heads(*sizes: int, count: int = 3) -> tuple[Tensor, ...]:
    return torch.randn(count, *sizes).unbind(0)


def queries_and_keys(queries: int, keys: int) -> tuple[Tensor, ...]:
    return *heads(2, 3, queries, 16, count=1), *heads(2, 3, keys, 16, count=2)


def seen_but_for_a_row(*sizes: int) -> Tensor:
    seen = torch.rand(sizes) > 0.5
    seen[..., 0, :] = False
    return seen


def keys_of_two_sequences(*, length: int) -> Tensor:
    """One of half the length, and one without any token."""
    return (torch.arange(length) < torch.tensor([length // 2, 0])[:, None])[:, None, None]


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], str]] = {
    "plain": (sdpa, heads(2, 3, 40, 16), "attention"),
    "three axes": (by_hand, heads(6, 33, 16), "attention"),
    "by hand": (by_hand, heads(2, 3, 40, 16), "attention"),
    "cross": (
        sdpa,
        (torch.randn(2, 3, 9, 16), torch.randn(2, 3, 23, 16), torch.randn(2, 3, 23, 8)),
        "attention",
    ),
    "causal": (causal, heads(2, 3, 40, 16), "causal_attention"),
    "causal, fewer keys": (
        causal,
        (*heads(2, 3, 40, 16, count=1), *heads(2, 3, 7, 16, count=2)),
        "causal_attention",
    ),
    "bias": (sdpa, (*heads(2, 3, 40, 16), torch.randn(40, 40)), "biased_attention"),
    "bias of heads": (sdpa, (*heads(2, 3, 40, 16), torch.randn(3, 40, 40)), "biased_attention"),
    "bias by hand": (
        by_hand_with_bias,
        (*heads(6, 33, 16), torch.randn(6, 33, 33)),
        "biased_attention",
    ),
    "bias that hides": (
        sdpa,
        (*heads(2, 3, 40, 16), torch.where(keys_of_two_sequences(length=40), 0.0, -INF)),
        "biased_attention",
    ),
    "mask": (
        sdpa,
        (*heads(2, 3, 40, 16), keys_of_two_sequences(length=40)),
        "masked_attention",
    ),
    "one query": (sdpa, queries_and_keys(1, 40), "attention"),
    "two queries, causal": (causal, queries_and_keys(2, 40), "causal_attention"),
    "one query, bias": (sdpa, (*queries_and_keys(1, 40), torch.randn(1, 40)), "biased_attention"),
    "three queries, mask": (
        sdpa,
        (*queries_and_keys(3, 40), keys_of_two_sequences(length=40)),
        "masked_attention",
    ),
    # A row that sees no key is nan, where PyTorch's own attention gives zeros.
    "mask by hand": (
        by_hand_with_mask,
        (*heads(2, 3, 40, 16), seen_but_for_a_row(2, 1, 40, 40)),
        "masked_attention",
    ),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CASES)
def test_attention_matches_pytorch(name: str) -> None:
    function, args, kernel = CASES[name]
    exported = turbine.aot.export(Fn(function), args=args)
    found = placed(exported.program)
    assert kernels_in(found) == [kernel]
    assert not any(node.target is aten.bmm.default for node in found.graph.graph.nodes)
    torch.testing.assert_close(exported.compile()(*args), function(*args), equal_nan=True)


@programs
@pytest.mark.parametrize(("queries", "is_alone"), [(3, True), (4, False)])
def test_few_queries_are_computed_one_by_one(queries: int, is_alone: bool) -> None:
    exported = turbine.aot.export(Fn(sdpa), args=queries_and_keys(queries, 40))
    kernel = kernels(Layouts(), is_alone=is_alone).plain
    assert count(placed(exported.program), kernel.op.op) == 1


def of_one_tensor(x: Tensor) -> Tensor:
    """Queries, keys and values of (batch, length, 3, heads, width)."""
    q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
    return sdpa(q, k, v).transpose(1, 2).flatten(2)


def of_heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return sdpa(q, k, v, scale=0.3).transpose(1, 2)


def of_scaled_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k * 0.5, v * 2.0))
    return sdpa(q, k, v, is_causal=True).transpose(1, 2)


def of_parts_in_other_places(x: Tensor, k: Tensor) -> Tensor:
    """Queries are the last part, and values come before the batch; keys have heads first."""
    q = x[:, :, -1].transpose(1, 2)
    return sdpa(q, k, x.select(2, 0).permute(0, 2, 1, 3))


ROWS_FIRST, PARTS = Layout("BSHD"), [Layout("BSPHD", part) for part in range(3)]
OF_ONE_TENSOR = Layouts(PARTS[0], PARTS[1], PARTS[2], ROWS_FIRST)
HEADS_LAST = Layouts(ROWS_FIRST, ROWS_FIRST, ROWS_FIRST, ROWS_FIRST)
LAYOUTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], Layouts]] = {
    "one tensor": (of_one_tensor, (torch.randn(2, 37, 3, 4, 16),), OF_ONE_TENSOR),
    "one query of one tensor": (of_one_tensor, (torch.randn(2, 1, 3, 4, 16),), OF_ONE_TENSOR),
    "heads last": (of_heads_last, heads(2, 37, 4, 16), HEADS_LAST),
    "heads first": (sdpa, heads(2, 4, 37, 16), Layouts()),
    "factors": (of_scaled_keys, heads(2, 37, 4, 16), HEADS_LAST),
    "other places": (
        of_parts_in_other_places,
        (torch.randn(2, 37, 3, 4, 16), torch.randn(2, 4, 37, 16)),
        Layouts(PARTS[2], Layout(), PARTS[0]),
    ),
}


@programs
@pytest.mark.parametrize("name", LAYOUTS)
def test_heads_are_read_where_they_are(name: str) -> None:
    function, args, layouts = LAYOUTS[name]
    exported = turbine.aot.export(Fn(function), args=args)
    found = kernels(layouts, is_alone=args[0].shape[1] == 1)
    ops = found.plain.op.op, found.causal.op.op
    assert count(placed(exported.program), *ops) == 1
    torch.testing.assert_close(exported.compile()(*args), function(*args))


def of_batches_last(x: Tensor) -> Tensor:
    """As nn.MultiheadAttention has it: rows before the batch, and heads in one axis with it."""
    rows, batch, columns = x.shape
    parts = x.unflatten(-1, (3, columns // 3)).unsqueeze(0).transpose(0, -2).squeeze(-2)
    q, k, v = (
        part.view(rows, batch * 4, -1).transpose(0, 1).view(batch, 4, rows, -1)
        for part in parts.contiguous().unbind(0)
    )
    return sdpa(q, k, v).permute(2, 0, 1, 3).flatten(2)


def of_repeated_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (one.repeat_interleave(3, 1) for one in (k, v.transpose(1, 2)))
    return causal(q, k, v)


def of_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k[:, None].expand(-1, 6, -1, -1), v[:, None].expand(-1, 6, -1, -1))


SHARED, BATCHES_LAST = Layout(repeats=3), [Layout("SBPHD", part) for part in range(3)]
LAYOUTS_ON_GPUS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], Layouts]] = {
    "batches last": (
        of_batches_last,
        (torch.randn(37, 2, 3 * 4 * 16),),
        Layouts(BATCHES_LAST[0], BATCHES_LAST[1], BATCHES_LAST[2], Layout("SBHD")),
    ),
    "repeated heads": (
        of_repeated_heads,
        (*heads(2, 6, 37, 16, count=1), torch.randn(2, 2, 37, 16), torch.randn(2, 37, 2, 16)),
        Layouts(k=SHARED, v=Layout("BSHD", repeats=3)),
    ),
    "one head": (
        of_one_head,
        (*heads(2, 6, 37, 16, count=1), torch.randn(2, 37, 16), torch.randn(2, 37, 16)),
        Layouts(k=Layout(repeats=6), v=Layout(repeats=6)),
    ),
    "one row of a mask": (
        sdpa,
        (*heads(2, 3, 40, 16), torch.where(keys_of_two_sequences(length=40), 0.0, -INF)),
        Layouts(has_mask_row=True),
    ),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", [*LAYOUTS, *LAYOUTS_ON_GPUS])
def test_heads_are_read_where_they_are_on_gpus(name: str) -> None:
    function, args, layouts = (LAYOUTS | LAYOUTS_ON_GPUS)[name]
    program = placed(exported(Fn(function), *args), targets.parse("cuda:sm_90"))
    found = kernels(layouts, is_alone=args[0].shape[1] == 1)
    ops = [one.op.op for one in (found.plain, found.causal, found.biased)]
    assert count(program, *ops) == 1
    (result,) = program.graph(*args)  # on the CPU
    torch.testing.assert_close(result, function(*args))


@programs
@pytest.mark.parametrize("function", [sdpa, causal], ids=["plain", "causal"])
def test_dynamic_shapes_are_supported(function: Callable[..., Tensor]) -> None:
    sizes = {0: Dim("batch", min=1, max=9), 2: Dim("length", min=2, max=999)}
    shapes = ((sizes, sizes, sizes),)
    exported = turbine.aot.export(Fn(function), args=heads(2, 3, 40, 16), dynamic_shapes=shapes)
    assert kernels_in(placed(exported.program))
    artifact = exported.compile()
    for args in (heads(1, 3, 2, 16), heads(2, 3, 40, 16), heads(5, 3, 77, 16)):
        torch.testing.assert_close(artifact(*args), function(*args))


@programs
def test_overflowing_scores_are_nan_as_in_pytorch() -> None:
    q, k, v = heads(1, 2, 8, 16)
    q[0, 0, 3] = INF
    v[0, 1, 5] = float("nan")
    artifact = compiled(sdpa, q, k, v)
    # Its kernel for AVX-512 has zeros where all scores of a query are nan.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = sdpa(q, k, v)
    torch.testing.assert_close(artifact(q, k, v), expected, equal_nan=True)


def masked_before_it_is_scaled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.transpose(-1, -2) + bias) * 0.5).softmax(-1) @ v


def hidden_by_a_large_number(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)).masked_fill(bias < 0, -1e9).softmax(-1) @ v


def weights_are_used_again(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    weights = (q @ k.transpose(-1, -2) + bias).softmax(-1)
    return weights @ v + weights.sum()


def along_queries(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) + bias).softmax(-2) @ v


def bias_has_more_axes(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q[:1, :1] @ k[:1, :1].transpose(-1, -2) + bias).softmax(-1) @ v


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "function",
    [
        masked_before_it_is_scaled,
        hidden_by_a_large_number,
        weights_are_used_again,
        along_queries,
        bias_has_more_axes,
    ],
)
def test_other_patterns_are_not_replaced(function: Callable[..., Tensor]) -> None:
    args = *heads(2, 3, 12, 16), torch.randn(2, 3, 12, 12)
    exported = turbine.aot.export(Fn(function), args=args)
    assert kernels_in(placed(exported.program)) == []


@programs
@pytest.mark.parametrize(
    ("args", "target"),
    [
        (heads(2, 3, 40, 300), NEON),
        (tuple(one.double() for one in heads(2, 3, 40, 16)), NEON),
        (heads(2, 3, 40, 16), targets.parse("hip:gfx942")),
    ],
    ids=["many features", "float64", "GPU without kernels"],
)
def test_unsupported_attention_is_not_replaced(args: tuple[Tensor, ...], target: Target) -> None:
    exported = turbine.aot.export(Fn(sdpa), args=args)
    assert kernels_in(placed(exported.program, target)) == []


@programs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_heads_are_widened_for_the_kernel(dtype: torch.dtype) -> None:
    query, key, value = (one.to(dtype) for one in heads(2, 3, 40, 16))
    args = query, key, value
    exported = turbine.aot.export(Fn(sdpa), args=args)
    assert len(kernels_in(placed(exported.program))) == 1
    result = exported.compile()(*args)
    assert result.dtype == dtype
    # PyTorch rounds the probabilities as well.
    exact = sdpa(query.double(), key.double(), value.double())
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
