"""Every dtype of the language in the interpreter, against numpy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from turbine.dtypes import Dtype
from turbine.kernel.trace.types import DTYPES

N = tkl.sym.N
TYPES = {name: dtype for name, dtype in DTYPES.items() if name != "index"}
INTEGERS = {name: dtype for name, dtype in TYPES.items() if dtype.kind in ("int", "uint")}
NUMBERS = {name: dtype for name, dtype in TYPES.items() if dtype.kind != "bool"}
FLOATS = {name: dtype for name, dtype in TYPES.items() if dtype.kind == "float"}
Array = Any


def as_torch(array: Array, dtype: Dtype) -> torch.Tensor:
    bits = array.view(f"i{dtype.itemsize}")
    return torch.from_numpy(bits.copy()).view(dtype.torch)


def as_numpy(tensor: torch.Tensor, dtype: Dtype) -> Array:
    bits = tensor.contiguous().view(getattr(torch, f"int{8 * dtype.itemsize}"))
    return bits.numpy().view(dtype.numpy)


def samples(dtype: Dtype, seed: int = 0) -> Array:
    """Numbers of a type, the outermost among them."""
    random = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return random.integers(0, 2, 21).astype(bool)
    if dtype.kind == "float":
        return (random.integers(-16, 17, 21) / 8).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, limits.max // 2 + 1]
    middle = random.integers(limits.min, limits.max, 13, dtype.numpy, endpoint=True)
    return random.permutation(np.concatenate([np.array(ends, dtype.numpy), middle]))


def computed(
    function: Callable[..., Any], gives: Dtype, *operands: tuple[Array, Dtype], size: Any = N
) -> Array:
    """Run a kernel on arrays, loaded as a tile that extends beyond them."""

    def kernel(**buffers):  # type: ignore[no-untyped-def]
        target = buffers.pop("target")
        tkl.store(target, (0,), function(*(tkl.load(b, (0,), (32,)) for b in buffers.values())))

    names = [f"x{place}" for place in range(len(operands))]
    types = {
        name: tkl.InputBuffer[N, dtype] for name, (_, dtype) in zip(names, operands, strict=True)
    }
    types["target"] = tkl.OutputBuffer[size, gives]
    kernel.__annotations__ = types
    parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in types]
    kernel.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    args: dict[str, Any] = {
        name: as_torch(array, dtype) for name, (array, dtype) in zip(names, operands, strict=True)
    }
    return as_numpy(interpreted(kernel, **args)["target"], gives)


def same(actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype
    wide = np.float64 if actual.dtype.kind not in "iub" else actual.dtype
    np.testing.assert_array_equal(actual.astype(wide), expected.astype(wide))


def shifted(function: Any) -> Callable[[Array, Array], Array]:
    def shift(x: Array, y: Array) -> Array:
        size = x.dtype.itemsize
        numbers = [function(a, b, 8 * size) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        return np.array([number % 2 ** (8 * size) for number in numbers], f"u{size}").view(x.dtype)

    return shift


def left(x: int, by: int, bits: int) -> int:
    return x << by if 0 <= by < bits else 0


def right(x: int, by: int, bits: int) -> int:
    return x >> (by if 0 <= by < bits else bits)


def divided(function: Any) -> Callable[[Array, Array], Array]:
    def divide(x: Array, y: Array) -> Array:
        one = np.ones((), x.dtype)
        with np.errstate(all="ignore"):
            return np.where(y == 0, x * 0, function(x, np.where(y == 0, one, y)))

    return divide


OF_INTEGERS: dict[str, tuple[Any, Any]] = {
    "add": (tkl.add, np.add),
    "sub": (tkl.sub, np.subtract),
    "mul": (tkl.mul, np.multiply),
    "floordiv": (tkl.floordiv, divided(np.floor_divide)),
    "mod": (tkl.mod, divided(np.remainder)),
    "and": (tkl.bitwise_and, np.bitwise_and),
    "or": (tkl.bitwise_or, np.bitwise_or),
    "xor": (tkl.bitwise_xor, np.bitwise_xor),
    "minimum": (tkl.minimum, np.minimum),
    "maximum": (tkl.maximum, np.maximum),
    "where": (lambda x, y: tkl.where(x < y, x, y), lambda x, y: np.where(x < y, x, y)),
    "not": (lambda x, y: tkl.bitwise_not(x), lambda x, y: np.bitwise_not(x)),
    "neg": (lambda x, y: -x, lambda x, y: np.negative(x)),
    "abs": (lambda x, y: tkl.abs(x), lambda x, y: np.abs(x)),
    "clamp": (lambda x, y: tkl.clamp(x, 3, y), lambda x, y: np.minimum(np.maximum(x, 3), y)),
    "cummax": (lambda x, y: tkl.cummax(x, 0), lambda x, y: np.maximum.accumulate(x)),
    "sort": (lambda x, y: tkl.sort(x), lambda x, y: np.sort(x)),
    "left": (tkl.shift_left, shifted(left)),
    "right": (tkl.shift_right, shifted(right)),
    "small left": (lambda x, y: x << (y & 7), lambda x, y: shifted(left)(x, y & 7)),
    "small right": (lambda x, y: x >> (y & 7), lambda x, y: shifted(right)(x, y & 7)),
}


@pytest.mark.parametrize("op", OF_INTEGERS)
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_arithmetic_matches_numpy(name: str, op: str) -> None:
    function, expected = OF_INTEGERS[op]
    dtype = INTEGERS[name]
    x, y = samples(dtype), samples(dtype, 1)
    with np.errstate(all="ignore"):
        wanted = expected(x, y)
    same(computed(function, dtype, (x, dtype), (y, dtype)), wanted)


OF_FLOATS: dict[str, tuple[Any, Any]] = {
    "add": (tkl.add, np.add),
    "sub": (tkl.sub, np.subtract),
    "mul": (tkl.mul, np.multiply),
    "truediv": (lambda x, y: x / (tkl.abs(y) + 1), lambda x, y: x / (np.abs(y) + x.dtype.type(1))),
    "minimum": (tkl.minimum, np.minimum),
    "maximum": (tkl.maximum, np.maximum),
    "where": (lambda x, y: tkl.where(x < y, x, y), lambda x, y: np.where(x < y, x, y)),
    "neg": (lambda x, y: -x, lambda x, y: -x),
    "abs": (lambda x, y: tkl.abs(x), lambda x, y: np.abs(x)),
    "floor": (lambda x, y: tkl.floor(x), lambda x, y: np.floor(x)),
    "sort": (lambda x, y: tkl.sort(x), lambda x, y: np.sort(x)),
}


@pytest.mark.parametrize("op", OF_FLOATS)
@pytest.mark.parametrize("name", FLOATS)
def test_float_results_are_rounded_to_their_dtype(name: str, op: str) -> None:
    function, expected = OF_FLOATS[op]
    dtype = FLOATS[name]
    x, y = samples(dtype), samples(dtype, 1)
    same(computed(function, dtype, (x, dtype), (y, dtype)), expected(x, y).astype(dtype.numpy))


COMPARISONS: dict[str, tuple[Any, Any]] = {
    "less": (tkl.less, np.less),
    "less_equal": (tkl.less_equal, np.less_equal),
    "greater": (tkl.greater, np.greater),
    "greater_equal": (tkl.greater_equal, np.greater_equal),
    "equal": (tkl.equal, np.equal),
    "not_equal": (tkl.not_equal, np.not_equal),
}


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("name", TYPES)
def test_comparisons_match_numpy(name: str, op: str) -> None:
    function, expected = COMPARISONS[op]
    dtype = TYPES[name]
    x, y = samples(dtype), samples(dtype, 1)
    y[:5] = x[:5]
    same(computed(function, TYPES["bool"], (x, dtype), (y, dtype)), expected(x, y))


@pytest.mark.parametrize("name", NUMBERS)
def test_reductions_match_numpy(name: str) -> None:
    dtype = NUMBERS[name]
    x = samples(dtype)
    summed = dtype if dtype.kind == "float" else TYPES["i64"]
    wide = x.astype(np.float32 if dtype.kind == "float" and dtype.bits < 64 else summed.numpy)

    def one(function: Any, gives: Dtype) -> Array:
        return computed(lambda x: function(x, 0), gives, (x, dtype), size=1)

    same(one(tkl.max, dtype), np.max(x, keepdims=True))
    same(one(tkl.min, dtype), np.min(x, keepdims=True))
    same(one(tkl.argmax, TYPES["i64"]), np.argmax(x, keepdims=True))
    same(one(tkl.argmin, TYPES["i64"]), np.argmin(x, keepdims=True))
    same(one(tkl.sum, summed), np.sum(wide, keepdims=True).astype(summed.numpy))


@pytest.mark.parametrize("name", INTEGERS)
def test_max_and_min_of_no_integers_are_the_dtype_limits(name: str) -> None:
    dtype = INTEGERS[name]
    x, limits = samples(dtype)[:0], np.iinfo(dtype.numpy)
    largest = computed(lambda x: tkl.max(x, 0), dtype, (x, dtype), size=1)
    smallest = computed(lambda x: tkl.min(x, 0), dtype, (x, dtype), size=1)
    assert (largest.item(), smallest.item()) == (limits.min, limits.max)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_casts_keep_representable_numbers(source: str, target: str) -> None:
    one, other = TYPES[source], TYPES[target]
    x = np.array([0, 1, 5, 7, 0, 2], object).astype(np.float32).astype(one.numpy)
    same(computed(lambda x: x.to(other), other, (x, one)), x.astype(other.numpy))


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_casts_of_integers_keep_the_low_bits(source: str, target: str) -> None:
    one, other = INTEGERS[source], INTEGERS[target]
    x = samples(one)
    same(computed(lambda x: x.to(other), other, (x, one)), x.astype(other.numpy))


@pytest.mark.parametrize("target", ["f32", "f64"])
@pytest.mark.parametrize("source", INTEGERS)
def test_large_integers_round_to_the_nearest_float(source: str, target: str) -> None:
    one, other = INTEGERS[source], TYPES[target]
    x = samples(one)
    same(computed(lambda x: x.to(other), other, (x, one)), x.astype(other.numpy))


@pytest.mark.parametrize(
    ("source", "target"),
    [("u32", "f32"), ("f32", "u32"), ("u64", "f64"), ("u16", "bf16"), ("u8", "f8e5m2")],
)
def test_a_bitcast_keeps_the_bits(source: str, target: str) -> None:
    one, other = TYPES[source], TYPES[target]
    x = samples(one)
    actual = computed(lambda x: tkl.bitcast(x, other), other, (x, one))
    assert actual.tobytes() == x.tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_every_dtype_supports_shape_ops(name: str) -> None:
    dtype = TYPES[name]
    x, y = samples(dtype), samples(dtype, 1)

    def moved(x: Any, y: Any) -> Any:
        rows = tkl.concatenate([x[None, :], y[None, :]], axis=0)
        return tkl.transpose(rows, (1, 0))[:, 1]

    same(computed(moved, dtype, (x, dtype), (y, dtype)), y)


@pytest.mark.parametrize("name", TYPES)
def test_loops_carry_every_dtype(name: str) -> None:
    dtype = TYPES[name]
    x = samples(dtype)

    def looped(x: Any) -> Any:
        body = tkl.for_loop(0, 3, init_args=[tkl.zeros(x.shape, dtype)])(lambda k, carried: x)
        return body[0]

    same(computed(looped, dtype, (x, dtype)), x)


@pytest.mark.parametrize("name", NUMBERS)
def test_other_fills_masked_lanes(name: str) -> None:
    dtype = NUMBERS[name]

    def kernel(x, y):  # type: ignore[no-untyped-def]
        tkl.store(y, (0,), tkl.load(x, (0,), (4,), other=3))

    kernel.__annotations__ = {
        "x": tkl.InputBuffer[N, dtype],
        "y": tkl.OutputBuffer[4, dtype],
    }
    y = interpreted(kernel, x=torch.tensor([1, 2]).to(dtype.torch))["y"]
    assert y.to(torch.float32).tolist() == [1, 2, 3, 3]
