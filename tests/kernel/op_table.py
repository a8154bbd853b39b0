"""Ops of the language on tiles: calls, arguments and the equivalent in PyTorch.

tests/kernel/test_lang_ops.py runs them. A new op is a row here, or a program there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import turbine.kernel.lang as tkl
from tests.kernel.philox import uniform, words

NAN, INF = float("nan"), float("inf")


# Samples: two matrices, and the tile that is read of them


@dataclass(frozen=True)
class Sample:
    x: Tensor
    y: Tensor
    tile: tuple[int, int] = (4, 8)


def floats(dtype: torch.dtype) -> Sample:
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(3, 7, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    return Sample(x.to(dtype), y.to(dtype))


def integers(dtype: torch.dtype) -> Sample:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(4)
    low, high = max(limits.min, -(2**40)), min(limits.max, 2**40)
    x = torch.randint(low, high, (3, 7), generator=generator)
    y = torch.randint(max(low, -3), 5, (3, 7), generator=generator)
    x[0, :2] = torch.tensor([limits.min, limits.max])
    return Sample(x.to(dtype), y.to(dtype))


def edges() -> Sample:
    numbers = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, 1e-30, 88.0, -88.0]
    x = torch.tensor([*numbers, *numbers[:7]]).reshape(3, 7)
    return Sample(x, x.flip(1).roll(1, 0))


SAMPLES = {
    "f32": floats(torch.float32),
    "edges": edges(),
    "i32": integers(torch.int32),
    "bool": Sample(torch.tensor([[True, False, True]]), torch.tensor([[True, True, False]])),
    "whole": Sample(torch.arange(12).reshape(3, 4), 10 - torch.arange(12).reshape(3, 4), (3, 4)),
    "f16": floats(torch.float16),
    "bf16": floats(torch.bfloat16),
    "f64": floats(torch.float64),
    "i8": integers(torch.int8),
    "i64": integers(torch.int64),
    "u8": integers(torch.uint8),
}
# Each op is in one of these; a run takes rows of some other samples as well.
ALWAYS = ("f32", "i32", "bool", "whole")
OTHERS = tuple(name for name in SAMPLES if name not in ALWAYS)
FLOATS = ("f32", "edges", "f16", "bf16", "f64")
INTEGERS = ("i32", "i8", "i64", "u8")
SIGNED = ("i32", "i8", "i64")
NUMBERS = FLOATS + INTEGERS
BITS = (*INTEGERS, "bool")
ANY = (*NUMBERS, "bool")
WHOLE = ("whole",)


# Rows: an op on tiles, and what it means


@dataclass(frozen=True)
class Row:
    """An op, a reference on the same matrices, and how to call it, if not with the tiles alone."""

    op: Any
    reference: Callable[..., Any]
    samples: tuple[str, ...]
    call: Callable[[Any, Any], Any] | None = None

    def on_tiles(self, x: Any, y: Any) -> tuple[Any, ...]:
        given = self.call(x, y) if self.call else self.op(*self._operands(x, y))
        return tuple(given) if isinstance(given, (tuple, list)) else (given,)

    def on_tensors(self, sample: Sample) -> tuple[Tensor, ...]:
        x, y = sample.x, sample.y
        given = self.reference(x, y) if self.call else self.reference(*self._operands(x, y))
        return tuple(given) if isinstance(given, (tuple, list)) else (given,)

    def _operands(self, *operands: Any) -> tuple[Any, ...]:
        return operands[: len(inspect.signature(self.op).parameters)]


def guard_zero_divisor(
    function: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor], Tensor]:
    """A division in which an integer divided by zero gives zero."""

    def divide(x: Tensor, y: Tensor) -> Tensor:
        if x.is_floating_point():
            return function(x, y)
        is_zero = y == 0
        return torch.where(is_zero, 0, function(x, torch.where(is_zero, 1, y)))

    return divide


def shift_left(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y >= 0, x << y.clamp(min=0), 0)


def shift_right(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y >= 0, x >> y.clamp(min=0), -(x < 0).to(x.dtype))


def multiply_matrices(x: Tensor, y: Tensor) -> Tensor:
    narrow = torch.float32 if x.is_floating_point() else torch.int32
    dtype = x.dtype if x.dtype.itemsize == 8 else narrow
    return x.to(dtype) @ y.T.to(dtype)


def scan_both_ways(scan: Callable[[Tensor, int], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    return scan(x, 1), scan(x.flip(1), 1).flip(1)


def running_maximum(x: Tensor, axis: int) -> Tensor:
    return torch.cummax(x, axis).values


def running_minimum(x: Tensor, axis: int) -> Tensor:
    return torch.cummin(x, axis).values


def decay(x: Tensor, y: Tensor) -> Tensor:
    """The recurrence h[i] = h[i - 1] / 2 + x[i] along rows."""
    columns = [x[:, 0]]
    for column in x.T[1:]:
        columns.append(columns[-1] * 0.5 + column)
    return torch.stack(columns, 1)


def decay_tiles(x: Any, y: Any) -> Any:
    def step(one: Any, other: Any) -> Any:
        return one[0] * other[0], one[1] * other[0] + other[1]

    return tkl.associative_scan(step, (tkl.full(x.shape, 0.5, x.dtype), x), axis=1)[1]


def sort_rows(x: Tensor, descending: bool = False) -> tuple[Tensor, Tensor]:
    given = torch.sort(x, dim=1, stable=True, descending=descending)
    return given.values, given.indices


def random_words(place: int) -> Tensor:
    """One of the four words of the generator for seed 7 and offsets from 0 to 8."""
    return torch.tensor([words(7, offset)[place] for offset in range(9)]).to(torch.uint32)


def uniform_numbers(place: int) -> Tensor:
    return torch.tensor([float(uniform(word)) for word in random_words(place).tolist()])


def normal_numbers() -> Tensor:
    radius = torch.sqrt(-2 * torch.log(uniform_numbers(0).clamp(min=1e-7)))
    return radius * torch.cos(2 * torch.pi * uniform_numbers(1))


ARITHMETIC = [
    Row(tkl.add, torch.add, NUMBERS),
    Row(tkl.sub, torch.sub, NUMBERS),
    Row(tkl.mul, torch.mul, NUMBERS),
    Row(tkl.truediv, torch.div, NUMBERS),
    Row(tkl.floordiv, guard_zero_divisor(torch.floor_divide), NUMBERS),
    Row(tkl.mod, guard_zero_divisor(torch.remainder), NUMBERS),
    Row(tkl.pow, torch.pow, FLOATS),
    Row(tkl.pow, lambda x, y: x**3, INTEGERS, lambda x, y: tkl.pow(x, 3)),
    Row(tkl.neg, torch.neg, NUMBERS),
    Row(tkl.abs, torch.abs, NUMBERS),
    Row(tkl.fma, lambda x, y: x * y + x, INTEGERS, lambda x, y: tkl.fma(x, y, x)),
    Row(
        tkl.fma,
        lambda x, y: (x.double() * y.double() + x.double()).to(x.dtype),
        FLOATS,
        lambda x, y: tkl.fma(x, y, x),
    ),
    Row(tkl.minimum, torch.minimum, ANY),
    Row(tkl.maximum, torch.maximum, ANY),
    Row(tkl.clamp, lambda x, y: x.clamp(1, 2), NUMBERS, lambda x, y: tkl.clamp(x, 1, 2)),
    Row(tkl.clamp, lambda x, y: x.clamp(max=2), NUMBERS, lambda x, y: tkl.clamp(x, max=2)),
    Row(tkl.clamp, lambda x, y: x.clamp(min=2), NUMBERS, lambda x, y: tkl.clamp(x, min=2)),
    Row(tkl.cdiv, lambda x, y: x // 3 + (x % 3 != 0), SIGNED, lambda x, y: tkl.cdiv(x, 3)),
    Row(tkl.less, torch.lt, ANY),
    Row(tkl.less_equal, torch.le, ANY),
    Row(tkl.greater, torch.gt, ANY),
    Row(tkl.greater_equal, torch.ge, ANY),
    Row(tkl.equal, torch.eq, ANY),
    Row(tkl.not_equal, torch.ne, ANY),
    Row(
        tkl.where,
        lambda x, y: torch.where(x < y, x, y),
        ANY,
        lambda x, y: tkl.where(x < y, x, y),
    ),
    Row(tkl.logical_and, torch.logical_and, ANY),
    Row(tkl.logical_or, torch.logical_or, ANY),
    Row(tkl.logical_not, torch.logical_not, ANY),
    Row(tkl.bitwise_and, torch.bitwise_and, BITS),
    Row(tkl.bitwise_or, torch.bitwise_or, BITS),
    Row(tkl.bitwise_xor, torch.bitwise_xor, BITS),
    Row(tkl.bitwise_not, torch.bitwise_not, BITS),
    Row(tkl.shift_left, shift_left, INTEGERS),
    Row(tkl.shift_right, shift_right, INTEGERS),
]
FUNCTIONS = [
    Row(tkl.exp, torch.exp, NUMBERS),
    Row(tkl.exp2, torch.exp2, FLOATS),
    Row(tkl.expm1, torch.expm1, FLOATS),
    Row(tkl.log, torch.log, NUMBERS),
    Row(tkl.log2, torch.log2, FLOATS),
    Row(tkl.log1p, torch.log1p, FLOATS),
    Row(tkl.sqrt, torch.sqrt, NUMBERS),
    Row(tkl.rsqrt, torch.rsqrt, FLOATS),
    Row(tkl.tanh, torch.tanh, FLOATS),
    Row(tkl.sigmoid, torch.sigmoid, FLOATS),
    Row(tkl.erf, torch.erf, FLOATS),
    Row(tkl.sin, torch.sin, FLOATS),
    Row(tkl.cos, torch.cos, FLOATS),
    Row(tkl.floor, torch.floor, NUMBERS),
    Row(tkl.ceil, torch.ceil, NUMBERS),
    Row(tkl.round, torch.round, NUMBERS),
    Row(tkl.trunc, torch.trunc, NUMBERS),
    Row(
        tkl.to_dtype,
        lambda x, y: (x.to(torch.float32), x.to(torch.bool)),
        ANY,
        lambda x, y: (tkl.to_dtype(x, tkl.f32), tkl.to_dtype(x, tkl.bool)),
    ),
    Row(
        tkl.bitcast,
        lambda x, y: x.view(torch.int32),
        ("f32", "edges"),
        lambda x, y: tkl.bitcast(x, tkl.i32),
    ),
]
ALONG_AXES = [
    Row(
        tkl.sum, lambda x, y: (x.sum(1), x.sum(0)), ANY, lambda x, y: (tkl.sum(x, 1), tkl.sum(x, 0))
    ),
    Row(tkl.prod, lambda x, y: y.prod(1), ANY, lambda x, y: tkl.prod(y, 1)),
    Row(tkl.max, lambda x, y: (x.amax(1), x.amax()), ANY, lambda x, y: (tkl.max(x, 1), tkl.max(x))),
    Row(tkl.min, lambda x, y: (x.amin(1), x.amin()), ANY, lambda x, y: (tkl.min(x, 1), tkl.min(x))),
    Row(tkl.any, lambda x, y: (x != 0).any(1), ANY, lambda x, y: tkl.any(x, 1)),
    Row(tkl.all, lambda x, y: (x != 0).all(1), ANY, lambda x, y: tkl.all(x, 1)),
    Row(tkl.argmax, lambda x, y: x.argmax(1), NUMBERS, lambda x, y: tkl.argmax(x, 1)),
    Row(tkl.argmin, lambda x, y: x.argmin(1), NUMBERS, lambda x, y: tkl.argmin(x, 1)),
    Row(
        tkl.cumsum,
        lambda x, y: scan_both_ways(torch.cumsum, x),
        (*ANY, "whole"),
        lambda x, y: (tkl.cumsum(x, 1), tkl.cumsum(x, 1, reverse=True)),
    ),
    Row(
        tkl.cumprod,
        lambda x, y: scan_both_ways(torch.cumprod, y),
        (*ANY, "whole"),
        lambda x, y: (tkl.cumprod(y, 1), tkl.cumprod(y, 1, reverse=True)),
    ),
    Row(
        tkl.cummax,
        lambda x, y: scan_both_ways(running_maximum, x),
        (*ANY, "whole"),
        lambda x, y: (tkl.cummax(x, 1), tkl.cummax(x, 1, reverse=True)),
    ),
    Row(
        tkl.cummin,
        lambda x, y: scan_both_ways(running_minimum, x),
        (*ANY, "whole"),
        lambda x, y: (tkl.cummin(x, 1), tkl.cummin(x, 1, reverse=True)),
    ),
    Row(tkl.associative_scan, decay, ("f32", "edges", "f64"), decay_tiles),
    Row(
        tkl.reduce,
        lambda x, y: x.sum(1, dtype=x.dtype),
        (*INTEGERS, "whole"),
        lambda x, y: tkl.reduce(lambda a, b: a + b, x, axis=1, init=0),
    ),
    Row(
        tkl.sort,
        lambda x, y: sort_rows(x),
        (*ANY, "whole"),
        lambda x, y: tkl.sort(x, with_indices=True),
    ),
    Row(
        tkl.sort_with_indices,
        lambda x, y: sort_rows(x, descending=True),
        (*ANY, "whole"),
        lambda x, y: tkl.sort_with_indices(x, descending=True),
    ),
    Row(tkl.argsort, lambda x, y: sort_rows(x)[1], ANY, lambda x, y: tkl.argsort(x)),
    Row(
        tkl.topk,
        lambda x, y: [part[:, :2] for part in sort_rows(x, descending=True)],
        (*ANY, "whole"),
        lambda x, y: tkl.topk(x, 2),
    ),
    Row(
        tkl.dot,
        multiply_matrices,
        NUMBERS,
        lambda x, y: tkl.dot(x, tkl.transpose(y)),
    ),
]
SHAPES = [
    Row(tkl.transpose, lambda x, y: x.T, ANY, lambda x, y: tkl.transpose(x)),
    Row(tkl.expand_dims, lambda x, y: x[:, None], ANY, lambda x, y: tkl.expand_dims(x, 1)),
    Row(tkl.squeeze, lambda x, y: x[0], WHOLE, lambda x, y: tkl.squeeze(x[:1], 0)),
    Row(tkl.broadcast, lambda x, y: x.expand(2, 3, 4), WHOLE, lambda x, y: tkl.broadcast(x, 2)),
    Row(
        tkl.broadcast_to,
        lambda x, y: x[0].expand(5, 4),
        WHOLE,
        lambda x, y: tkl.broadcast_to(x[0], (5, 4)),
    ),
    Row(
        tkl.broadcast_in_dim,
        lambda x, y: x[:, None].expand(3, 5, 4),
        WHOLE,
        lambda x, y: tkl.broadcast_in_dim(x, (3, 5, 4), [0, 2]),
    ),
    Row(tkl.reshape, lambda x, y: x.reshape(2, 6), WHOLE, lambda x, y: tkl.reshape(x, (2, 6))),
    Row(tkl.slice, lambda x, y: x[:, 1:4:2], WHOLE, lambda x, y: tkl.slice(x, 1, 1, 2, 2)),
    Row(
        tkl.concatenate,
        lambda x, y: torch.cat([x, y], 1),
        WHOLE,
        lambda x, y: tkl.concatenate([x, y], axis=1),
    ),
]
CREATION = [
    Row(
        tkl.constant,
        lambda x, y: torch.full((2, 3), 0.5),
        WHOLE,
        lambda x, y: tkl.constant((2, 3), tkl.f32, 0.5),
    ),
    Row(
        tkl.full,
        lambda x, y: torch.full((5,), x.sum(), dtype=torch.float64),
        WHOLE,
        lambda x, y: tkl.full((5,), tkl.sum(x), tkl.f64),
    ),
    Row(
        tkl.zeros,
        lambda x, y: torch.zeros(5, dtype=torch.int8),
        WHOLE,
        lambda x, y: tkl.zeros((5,), tkl.i8),
    ),
    Row(
        tkl.arange,
        lambda x, y: (torch.arange(2, 7), torch.arange(9, 0, -4, dtype=torch.int32)),
        WHOLE,
        lambda x, y: (tkl.arange(2, 7), tkl.arange(9, 0, -4, tkl.i32)),
    ),
    Row(
        tkl.iota,
        lambda x, y: torch.arange(3)[:, None].expand(3, 4),
        WHOLE,
        lambda x, y: tkl.iota((3, 4), axis=0),
    ),
]
RANDOM = [
    Row(
        tkl.random_bits,
        lambda x, y: random_words(0),
        WHOLE,
        lambda x, y: tkl.random_bits(7, tkl.arange(9)),
    ),
    Row(
        tkl.random_bits4,
        lambda x, y: list(map(random_words, range(4))),
        WHOLE,
        lambda x, y: tkl.random_bits4(7, tkl.arange(9)),
    ),
    Row(tkl.rand, lambda x, y: uniform_numbers(0), WHOLE, lambda x, y: tkl.rand(7, tkl.arange(9))),
    Row(tkl.randn, lambda x, y: normal_numbers(), WHOLE, lambda x, y: tkl.randn(7, tkl.arange(9))),
    Row(
        tkl.randint,
        lambda x, y: -3 + (random_words(0).long() * 13 >> 32),
        WHOLE,
        lambda x, y: tkl.randint(7, tkl.arange(9), -3, 10),
    ),
]
CONTROL_FLOW = [
    Row(
        tkl.for_loop,
        lambda x, y: x * 8 + 4,
        INTEGERS,
        lambda x, y: tkl.for_loop(0, 3, init_args=[x])(lambda k, carried: carried * 2 + k)[0],
    ),
    Row(
        tkl.while_loop,
        lambda x, y: x * 4**3,
        (*INTEGERS, "whole"),
        lambda x, y: tkl.while_loop(lambda n, _: n > 0, lambda n, x: (n - 1, x * 4), [3, x])[1],
    ),
    Row(
        tkl.cond,
        lambda x, y: (x + y, x - y),
        (*NUMBERS, "whole"),
        lambda x, y: (
            tkl.cond(tkl.any(x != y), lambda a: a + y, lambda a: a - y, x),
            tkl.cond(tkl.all(x == y), lambda a: a + y, lambda a: a - y, x),
        ),
    ),
    Row(
        tkl.is_debug,
        lambda x, y: torch.tensor(2),
        WHOLE,
        lambda x, y: tkl.full((), 1 if tkl.is_debug() else 2, tkl.i64),
    ),
]
ROWS = [*ARITHMETIC, *FUNCTIONS, *ALONG_AXES, *SHAPES, *CREATION, *RANDOM, *CONTROL_FLOW]


def rows_of(sample: str) -> tuple[Row, ...]:
    return tuple(row for row in ROWS if sample in row.samples)
