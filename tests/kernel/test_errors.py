"""Errors in kernels: what failed in the user's symbols, the line, and how to fix it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import errors
from turbine.kernel.backends.iree.emitter import RULES
from turbine.kernel.lang import functions

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
BM, BN, BK = tkl.sym.BM, tkl.sym.BN, tkl.sym.BK
T = tkl.types.T
VECTOR = torch.ones(8)
WRONG: Any = tkl  # for calls that type checkers refuse
Body = Callable[[Any, Any], Any]


def raised(run: Callable[[], Any]) -> errors.KernelError:
    """The error, which must name a line of this file and have a hint."""
    with pytest.raises(errors.KernelError) as caught:
        run()
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"{__file__}:")
    assert caught.value.hint
    return caught.value


def kernel(
    body: Body, grid: tuple[Any, ...] = (), x: Any = None, y: Any = None, **options: Any
) -> tk.Kernel:
    def made(x, y):  # type: ignore[no-untyped-def]
        body(x, y)

    made.__annotations__ = {
        "x": tkl.InputBuffer[N, tkl.f32] if x is None else x,
        "y": tkl.OutputBuffer[N, tkl.f32] if y is None else y,
    }
    return tk.gen.kernel(*grid, **options)(made)


def read(x: Any) -> Any:
    return tkl.load(x, (0,), (N,))


def write(y: Any, value: Any) -> None:
    tkl.store(y, (0,), value)


def tile(*shape: Any, dtype: Any = tkl.f32) -> Any:
    return tkl.constant(shape, dtype, 0)


def size(value: Any) -> Any:
    return value


def copied(x: Any, y: Any) -> None:
    write(y, read(x))


def looped(function: Callable[..., Any], init: Any = None, stop: Any = 3, step: Any = 1) -> Body:
    def body(x: Any, y: Any) -> None:
        carried = [read(x)] if init is None else init
        write(y, tkl.for_loop(0, stop, step, init_args=carried)(function)[0])

    return body


def escaping(x: Any, y: Any) -> None:
    kept: list[Any] = []

    @tkl.for_loop(0, 3, init_args=[read(x)])
    def body(k: Any, a: Any) -> Any:
        kept.append(a + 1)
        return a

    write(y, kept[0])


def assigned(x: Any, y: Any) -> None:
    row = read(x)
    row[0] = 1.0


def with_message(*rows: tuple[str, Body]) -> pytest.MarkDecorator:
    names = [message for message, _ in rows]
    return pytest.mark.parametrize(("message", "body"), rows, ids=names)


# Python on values that are traced


@with_message(
    ("the truth value of a traced bool is not known", lambda x, y: write(y, 1.0 if N > 3 else 2.0)),
    (
        "the truth value of a tile [N, bool] is not known",
        lambda x, y: write(y, tkl.where((read(x) > 0) and (read(x) < 1), 1.0, 2.0)),
    ),
    ("cannot iterate over a tile [N, f32]", lambda x, y: write(y, sum(read(x)))),
    ("N is not a Python number", lambda x, y: [read(x) for _ in range(size(N))]),
    ("a traced f32 is not a Python number", lambda x, y: write(y, int(read(x)[0]))),
    ("a tile [N, f32] is not a Python number", lambda x, y: write(y, math.exp(read(x)))),
    ("cannot compute with buffer x: InputBuffer[N, f32]", lambda x, y: write(y, x + 1)),
    ("torch's exp is called with a tile [N, f32]", lambda x, y: write(y, torch.exp(read(x)))),
    ("torch's add is called with a tile [N, f32]", lambda x, y: write(y, read(x) + VECTOR)),
    ("numpy's exp is called with a tile [N, f32]", lambda x, y: write(y, numpy.exp(read(x)))),
    ("cannot assign to a part of a tile [N, f32]", assigned),
)
def test_python_operations_that_need_a_value_are_rejected(message: str, body: Body) -> None:
    assert message in raised(lambda: kernel(body).interpret(VECTOR)).fact


def ask_for(name: str, x: Any, y: Any) -> Any:
    return getattr(read(x), name)


def test_missing_attributes_of_tiles_suggest_functions() -> None:
    for name in ("add_", "sum", "T"):
        told = rf"a tile \[N, f32\] has no attribute '{name}': .* tkl\.sum\(x\)"
        with pytest.raises(AttributeError, match=told):
            kernel(partial(ask_for, name)).interpret(VECTOR)


def test_numpy_scalars_are_accepted_as_numbers() -> None:
    made = kernel(lambda x, y: write(y, read(x) * numpy.float32(2) + numpy.int64(1)))
    assert made.interpret(VECTOR).tolist() == [3.0] * 8


# Where things are used


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("tkl.program_id", lambda: tkl.program_id(0)),
        ("tkl.load", lambda: WRONG.load(VECTOR, (0,), (8,))),
        ("tkl.exp", lambda: tkl.exp(1.0)),
        ("tkl.for_loop", lambda: tkl.for_loop(0, 3)),
    ],
)
def test_ops_outside_a_kernel_are_rejected(what: str, use: Callable[[], Any]) -> None:
    assert raised(use).fact == f"{what} is used outside a kernel"


def test_values_of_a_loop_are_rejected_outside_of_it() -> None:
    error = raised(lambda: kernel(escaping).interpret(VECTOR))
    assert error.fact.startswith("the result of tkl.add (")
    assert "is a value of a loop, a branch or another kernel, and is used outside" in error.fact


def test_an_op_without_a_backend_rule_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, functions.exp)
    made = kernel(lambda x, y: write(y, tkl.exp(read(x))))
    error = raised(lambda: made(VECTOR))
    assert error.fact == "kernel made: tkl.exp is not supported on the CPU"
    assert "made.interpret(...)" in str(error.hint)


def test_a_kernel_call_inside_a_kernel_is_rejected() -> None:
    other = kernel(copied)
    error = raised(lambda: kernel(lambda x, y: write(y, other(read(x)))).interpret(VECTOR))
    assert error.fact == "made: x: InputBuffer[N, f32] was given a tile [N, f32]"


# Reading and writing


@with_message(
    (
        "tkl.store to x, which is an input: InputBuffer[N, f32]",
        lambda x, y: tkl.store(x, (0,), read(x)),
    ),
    (
        "y is read before it is written: OutputBuffer[N, f32]",
        lambda x, y: write(y, read(y)),
    ),
    ("kernel made never writes to its output y", lambda x, y: read(x)),
    ("tkl.load: 2 indices for x, which has 1 axis", lambda x, y: tkl.load(x, (0, 0), (1, N))),
    ("a block of 2 axes is read from x, which has 1", lambda x, y: tkl.load(x, (0,), (1, N))),
    (
        "a tile [2, N, f32] is stored to y, which has fewer axes: OutputBuffer[N, f32]",
        lambda x, y: write(y, tile(2, N)),
    ),
    (
        "tkl.load of a tile [N, f32], which is not a buffer",
        lambda x, y: tkl.load(read(x), (0,), (N,)),
    ),
    ("tkl.load: an index is 0.5", lambda x, y: tkl.load(x, (0.5,), (N,))),
    ("tkl.load: an index is a tile [N, f32]", lambda x, y: tkl.load(x, (read(x),))),
    ("tkl.load: a size is a traced f32", lambda x, y: tkl.load(x, (0,), (read(x)[0],))),
    (
        "tkl.load: the size program_id(0) differs from program to program",
        lambda x, y: tkl.load(x, (0,), (tkl.program_id(0),)),
    ),
    (
        "a tile [2, bool] cannot be broadcast to [N]",
        lambda x, y: tkl.load(x, (0,), (N,), mask=tile(2, dtype=tkl.bool)),
    ),
)
def test_invalid_accesses_are_rejected(message: str, body: Body) -> None:
    assert message in raised(lambda: kernel(body, (1,)).interpret(VECTOR)).fact


def test_floats_stored_to_integer_buffers_are_rejected() -> None:
    made = kernel(copied, y=tkl.OutputBuffer[N, tkl.i32])
    told = "a tile [N, f32] is stored to y, which holds no floats: OutputBuffer[N, i32]"
    assert raised(lambda: made.interpret(VECTOR)).fact == told


def test_reads_of_uninitialized_elements_are_rejected() -> None:
    def body(x: Any, y: Any) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (1,)))
        write(y, read(y))

    told = "program () reads elements of y that are uninitialized"
    assert raised(lambda: kernel(body).interpret(VECTOR)).fact == told


def test_two_programs_storing_to_one_element_are_rejected() -> None:
    error = raised(lambda: kernel(copied, (2,)).interpret(VECTOR))
    assert error.fact.startswith("two programs store to one element of y: ")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (1, "program number 1, (1,), writes an element of x that number 0 reads"),
        (-1, "program number 2, (2,), reads an element of x that number 1 writes"),
    ],
)
def test_a_read_of_an_element_that_another_program_writes_is_rejected(step: int, told: str) -> None:
    @tk.gen.kernel(N)
    def moved(x: tkl.InOutBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        tkl.store(x, (i,), tkl.load(x, (i + step,), (1,)))

    error = raised(lambda: moved.interpret(VECTOR.clone()))
    assert error.fact == f"{told}: the order is undefined"


def test_reads_by_several_programs_of_a_written_element_are_rejected() -> None:
    @tk.gen.kernel(N)
    def last(x: tkl.InOutBuffer[N, tkl.f32]) -> None:
        i = tkl.program_id(0)
        tkl.store(x, (i,), tkl.load(x, (tkl.full((1,), N - 1, tkl.i64),)))

    error = raised(lambda: last.interpret(VECTOR.clone()))
    assert "program number 7, (7,), writes an element of x that several read" in error.fact


# Shapes and types of tiles


@with_message(
    (
        "cannot broadcast tiles of [N, f32] and [K, f32]: N and K are different sizes",
        lambda x, y: read(x) + tile(K),
    ),
    ("tkl.dot of a tile [N, f32] and a tile [N, f32]", lambda x, y: read(x) @ read(x)),
    (
        "tkl.dot of [BM, BK, f32] and [BN, BK, f32]: the contraction sizes BK and BN differ",
        lambda x, y: tkl.dot(tile(BM, BK), tile(BN, BK)),
    ),
    (
        "tkl.dot of [BM, BK, f32] and [BK, BN, f32]: the accumulator is [BM, BK, f32]",
        lambda x, y: tkl.dot(tile(BM, BK), tile(BK, BN), tile(BM, BK)),
    ),
    (
        "the accumulator is a tile [BM, BN, i32]",
        lambda x, y: tkl.dot(tile(BM, BK), tile(BK, BN), tile(BM, BN, dtype=tkl.i32)),
    ),
    ("the batch sizes differ", lambda x, y: tkl.dot(tile(2, BM, BK), tile(3, BK, BN))),
    ("tkl.bitwise_and of f32: it takes bool, int, uint", lambda x, y: read(x) & read(x)),
    ("tkl.constant of a traced f32", lambda x, y: tkl.constant((N,), tkl.f32, read(x)[0])),
    ("torch.float32 is not a dtype", lambda x, y: WRONG.constant((N,), torch.float32, 0)),
    ("tkl.constant: a size is -1", lambda x, y: tkl.constant((-1,), tkl.f32, 0)),
    ("tkl.arange of a traced f32", lambda x, y: tkl.arange(read(x)[0])),
    ("tkl.iota of 1 axes: axis=1", lambda x, y: tkl.iota((N,), 1)),
    ("tkl.sum: axis 1 is out of range for a tile with 1 axis", lambda x, y: tkl.sum(read(x), 1)),
    ("tkl.argmax of a tile [2, N, f32] needs an axis", lambda x, y: tkl.argmax(tile(2, N))),
    ("to [N, 2]: N elements are not 2*N", lambda x, y: tkl.reshape(read(x), (N, 2))),
    ("(1, 0) is not a permutation of the axes", lambda x, y: tkl.transpose(read(x), (1, 0))),
    (
        "a tile [N, f32] cannot be broadcast to [K, 3]",
        lambda x, y: tkl.broadcast_to(read(x), (K, 3)),
    ),
    (
        "tkl.concatenate of [N, 1, f32] and [2, 2, f32] along axis 0: the other sizes differ",
        lambda x, y: tkl.concatenate([tile(N, 1), tile(2, 2)]),
    ),
    ("tkl.concatenate of no tiles", lambda x, y: tkl.concatenate([])),
    ("start 2, size 4 and step 1 are out of range for size 4", lambda x, y: tile(4)[slice(2, 6)]),
    ("invalid index 'a' of a tile", lambda x, y: read(x)["a"]),
    ("too many indices: 2 axes of a tile that has 1", lambda x, y: read(x)[0, 0]),
    (
        "tkl.squeeze of a tile [N, f32]: axis 0 has size N, not 1",
        lambda x, y: tkl.squeeze(read(x), 0),
    ),
    ("tkl.bitcast of a tile [N, f32] to 16 bits", lambda x, y: tkl.bitcast(read(x), tkl.i16)),
    ("tkl.exp of buffer x: InputBuffer[N, f32]", lambda x, y: tkl.exp(x)),
    ("tkl.to_dtype of buffer x: InputBuffer[N, f32]", lambda x, y: tkl.to_dtype(x, tkl.f16)),
    ("got an unexpected keyword argument 'axis'", lambda x, y: WRONG.exp(read(x), axis=1)),
    ("invalid call of tkl.maximum: missing", lambda x, y: WRONG.maximum(read(x))),
    ("invalid call of tkl.logical_and: missing", lambda x, y: WRONG.logical_and(read(x))),
)
def test_invalid_operands_are_rejected(message: str, body: Body) -> None:
    assert message in raised(lambda: kernel(body).interpret(VECTOR)).fact


def test_dot_suggests_a_transpose_of_the_second_operand() -> None:
    made = kernel(lambda x, y: tkl.dot(tile(BM, BK), tile(BN, BK)))
    assert "tkl.transpose(b, (1, 0))" in str(raised(lambda: made.interpret(VECTOR)).hint)


# Loops and branches


@with_message(
    (
        "the function of a loop returns [N, f32] and [N, f32], the carried value is [N, f32]",
        looped(lambda k, a: (a, a)),
    ),
    ("the function of a loop returns nothing", looped(lambda k, a: None)),
    (
        "value 0 that the function of a loop returns is [N, f16], the carried value is [N, f32]",
        looped(lambda k, a: a.to(tkl.f16)),
    ),
    ("the function of a loop is called with ", looped(lambda k: k)),
    ("init_args must be a list, not 1.0", looped(lambda k, a: a, init=1.0)),
    ("invalid bound of a loop: 2.5", looped(lambda k, a: a, stop=2.5)),
    ("tkl.for_loop has step=0", looped(lambda k, a: a, step=0)),
    ("result 0 is out of range: the loop or branch has 0 results", looped(lambda k: None, init=[])),
    (
        "tkl.store of several values, a Results of 1",
        lambda x, y: write(y, tkl.for_loop(0, 3, init_args=[read(x)])(lambda k, a: a)),
    ),
    (
        "the condition of tkl.while_loop returns a tile [N, bool]",
        lambda x, y: tkl.while_loop(lambda a: a > 0, lambda a: a - 1, [read(x)]),
    ),
    (
        "the condition of tkl.cond is a tile [N, bool]",
        lambda x, y: tkl.cond(read(x) > 0, lambda: 1.0, lambda: 2.0),
    ),
    (
        "value 0 that the second branch of tkl.cond returns is [i64], the first is [f32]",
        lambda x, y: tkl.cond(read(x)[0] > 0, lambda: 1.0, lambda: 2),
    ),
    (
        "the second branch of tkl.cond returns [f32], the first is [f32] and [f32]",
        lambda x, y: tkl.cond(read(x)[0] > 0, lambda: (1.0, 2.0), lambda: 2.0),
    ),
)
def test_invalid_loops_and_branches_are_rejected(message: str, body: Body) -> None:
    assert message in raised(lambda: kernel(body).interpret(VECTOR)).fact


# Declarations


def returning() -> tk.Kernel:
    @tk.gen.kernel()
    def made(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> Any:
        write(y, read(x))
        return y

    return made


@pytest.mark.parametrize(
    ("message", "declare"),
    [
        ("InputBuffer[...] ends with N, which is no", lambda: tkl.InputBuffer[tkl.f32, N]),
        ("InputBuffer[...] has invalid size 'N'", lambda: tkl.InputBuffer["N", tkl.f32]),
        ("cannot fill InputBuffer[N, f32]", lambda: tkl.InputBuffer[N, tkl.f32].filled(0)),
        ("the grid has 2.5 for its axis 0", lambda: kernel(copied, (2.5,))),
        ("the grid has -2 for its axis 1", lambda: kernel(copied, (1, -2))),
        ("the grid has (2, 3) for its axis 0", lambda: kernel(copied, ((2, 3),))),
        ("the grid has a function for its axis 0", lambda: tk.gen.kernel(copied)),
        (
            "argument x of kernel made is annotated with <class 'torch.Tensor'>",
            lambda: kernel(copied, x=torch.Tensor),
        ),
        ("kernel made writes nothing", lambda: kernel(copied, y=tkl.InputBuffer[N, tkl.f32])),
        ("made: the block size BN is 0", lambda: kernel(copied, blocks={BN: 0})),
        ("made: the block size BN is 2.0", lambda: kernel(copied, blocks={BN: 2.0})),
        (
            "unknown size of the tensors of kernel made 'Q'; valid: N",
            lambda: kernel(copied, specialize=["Q"]),
        ),
        ("kernel made returns a value", lambda: returning().interpret(VECTOR)),
        (
            "tkl.program_id(1) of the grid (N), which has 1 axis",
            lambda: kernel(lambda x, y: tkl.program_id(1), (N,)).interpret(VECTOR),
        ),
    ],
)
def test_invalid_declarations_are_rejected(message: str, declare: Any) -> None:
    assert message in raised(declare).fact


def test_unknown_block_sizes_are_rejected() -> None:
    made = kernel(copied)
    told = "unknown size of kernel made 'BX'; valid: N, group_rows, num_stages, num_warps"
    assert raised(lambda: made.using(BX=3).interpret(VECTOR)).fact == told
    made.interpret(VECTOR)
    assert raised(lambda: made.using(BX=3)).fact == told


# Calls


def product() -> tk.Kernel:
    @tk.gen.kernel()
    def made(
        a: tkl.InputBuffer[M, K, T],
        b: tkl.InputBuffer[K, N, T],
        c: tkl.OutputBuffer[M, N, T],
    ) -> None:
        tkl.store(c, (0, 0), tkl.dot(tkl.load(a, (0, 0), (M, K)), tkl.load(b, (0, 0), (K, N))))

    return made


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (
            "made: K is 64 from axis 1 of a and 32 from axis 0 of b",
            lambda: product().interpret(torch.ones(2, 64), torch.ones(32, 3)),
        ),
        (
            "made: b is InputBuffer[K, N, T], a tensor of f32 (T is that of a), and was given one "
            "of float16",
            lambda: product().interpret(torch.ones(2, 4), torch.ones(4, 3).half()),
        ),
        (
            "made: a was given a tensor of complex64, which kernels do not compute with",
            lambda: product().interpret(torch.ones(2, 4, dtype=torch.complex64), torch.ones(4, 3)),
        ),
        (
            "made: x is InputBuffer[N, f32], of 1 axis, and was given a tensor of 2: [6, 8]",
            lambda: kernel(copied).interpret(torch.ones(6, 8)),
        ),
        (
            "made: x is InputBuffer[N, f32], a tensor of f32, and was given one of float16",
            lambda: kernel(copied).interpret(VECTOR.half()),
        ),
        (
            "made: axis 0 of x is 4, and 8 in the tensor that was given",
            lambda: kernel(copied, x=tkl.InputBuffer[4, tkl.f32]).interpret(VECTOR),
        ),
        (
            "made: 2*N cannot be 7, which is axis 0 of x",
            lambda: kernel(copied, x=tkl.InputBuffer[2 * N, tkl.f32]).interpret(torch.ones(7)),
        ),
        (
            "made: cannot infer K",
            lambda: kernel(copied, y=tkl.OutputBuffer[K, tkl.f32]).interpret(VECTOR),
        ),
        (
            "made: cannot infer K",
            lambda: kernel(lambda x, y: tkl.store(y, (K,), read(x))).interpret(VECTOR),
        ),
        (
            "made: cannot infer the element type T of y",
            lambda: kernel(copied, y=tkl.OutputBuffer[N, T]).interpret(VECTOR),
        ),
        (
            "made: the grid has 8796093022208 programs along axis 0, which is 1099511627776*N",
            lambda: kernel(copied, (N * 2**40,)).interpret(VECTOR),
        ),
        (
            "made: the grid has -92 programs along axis 0, which is N - 100",
            lambda: kernel(copied, (N - 100,)).interpret(VECTOR),
        ),
        ("made was called without x: InputBuffer[N, f32]", lambda: kernel(copied)()),
        ("made: x: InputBuffer[N, f32] is None", lambda: kernel(copied)(None)),
        ("was given several values, a list of 2", lambda: kernel(copied)([1, 2])),
        ("made takes 1 arguments, x, and was given 2", lambda: kernel(copied)(VECTOR, VECTOR)),
        ("unknown argument of made 'z'; valid: x", lambda: kernel(copied)(z=VECTOR)),
        (
            "made: x: f32 was given 'one'",
            lambda: kernel(lambda x, y: write(y, x), x=tkl.f32)("one"),
        ),
    ],
)
def test_invalid_calls_are_rejected(message: str, call: Any) -> None:
    assert message in raised(call).fact
