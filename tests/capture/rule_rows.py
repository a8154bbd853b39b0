"""Building blocks of tests/capture/rule_table.py: dtypes, operands, rows and arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Arguments = Callable[[Tensor, Tensor], tuple[Any, ...]]  # of an op, of two operands
NAN, INF = float("nan"), float("inf")

# Dtypes

WIDE = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*WIDE, *HALVES)
INTEGERS = (torch.uint8, torch.int8, torch.int64)
BOOL = (torch.bool,)
NUMBERS = (*FLOATS, *INTEGERS)
ANY = (*NUMBERS, *BOOL)
COMPLEX = (torch.complex64,)


# Operands: two tensors of a dtype, and how near to PyTorch's the results on them have to be


HALF_ULPS = 4  # of the results of a few ops, each of which rounds


@dataclass(frozen=True)
class Operands:
    make: Callable[[torch.dtype], tuple[Tensor, Tensor]]
    rtol: float | None = None  # None: what torch.testing asks for
    atol: float | None = None
    ulps: int | None = None  # both, in units of the dtype's rounding
    is_wide: bool = False  # whether PyTorch computes what is expected in float64

    def tolerances(self, dtype: torch.dtype) -> tuple[float | None, float | None]:
        """Relative and absolute."""
        ulps = HALF_ULPS if dtype in HALVES and self.rtol != 0 else self.ulps
        if ulps is None:
            return self.rtol, self.atol
        return (ulps * torch.finfo(dtype).eps,) * 2


def pairs(values: Sequence[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    first, second = zip(*itertools.product(values, values), strict=True)
    return torch.tensor(first, dtype=dtype), torch.tensor(second, dtype=dtype)


def corners(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if dtype == torch.bool:
        return pairs([0, 1], dtype)
    if not dtype.is_floating_point:
        return pairs([1, 3, 7, 100, 127, *([200, 255] if not dtype.is_signed else BELOW)], dtype)
    large = [3e4] if dtype == torch.float16 else [1e9, 3e12]
    return pairs([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, *large, INF, -INF, NAN], dtype)


BELOW = [-1, -7, -100]


def line(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    special = [0.0, -0.0, 1e-20, -1e-6, 20.0, -90.0, 300.0, -1000.0, 0.5, 2.5, INF, -INF, NAN]
    grid = torch.linspace(-8, 8, 301, dtype=torch.float64)
    x = torch.cat([grid, torch.tensor(special, dtype=torch.float64)]).to(dtype)
    return x, x.flip(0)


def fitted(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    special = torch.tensor([0.0, -0.0, 1e-6, 0.5, 1.0, INF, -INF, NAN])
    x = torch.cat([torch.linspace(-7.9, 30.0, 150), special]).to(dtype)
    return x, x


def plane(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Complex numbers on both sides of every branch cut, small and large."""
    values = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-6, -1e-6, 1e-20, 1e10]
    real, imaginary = pairs(values, dtype.to_real())
    x = torch.complex(real, imaginary)
    return x, x.flip(0)


def random(*shape: int) -> Callable[[torch.dtype], tuple[Tensor, Tensor]]:
    def make(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        if dtype.is_complex:
            x, y = torch.randn(2, *shape, dtype=dtype, generator=generator)
        elif dtype.is_floating_point:
            x, y = torch.randn(2, *shape, generator=generator).to(dtype)
        else:
            low = -9 if dtype.is_signed else 0
            x, y = torch.randint(low, 10, (2, *shape), generator=generator).to(dtype)
        return x, y

    return make


def rows_with_ties(columns: int) -> Callable[[torch.dtype], tuple[Tensor, Tensor]]:
    def make(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        low = 0 if dtype in (torch.uint8, torch.bool) else -3
        x = torch.randint(low, 3, (4, columns), generator=generator).to(dtype)
        if dtype.is_floating_point:
            x[1, 2] = x[1, 5] = x[3, 0] = NAN
        return x, x.nan_to_num().sort(1).values

    return make


CORNERS = Operands(corners, rtol=2e-5, atol=0)  # all pairs of special values
LINE = Operands(line, ulps=20)  # from -8 to 8, and special values; the same backwards
PLANE = Operands(plane, ulps=20)
FITTED = Operands(fitted, is_wide=True)  # eager itself loses digits left of zero
TIES = Operands(rows_with_ties(9), rtol=0, atol=0)
LONG_TIES = Operands(rows_with_ties(200), rtol=0, atol=0)
VECTOR = Operands(random(6))
MATRIX = Operands(random(4, 6))
SQUARE = Operands(random(5, 5), rtol=1e-4, atol=1e-4)
IMAGE = Operands(random(2, 3, 6, 7), rtol=1e-5, atol=1e-5)
VOLUME = Operands(random(2, 3, 4, 5, 6), rtol=1e-5, atol=1e-5)
HEADS = Operands(random(2, 4, 6, 8), rtol=1.3e-6, atol=1e-6)


# Rows, and arguments for them


def first(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return (x,)


def both(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x, y


@dataclass(frozen=True, eq=False)
class Row:
    """An op, the dtypes and operands it is called on, and its arguments made of these."""

    op: torch._ops.OpOverload
    dtypes: tuple[torch.dtype, ...]
    operands: Operands
    arguments: Arguments = first
    options: Mapping[str, Any] = field(default_factory=dict)
    compared: int | None = None  # only so many results, where PyTorch leaves the others open

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
        """The results of the op, or of a function in its place."""
        given = function(*args, **self.options)
        if isinstance(given, Tensor):
            given = (given,)
        results = [result for result in given if result is not None]
        return results[: self.compared]


def indices(*places: int) -> Tensor:
    return torch.tensor(places)


def scattered(*rest: Any, axis: int = 0, source: bool = True) -> Arguments:
    """Elements of a vector, some of them written to more than once."""
    index = indices(0, 1, 1, 3, 5)
    return lambda x, y: (x, axis, index, *((y[:5],) if source else ()), *rest)


def put(accumulate: bool) -> Arguments:
    places = (0, 1, 1, 3, -1) if accumulate else (0, 1, 2, 3, -1)
    return lambda x, y: (x, indices(*places), y[:5], accumulate)


def index_put(accumulate: bool) -> Arguments:
    made = put(accumulate)
    return lambda x, y: (x, [made(x, y)[1]], y[:5], accumulate)


def padded(*padding: int) -> Arguments:
    def arguments(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        axes = len(padding) // 2
        grown = [padding[2 * k] + padding[2 * k + 1] for k in reversed(range(axes))]
        sizes = [n + more for n, more in zip(x.shape[-axes:], grown, strict=True)]
        gradient = torch.ones(*x.shape[:-axes], *sizes, dtype=x.dtype).cumsum(-1)
        return gradient, x, list(padding)

    return arguments


def each(
    ops: Sequence[Any],
    dtypes: tuple[torch.dtype, ...],
    operands: Operands,
    *rest: Any,
    **kwargs: Any,
) -> list[Row]:
    return [Row(op, dtypes, operands, *rest, **kwargs) for op in ops]


def defaults(names: str) -> list[Any]:
    return [getattr(aten, name).default for name in names.split()]


def x_and(*rest: Any) -> Arguments:
    return lambda x, y: (x, *rest)


def half_more(x: Tensor) -> Tensor:
    """Of another dtype than the tensor it is written to."""
    return x.double() + 0.5


def number_first(number: float) -> Arguments:
    return lambda x, y: (number, y)


def numbers(*given: float) -> Arguments:
    return lambda x, y: given
