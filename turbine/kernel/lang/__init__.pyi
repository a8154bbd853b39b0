"""Made by docs/kernel_stub.py from __init__.py and the ops it names."""

import builtins
from collections.abc import Sequence
from typing import Any

from turbine.dtypes import Dtype
from turbine.kernel.lang.atomics import atomic_add as atomic_add
from turbine.kernel.lang.atomics import atomic_max as atomic_max
from turbine.kernel.lang.atomics import atomic_min as atomic_min
from turbine.kernel.lang.control_flow import cond as cond
from turbine.kernel.lang.control_flow import for_loop as for_loop
from turbine.kernel.lang.control_flow import while_loop as while_loop
from turbine.kernel.lang.creation import full as full
from turbine.kernel.lang.creation import iota as iota
from turbine.kernel.lang.creation import zeros as zeros
from turbine.kernel.lang.debugging import assert_ as assert_
from turbine.kernel.lang.debugging import breakpoint as breakpoint
from turbine.kernel.lang.debugging import is_debug as is_debug
from turbine.kernel.lang.debugging import print as print
from turbine.kernel.lang.grid import num_programs as num_programs
from turbine.kernel.lang.grid import program_id as program_id
from turbine.kernel.lang.memory_spaces import AddressSpace as AddressSpace
from turbine.kernel.lang.ordering import argsort as argsort
from turbine.kernel.lang.ordering import sort as sort
from turbine.kernel.lang.ordering import sort_with_indices as sort_with_indices
from turbine.kernel.lang.ordering import topk as topk
from turbine.kernel.lang.random import rand as rand
from turbine.kernel.lang.random import randint as randint
from turbine.kernel.lang.random import randn as randn
from turbine.kernel.lang.random import random_bits as random_bits
from turbine.kernel.lang.random import random_bits4 as random_bits4
from turbine.kernel.lang.reductions import Axes
from turbine.kernel.lang.scans import associative_scan as associative_scan
from turbine.kernel.lang.scans import reduce as reduce
from turbine.kernel.lang.shapes import broadcast as broadcast
from turbine.kernel.lang.shapes import broadcast_in_dim as broadcast_in_dim
from turbine.kernel.lang.symbols import Grid as Grid
from turbine.kernel.lang.symbols import InOutBuffer as InOutBuffer
from turbine.kernel.lang.symbols import InputBuffer as InputBuffer
from turbine.kernel.lang.symbols import KernelBuffer as KernelBuffer
from turbine.kernel.lang.symbols import OutputBuffer as OutputBuffer
from turbine.kernel.lang.symbols import TemporaryBuffer as TemporaryBuffer
from turbine.kernel.lang.symbols import cdiv as cdiv
from turbine.kernel.lang.symbols import sym as sym
from turbine.kernel.lang.symbols import symbols as symbols
from turbine.kernel.lang.symbols import types as types
from turbine.kernel.op import Operand, Shape, Size
from turbine.kernel.tracer import Buffer, Tile
from turbine.kernel.tracer import IndexExpr as IndexExpr
from turbine.kernel.tracer import IndexSymbol as IndexSymbol
from turbine.kernel.types import ElementType

def abs(x: Operand) -> Tile:
    """x without its sign."""

def add(x: Operand, y: Operand) -> Tile:
    """x + y; integers wrap around."""

def bitwise_and(x: Operand, y: Operand) -> Tile:
    """The bits that both have; of bools, whether both hold."""

def bitwise_not(x: Operand) -> Tile:
    """The other bits; of bools, the opposite."""

def bitwise_or(x: Operand, y: Operand) -> Tile:
    """The bits that one has at least; of bools, whether one holds."""

def bitwise_xor(x: Operand, y: Operand) -> Tile:
    """The bits in which they differ."""

def clamp(
    x: Operand,
    low: Operand | None = None,
    high: Operand | None = None,
    *,
    min: Operand | None = None,
    max: Operand | None = None,
) -> Any:
    """x, or the nearer bound where it lies outside; one bound may be left out, `min=0`."""

def equal(x: Operand, y: Operand) -> Tile:
    """x == y; nan equals nothing."""

def floordiv(x: Operand, y: Operand) -> Tile:
    """x / y rounded down; an integer divided by zero is zero."""

def fma(x: Operand, y: Operand, z: Operand) -> Any:
    """x * y + z, of floats rounded once."""

def greater(x: Operand, y: Operand) -> Tile:
    """`x > y`."""

def greater_equal(x: Operand, y: Operand) -> Tile:
    """`x >= y`."""

def less(x: Operand, y: Operand) -> Tile:
    """`x < y`."""

def less_equal(x: Operand, y: Operand) -> Tile:
    """`x <= y`."""

def logical_and(*operands: Operand) -> Tile:
    """Whether both are not zero."""

def logical_not(*operands: Operand) -> Tile:
    """Whether it is zero."""

def logical_or(*operands: Operand) -> Tile:
    """Whether one is not zero."""

def maximum(x: Operand, y: Operand) -> Any:
    """The larger of two; nan if one is. Of sizes, a size."""

def minimum(x: Operand, y: Operand) -> Any:
    """The smaller of two; nan if one is. Of sizes, a size."""

def mod(x: Operand, y: Operand) -> Tile:
    """What is left by floordiv, of y's sign; of an integer and zero, zero."""

def mul(x: Operand, y: Operand) -> Tile:
    """`x * y`."""

def neg(x: Operand) -> Tile:
    """`-x`."""

def not_equal(x: Operand, y: Operand) -> Tile:
    """`x != y`."""

def pow(x: Operand, y: Operand) -> Any:
    """x to the power of y. An integer to a small power of Python's stays one, else it is an f32."""

def shift_left(x: Operand, y: Operand) -> Tile:
    """x << y; by its number of bits or more, zero."""

def shift_right(x: Operand, y: Operand) -> Tile:
    """x >> y, of x's sign; by its number of bits or more, all bits are that of the sign."""

def sub(x: Operand, y: Operand) -> Tile:
    """`x - y`."""

def truediv(x: Operand, y: Operand) -> Tile:
    """x / y; integers become f32."""

def where(condition: Operand, x: Operand, y: Operand) -> Tile:
    """x where a condition holds, else y."""

def bitcast(x: Tile, dtype: ElementType) -> Tile:
    """The same bits as another type."""

def to_dtype(x: Operand, dtype: ElementType) -> Tile:
    """The same numbers as another type, rounded; floats as integers are cut off."""

def arange(start: Size, stop: Size | None = None, step: Any = 1, dtype: ElementType = ...) -> Any:
    """0, 1, 2 ... below a number: arange(BN), arange(2, 6), arange(0, 8, 2)."""

def constant(shape: Shape, dtype: ElementType, value: float) -> Tile:
    """A tile with one number of Python's everywhere."""

def ceil(x: Operand) -> Any:
    """The next integer above, as a float."""

def cos(x: Operand) -> Tile:
    """The cosine."""

def erf(x: Operand) -> Tile:
    """The error function."""

def exp(x: Operand) -> Tile:
    """e to the power of x."""

def exp2(x: Operand) -> Tile:
    """2 to the power of x."""

def expm1(x: Operand) -> Tile:
    """exp(x) - 1, exact near zero."""

def floor(x: Operand) -> Any:
    """The next integer below, as a float."""

def log(x: Operand) -> Tile:
    """The natural logarithm."""

def log1p(x: Operand) -> Tile:
    """log(1 + x), exact near zero."""

def log2(x: Operand) -> Tile:
    """The logarithm to base 2."""

def round(x: Operand) -> Any:
    """The nearest integer, as a float; of two, the even one."""

def rsqrt(x: Operand) -> Tile:
    """One over the square root."""

def sigmoid(x: Operand) -> Tile:
    """`1 / (1 + exp(-x))`."""

def sin(x: Operand) -> Tile:
    """The sine."""

def sqrt(x: Operand) -> Tile:
    """The square root."""

def tanh(x: Operand) -> Tile:
    """The hyperbolic tangent."""

def trunc(x: Operand) -> Any:
    """The integer part, as a float."""

def load(
    buffer: Buffer,
    index: Any,
    shape: Any = None,
    *,
    mask: Tile | None = None,
    other: Operand | None = None,
    check: builtins.bool | None = None,
) -> Tile:
    """The block of a buffer at an index, `load(a, (i * BM, 0), (BM, K))`.

    Along an axis whose size is None there is one element, and the tile has no such axis. Without a
    shape, single elements: those that tiles of integers name, or one. Where `mask` does not hold,
    and outside the buffer, lanes are masked off, or `other` if it is given.

    A single element whose index was loaded and lies outside the buffer is an error, unless `mask`
    leaves it out or `other` is given. `check=True` looks at other indices too, `check=False` at
    none."""

def store(
    buffer: Buffer,
    index: Any,
    value: Operand,
    *,
    mask: Tile | None = None,
    check: builtins.bool | None = None,
) -> None:
    """Write a tile to the block of a buffer at an index, or elements where tiles of integers say.

    Lanes outside the buffer, masked-off ones, and those where `mask` does not hold, are left out.
    An index that was loaded is checked as by tkl.load; `check=False` leaves such lanes out."""

def dot(a: Tile, b: Tile, acc: Tile | None = None) -> Tile:
    """The matrix product of two tiles, added to a third if one is given.

    Products are summed in f32 (f64 of f64, i32 of integers), whatever the operands are. Axes
    before the last two are batches."""

def all(x: Tile, axis: Axes = None, *, keepdims: builtins.bool = False) -> Tile:
    """Whether each holds."""

def any(x: Tile, axis: Axes = None, *, keepdims: builtins.bool = False) -> Tile:
    """Whether one holds."""

def argmax(x: Tile, axis: int | None = None, *, keepdims: builtins.bool = False) -> Tile:
    """Where the largest is along an axis; the first of equals, and of nan. Of no lanes, 0."""

def argmin(x: Tile, axis: int | None = None, *, keepdims: builtins.bool = False) -> Tile:
    """Where the smallest is along an axis; the first of equals, and of nan. Of no lanes, 0."""

def max(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """The largest; nan if there is one."""

def min(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """The smallest; nan if there is one."""

def prod(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """The product; of integers and bools, in i64."""

def sum(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """The sum; of integers and bools, in i64."""

def cummax(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """The largest of the elements up to each one; nan from the first one on."""

def cummin(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """The smallest of the elements up to each one; nan from the first one on."""

def cumprod(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """The product of the elements up to each one; in the types of cumsum."""

def cumsum(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """The sum of the elements up to each one, from the last one on if reversed.

    Integers and bools are summed in i64, f16 and bf16 in f32 with each result rounded."""

def broadcast_to(x: Operand, shape: Shape) -> Tile:
    """A tile of this shape that repeats what has size 1."""

def concatenate(tiles: Sequence[Tile], axis: int = 0) -> Tile:
    """Tiles one behind the other along an axis."""

def expand_dims(x: Tile, axis: int) -> Tile:
    """A new axis of size one."""

def reshape(x: Tile, shape: Shape) -> Tile:
    """The elements in the same order under other axes."""

def slice(x: Tile, axis: int, start: Size, size: Size, step: int = 1) -> Tile:
    """`size` elements along an axis, from `start` on, every `step`-th."""

def squeeze(x: Tile, axis: int) -> Tile:
    """Without an axis of size one."""

def transpose(x: Tile, perm: Sequence[int] | None = None) -> Tile:
    """The axes in another order; without one, from the last to the first."""

bool: Dtype
i8: Dtype
i16: Dtype
i32: Dtype
i64: Dtype
u8: Dtype
u16: Dtype
u32: Dtype
u64: Dtype
f16: Dtype
bf16: Dtype
f32: Dtype
f64: Dtype
f8e5m2: Dtype
f8e4m3fn: Dtype
f8e5m2fnuz: Dtype
f8e4m3fnuz: Dtype
index: Dtype
Index = IndexExpr
Vector = Tile
