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
from turbine.kernel.trace.op import Operand, Shape, Size
from turbine.kernel.trace.tracer import Buffer, Tile
from turbine.kernel.trace.tracer import IndexExpr as IndexExpr
from turbine.kernel.trace.tracer import IndexSymbol as IndexSymbol
from turbine.kernel.trace.types import ElementType, UnsupportedType

def abs(x: Operand) -> Tile:
    """Absolute value, elementwise.

    The smallest signed integer has no absolute value of its dtype and is returned unchanged.

    Example::

        tkl.abs(tkl.arange(-2, 2))  # [2 1 0 1]"""

def add(x: Operand, y: Operand) -> Tile:
    """Sum of x and y, elementwise: `x + y`.

    Integers wrap around on overflow.

    Example::

        tkl.add(tkl.arange(3), 10)  # [10 11 12]"""

def bitwise_and(x: Operand, y: Operand) -> Tile:
    """Bitwise AND, elementwise: `x & y`.

    Operands are integers or bools; on bools it is the logical AND.

    Example::

        tkl.bitwise_and(tkl.arange(4), 2)  # [0 0 2 2]"""

def bitwise_not(x: Operand) -> Tile:
    """Bitwise NOT, elementwise: `~x`.

    The operand is an integer or a bool; on bools it is the logical NOT.

    Example::

        tkl.bitwise_not(tkl.arange(3))  # [-1 -2 -3]"""

def bitwise_or(x: Operand, y: Operand) -> Tile:
    """Bitwise OR, elementwise: `x | y`.

    Operands are integers or bools; on bools it is the logical OR.

    Example::

        tkl.bitwise_or(tkl.arange(4), 2)  # [2 3 2 3]"""

def bitwise_xor(x: Operand, y: Operand) -> Tile:
    """Bitwise XOR, elementwise: `x ^ y`.

    Operands are integers or bools; on bools it is the logical XOR.

    Example::

        tkl.bitwise_xor(tkl.arange(4), 2)  # [2 3 0 1]"""

def clamp(
    x: Operand,
    low: Operand | None = None,
    high: Operand | None = None,
    *,
    min: Operand | None = None,
    max: Operand | None = None,
) -> Any:
    """x limited to the range from low to high, elementwise.

    One bound may be left out; `min` and `max` are other names for the bounds. nan stays nan. Where
    low is above high, the result is high.

    Example::

        tkl.clamp(tkl.arange(5), 1, 3)  # [1 1 2 3 3]
        tkl.clamp(tkl.arange(5), max=2)  # [0 1 2 2 2]"""

def equal(x: Operand, y: Operand) -> Tile:
    """Whether x equals y, elementwise: `x == y`.

    The result is bool. nan equals nothing, itself included.

    Example::

        tkl.equal(tkl.arange(3), 1)  # [False True False]"""

def floordiv(x: Operand, y: Operand) -> Tile:
    """Quotient of x and y rounded toward negative infinity, elementwise: `x // y`.

    An integer divided by zero is 0.

    Example::

        tkl.floordiv(tkl.arange(-2, 3), 2)  # [-1 -1 0 0 1]"""

def fma(x: Operand, y: Operand, z: Operand) -> Any:
    """Fused multiply-add, elementwise: `x * y + z`.

    Floats are rounded once, after the addition. Integers stay integers.

    Example::

        tkl.fma(tkl.arange(3), 10, 1)  # [1 11 21]"""

def greater(x: Operand, y: Operand) -> Tile:
    """Whether x is greater than y, elementwise: `x > y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.greater(tkl.arange(3), 1)  # [False False True]"""

def greater_equal(x: Operand, y: Operand) -> Tile:
    """Whether x is greater than or equal to y, elementwise: `x >= y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.greater_equal(tkl.arange(3), 1)  # [False True True]"""

def less(x: Operand, y: Operand) -> Tile:
    """Whether x is less than y, elementwise: `x < y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.less(tkl.arange(3), 1)  # [True False False]"""

def less_equal(x: Operand, y: Operand) -> Tile:
    """Whether x is less than or equal to y, elementwise: `x <= y`.

    The result is bool. Comparisons with nan are False.

    Example::

        tkl.less_equal(tkl.arange(3), 1)  # [True True False]"""

def logical_and(x: Operand, y: Operand) -> Tile:
    """Whether both x and y are nonzero, elementwise.

    Operands have any dtype; the result is bool. Both operands are evaluated.

    Example::

        tkl.logical_and(tkl.arange(3), 4)  # [False True True]"""

def logical_not(x: Operand) -> Tile:
    """Whether x is zero, elementwise.

    The operand has any dtype; the result is bool.

    Example::

        tkl.logical_not(tkl.arange(3))  # [True False False]"""

def logical_or(x: Operand, y: Operand) -> Tile:
    """Whether x or y is nonzero, elementwise.

    Operands have any dtype; the result is bool. Both operands are evaluated.

    Example::

        tkl.logical_or(tkl.arange(3), 0)  # [False True True]"""

def maximum(x: Operand, y: Operand) -> Any:
    """Larger of x and y, elementwise; nan if either is nan.

    Of two sizes, such as `tkl.maximum(N, 64)`, the result is a size.

    Example::

        tkl.maximum(tkl.arange(4), 2)  # [2 2 2 3]"""

def minimum(x: Operand, y: Operand) -> Any:
    """Smaller of x and y, elementwise; nan if either is nan.

    Of two sizes, such as `tkl.minimum(N, 64)`, the result is a size.

    Example::

        tkl.minimum(tkl.arange(4), 2)  # [0 1 2 2]"""

def mod(x: Operand, y: Operand) -> Tile:
    """Remainder of `x // y`, elementwise, with the sign of y: `x % y`.

    The remainder of an integer divided by zero is 0.

    Example::

        tkl.mod(tkl.arange(-2, 3), 3)  # [1 2 0 1 2]"""

def mul(x: Operand, y: Operand) -> Tile:
    """Product of x and y, elementwise: `x * y`.

    Integers wrap around on overflow. `tkl.dot` is the matrix product.

    Example::

        tkl.mul(tkl.arange(4), 3)  # [0 3 6 9]"""

def neg(x: Operand) -> Tile:
    """Negation, elementwise: `-x`.

    Example::

        tkl.neg(tkl.arange(3))  # [0 -1 -2]"""

def not_equal(x: Operand, y: Operand) -> Tile:
    """Whether x differs from y, elementwise: `x != y`.

    The result is bool. nan differs from everything, itself included.

    Example::

        tkl.not_equal(tkl.arange(3), 1)  # [True False True]"""

def pow(x: Operand, y: Operand) -> Any:
    """x raised to the power y, elementwise: `x ** y`.

    An integer tile to the power of a Python integer from 1 to 16 stays an integer; otherwise
    integers are converted to f32.

    Example::

        tkl.pow(tkl.arange(4), 2)  # [0 1 4 9]
        tkl.pow(tkl.arange(4), 0.5)  # [0 1 1.41421 1.73205]"""

def shift_left(x: Operand, y: Operand) -> Tile:
    """x shifted left by y bits, elementwise: `x << y`.

    A shift by a negative number, or by the width of the dtype or more, gives 0.

    Example::

        tkl.shift_left(tkl.arange(4), 2)  # [0 4 8 12]"""

def shift_right(x: Operand, y: Operand) -> Tile:
    """x shifted right by y bits, elementwise: `x >> y`.

    The shift is arithmetic on signed dtypes and logical on unsigned ones. A shift by a negative
    number, or by the width of the dtype or more, gives the sign: -1 or 0.

    Example::

        tkl.shift_right(tkl.arange(-8, 8, 4), 2)  # [-2 -1 0 1]"""

def sub(x: Operand, y: Operand) -> Tile:
    """Difference of x and y, elementwise: `x - y`.

    Integers wrap around on overflow.

    Example::

        tkl.sub(10, tkl.arange(3))  # [10 9 8]"""

def truediv(x: Operand, y: Operand) -> Tile:
    """Quotient of x and y, elementwise: `x / y`.

    Integers are converted to f32.

    Example::

        tkl.truediv(tkl.arange(4), 2)  # [0 0.5 1 1.5]"""

def where(condition: Operand, x: Operand, y: Operand) -> Tile:
    """x where the condition is nonzero, y elsewhere, elementwise.

    All three operands are broadcast, and x and y are converted to one dtype. Where any of the
    three is masked off, so is the result, whichever operand is selected.

    Example::

        tkl.where(tkl.arange(4) < 2, tkl.arange(4), -1)  # [0 1 -1 -1]"""

def bitcast(x: Tile, dtype: ElementType) -> Tile:
    """The bits of x reinterpreted as another dtype of the same width.

    bool has no bitcast.

    Example::

        tkl.bitcast(tkl.full((2,), 1.0, tkl.f32), tkl.i32)  # [1065353216 1065353216]"""

def to_dtype(x: Operand, dtype: ElementType) -> Tile:
    """x converted to another dtype: `x.to(dtype)`.

    Floats are rounded to the nearest number of a smaller float, and truncated toward zero as
    integers. Integers keep their low bits. As bool, nonzero is True.

    Example::

        tkl.to_dtype(tkl.arange(4) * 0.75, tkl.i32)  # [0 0 1 2]
        tkl.to_dtype(tkl.arange(254, 258), tkl.u8)  # [254 255 0 1]"""

def constant(shape: Shape, dtype: ElementType, value: float) -> Tile:
    """Tile of one Python number.

    The number must be one of the dtype. `tkl.full` takes computed numbers too.

    Example::

        tkl.constant((3,), tkl.f32, 0.5)  # [0.5 0.5 0.5]"""

def arange(start: Size, stop: Size | None = None, step: Any = 1, dtype: ElementType = ...) -> Any:
    """Consecutive numbers as a tile of one axis: from start to below stop, by step.

    With one bound, it is the stop. Bounds are integers and sizes, known before the kernel runs;
    add a computed number to the tile. The step is a Python integer, not 0.

    Example::

        tkl.arange(4)  # [0 1 2 3]
        tkl.arange(2, 6, 2)  # [2 4]
        tkl.arange(3, dtype=tkl.f32)  # [0 1 2]"""

def ceil(x: Operand) -> Any:
    """x rounded toward infinity, elementwise.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.ceil(tkl.arange(4) / 2)  # [0 1 1 2]"""

def cos(x: Operand) -> Tile:
    """Cosine of x in radians, elementwise.

    Integers are converted to f32.

    Example::

        tkl.cos(tkl.arange(3))  # [1 0.540302 -0.416147]"""

def erf(x: Operand) -> Tile:
    """Error function, elementwise.

    Integers are converted to f32.

    Example::

        tkl.erf(tkl.arange(3))  # [0 0.842701 0.995322]"""

def exp(x: Operand) -> Tile:
    """Exponential, elementwise.

    Integers are converted to f32.

    Example::

        tkl.exp(tkl.arange(3))  # [1 2.71828 7.38906]"""

def exp2(x: Operand) -> Tile:
    """2 raised to the power x, elementwise.

    Integers are converted to f32.

    Example::

        tkl.exp2(tkl.arange(4))  # [1 2 4 8]"""

def expm1(x: Operand) -> Tile:
    """exp(x) - 1, elementwise, accurate near zero.

    Integers are converted to f32.

    Example::

        tkl.expm1(tkl.arange(3))  # [0 1.71828 6.38906]"""

def floor(x: Operand) -> Any:
    """x rounded toward negative infinity, elementwise.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.floor(tkl.arange(-3, 3) / 2)  # [-2 -1 -1 0 0 1]"""

def log(x: Operand) -> Tile:
    """Natural logarithm, elementwise; nan for negative numbers, -inf for 0.

    Integers are converted to f32.

    Example::

        tkl.log(tkl.arange(1, 4))  # [0 0.693147 1.09861]"""

def log1p(x: Operand) -> Tile:
    """log(1 + x), elementwise, accurate near zero; nan below -1, -inf for -1.

    Integers are converted to f32.

    Example::

        tkl.log1p(tkl.arange(3))  # [0 0.693147 1.09861]"""

def log2(x: Operand) -> Tile:
    """Base-2 logarithm, elementwise; nan for negative numbers, -inf for 0.

    Integers are converted to f32.

    Example::

        tkl.log2(tkl.arange(1, 5))  # [0 1 1.58496 2]"""

def round(x: Operand) -> Any:
    """x rounded to the nearest integer, elementwise; halves go to the even one.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.round(tkl.arange(6) / 2)  # [0 0 1 2 2 2]"""

def rsqrt(x: Operand) -> Tile:
    """Reciprocal square root, elementwise; nan for negative numbers, inf for 0.

    Integers are converted to f32.

    Example::

        tkl.rsqrt(tkl.arange(1, 5))  # [1 0.707107 0.57735 0.5]"""

def sigmoid(x: Operand) -> Tile:
    """Logistic sigmoid, elementwise: `1 / (1 + exp(-x))`.

    Integers are converted to f32.

    Example::

        tkl.sigmoid(tkl.arange(3))  # [0.5 0.731059 0.880797]"""

def sin(x: Operand) -> Tile:
    """Sine of x in radians, elementwise.

    Integers are converted to f32.

    Example::

        tkl.sin(tkl.arange(3))  # [0 0.841471 0.909297]"""

def sqrt(x: Operand) -> Tile:
    """Square root, elementwise; nan for negative numbers.

    Integers are converted to f32.

    Example::

        tkl.sqrt(tkl.arange(4))  # [0 1 1.41421 1.73205]"""

def tanh(x: Operand) -> Tile:
    """Hyperbolic tangent, elementwise.

    Integers are converted to f32.

    Example::

        tkl.tanh(tkl.arange(3))  # [0 0.761594 0.964028]"""

def trunc(x: Operand) -> Any:
    """x rounded toward zero, elementwise.

    The dtype is that of x: floats stay floats, and integers are returned unchanged.

    Example::

        tkl.trunc(tkl.arange(4) * 0.7)  # [0 0 1 2]"""

def load(
    buffer: Buffer,
    index: Any,
    shape: Any = None,
    *,
    mask: Tile | None = None,
    other: Operand | None = None,
    check: builtins.bool | None = None,
) -> Tile:
    """Read a block of a buffer, or gather single elements.

    Elements outside the buffer, and those where `mask` is False, are masked off: reductions skip
    them and stores leave them out.

    Args:
        buffer: A buffer of the kernel.
        index: Where the block starts, an integer or an expression along each axis of the buffer.
            Without `shape`, tiles of integers gather the elements they name.
        shape: The size of the block along each axis. An axis of size None is read at one position
            and left out of the tile; missing leading sizes are None. Without `shape`, a slice in
            `index`, `a[i, :]`, is a block along its axis.
        mask: A tile of bools, broadcast to the tile that is read.
        other: The value of elements that would be masked off.
        check: Whether an index outside the buffer is an error. By default it is if the index was
            itself loaded, unless `mask` removes it or `other` is given. True checks computed
            indices too, False checks none.

    Returns:
        A tile in the dtype of the buffer.

    Example::

        @tk.gen.kernel()
        def first(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[4, tkl.f32]):
            tkl.store(y, (0,), tkl.load(x, (0,), (4,), other=-1))

        first(torch.arange(3.0))  # tensor([ 0.,  1.,  2., -1.])

        @tk.gen.kernel()
        def gather(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[3, tkl.f32]):
            tkl.store(y, (0,), tkl.load(x, (tkl.arange(3) * 2,)))

        gather(torch.arange(5.0))  # tensor([0., 2., 4.])"""

def store(
    buffer: Buffer,
    index: Any,
    value: Operand,
    *,
    mask: Tile | None = None,
    check: builtins.bool | None = None,
) -> None:
    """Write a tile to a block of a buffer, or scatter its elements.

    Elements that are masked off, lie outside the buffer, or where `mask` is False are not written.
    Two programs must not store to one element; atomics may.

    Args:
        buffer: An output, in-out or temporary buffer of the kernel.
        index: Where the block starts, an integer or an expression along each axis of the buffer.
            Tiles of integers scatter to the elements they name.
        value: A tile or number, converted to the dtype of the buffer. Floats are not converted to
            integers: use `x.to(dtype)`.
        mask: A tile of bools, broadcast to the tile that is written.
        check: Whether an index outside the buffer is an error, as in `tkl.load`.

    Example::

        @tk.gen.kernel(N // B, blocks={B: 4})
        def relu(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32].filled(0)):
            start = tkl.program_id(0) * B
            tile = tkl.load(x, (start,), (B,))
            tkl.store(y, (start,), tile, mask=tile > 0)

        relu(torch.arange(5.0) - 2)  # tensor([0., 0., 0., 1., 2.])"""

def dot(a: Tile, b: Tile, acc: Tile | None = None) -> Tile:
    """Matrix product of a and b, plus acc if it is given.

    Axes before the last two are batch axes, the same in both; a batch may also be multiplied by one
    matrix b. Products are accumulated in f32 (f64 for f64, i32 for integers, i64 for 64-bit ones),
    whatever the operands are; that is the dtype of the result, or the dtype of acc. Masked-off
    elements are skipped; where that leaves nothing to sum, the result is masked off.

    Example::

        a, b = tkl.iota((2, 3), 1), tkl.iota((3, 2), 0)
        tkl.dot(a, b)  # [[5 5] [5 5]]
        tkl.dot(a, b, tkl.full((2, 2), 10, tkl.i64))  # [[15 15] [15 15]]"""

def all(x: Tile, axis: Axes = None, *, keepdims: builtins.bool = False) -> Tile:
    """Whether every element is nonzero over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives True; where a mask removes every element,
    the result is masked off.

    Example::

        tkl.all(tkl.arange(3) > 1)  # False"""

def any(x: Tile, axis: Axes = None, *, keepdims: builtins.bool = False) -> Tile:
    """Whether an element is nonzero over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives False; where a mask removes every element,
    the result is masked off.

    Example::

        tkl.any(tkl.arange(3) > 1)  # True"""

def argmax(x: Tile, axis: int | None = None, *, keepdims: builtins.bool = False) -> Tile:
    """Index of the maximum along an axis, as i64.

    The first of equal elements, and the first nan if there is one. Masked-off elements are
    skipped. An empty axis gives 0; where a mask removes every element, the result is masked off. A
    tile of one axis needs no `axis`.

    Example::

        tkl.argmax((tkl.arange(5) * 2) % 5)  # 2"""

def argmin(x: Tile, axis: int | None = None, *, keepdims: builtins.bool = False) -> Tile:
    """Index of the minimum along an axis, as i64.

    The first of equal elements, and the first nan if there is one. Masked-off elements are
    skipped. An empty axis gives 0; where a mask removes every element, the result is masked off. A
    tile of one axis needs no `axis`.

    Example::

        tkl.argmin((tkl.arange(5) * 2 + 1) % 5)  # 2"""

def max(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """Maximum over an axis, several axes, or all of them; nan if an element is nan.

    Masked-off elements are skipped. An empty axis gives -inf, or the smallest integer; where a
    mask removes every element, the result is masked off. `acc` is another operand.
    `tkl.max(x, y)` of two tiles is `tkl.maximum`.

    Example::

        tkl.max(tkl.iota((2, 3), 1), axis=0)  # [0 1 2]
        tkl.max(tkl.arange(3), acc=7)  # 7"""

def min(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """Minimum over an axis, several axes, or all of them; nan if an element is nan.

    Masked-off elements are skipped. An empty axis gives inf, or the largest integer; where a mask
    removes every element, the result is masked off. `acc` is another operand.
    `tkl.min(x, y)` of two tiles is `tkl.minimum`.

    Example::

        tkl.min(tkl.iota((2, 3), 0), axis=1, keepdims=True)  # [[0] [1]]"""

def prod(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """Product over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives 1; where a mask removes every element, the
    result is masked off. Integers and bools are multiplied in i64, floats keep their dtype. `acc`
    is multiplied by the product.

    Example::

        tkl.prod(tkl.arange(1, 5))  # 24"""

def sum(
    x: Tile, axis: Axes = None, acc: Operand | None = None, *, keepdims: builtins.bool = False
) -> Any:
    """Sum over an axis, several axes, or all of them.

    Masked-off elements are skipped. An empty axis gives 0; where a mask removes every element, the
    result is masked off. Integers and bools are summed in i64, floats keep their dtype. `acc` is
    added to the sum.

    Example::

        tkl.sum(tkl.iota((2, 3), 1), axis=1)  # [3 3]
        tkl.sum(tkl.iota((2, 3), 1))  # 6"""

def cummax(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """Cumulative maximum along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. From the first nan on, the result is nan.

    Example::

        tkl.cummax((tkl.arange(5) * 2) % 5, 0)  # [0 2 4 4 4]"""

def cummin(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """Cumulative minimum along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. From the first nan on, the result is nan.

    Example::

        tkl.cummin((tkl.arange(5) * 2 + 1) % 5, 0)  # [1 1 0 0 0]"""

def cumprod(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """Cumulative product along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. Integers and bools are multiplied in i64; f16 and bf16 are
    multiplied in f32, and each result is rounded.

    Example::

        tkl.cumprod(tkl.arange(1, 5), 0)  # [1 2 6 24]"""

def cumsum(x: Tile, axis: int, reverse: builtins.bool = False) -> Tile:
    """Cumulative sum along an axis; from the last element on if `reverse`.

    Masked-off elements are skipped. Integers and bools are summed in i64; f16 and bf16 are summed
    in f32, and each result is rounded.

    Example::

        tkl.cumsum(tkl.arange(4), 0)  # [0 1 3 6]
        tkl.cumsum(tkl.arange(4), 0, reverse=True)  # [6 6 5 3]"""

def broadcast_to(x: Operand, shape: Shape) -> Tile:
    """x broadcast to a shape: axes are aligned at the last, and those of size 1 repeat.

    Example::

        tkl.broadcast_to(tkl.arange(3), (2, 3))  # [[0 1 2] [0 1 2]]"""

def concatenate(tiles: Sequence[Tile], axis: int = 0) -> Tile:
    """Tiles joined along an axis; their other sizes must agree.

    Tiles are converted to one dtype.

    Example::

        tkl.concatenate([tkl.arange(2), tkl.arange(3)])  # [0 1 0 1 2]"""

def expand_dims(x: Tile, axis: int) -> Tile:
    """x with a new axis of size 1 at the given position: `x[:, None]`.

    Example::

        tkl.expand_dims(tkl.arange(3), 1)  # [[0] [1] [2]]"""

def reshape(x: Tile, shape: Shape) -> Tile:
    """The elements of x, in row-major order, in another shape of the same size.

    Example::

        tkl.reshape(tkl.arange(6), (2, 3))  # [[0 1 2] [3 4 5]]"""

def slice(x: Tile, axis: int, start: Size, size: Size, step: int = 1) -> Tile:
    """`size` elements of x along an axis, from `start` on, every `step`-th: `x[2:6:2]`.

    Example::

        tkl.slice(tkl.arange(8), axis=0, start=2, size=2, step=2)  # [2 4]"""

def squeeze(x: Tile, axis: int) -> Tile:
    """x without an axis of size 1.

    Example::

        tkl.squeeze(tkl.iota((1, 3), 1), 0)  # [0 1 2]"""

def transpose(x: Tile, perm: Sequence[int] | None = None) -> Tile:
    """Permutation of the axes; without `perm`, their order is reversed.

    Example::

        tkl.transpose(tkl.iota((2, 3), 1))  # [[0 0] [1 1] [2 2]]
        tkl.sum(tkl.transpose(tkl.iota((2, 3, 4), 2), (2, 0, 1)), axis=(1, 2))  # [0 6 12 18]"""

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
i4: UnsupportedType
f4e2m1fn: UnsupportedType
f6e2m3fn: UnsupportedType
f8e8m0fnu: UnsupportedType
Index = IndexExpr
Vector = Tile
