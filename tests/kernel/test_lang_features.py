"""Block counts, initial values of outputs, dtype symbols, loops and optional arguments."""

from typing import Any, Optional

import pytest
import torch

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import algebra, errors
from turbine.kernel.lang.control_flow import blocks

N, M, B = (algebra.symbol(name) for name in "NMB")
SIZES = {
    symbol: number for s, number in zip((N, M, B), (10, 3, 4), strict=True) for symbol in s.symbols
}


@pytest.mark.parametrize(
    ("written", "counted"),
    [
        (algebra.quotient(N, B), 3),
        (algebra.quotient(N, B) * M, 9),
        (algebra.ceiling(N, B), 3),
        (algebra.ceiling(N, 5), 2),
        (algebra.smaller(algebra.quotient(N, B), M + 7), 3),
        (algebra.quotient(algebra.quotient(N, B), 2), 2),
    ],
    ids=str,
)
def test_floor_division_counts_partial_blocks(written: algebra.Expr, counted: int) -> None:
    assert blocks(written).evaluate(SIZES) == counted


SIZE, BLOCK, HEADS, COUNT = tkl.symbols("SIZE BLOCK HEADS COUNT")
T = tkl.types.T


def filled(one: Any, other: Any) -> tk.Kernel:
    """Sums of a row's elements, and of their squares, in outputs that start with a number."""
    Total = tkl.OutputBuffer[SIZE, T]

    @tk.gen.kernel(SIZE // BLOCK)
    def sums(x: tkl.InputBuffer[SIZE, T], y: Total.filled(one), z: Total.filled(other)) -> None:
        start = (tkl.program_id(0) * BLOCK,)
        block = tkl.load(x, start, (BLOCK,))
        tkl.atomic_add(y, start, block)
        tkl.atomic_max(z, start, block)

    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_filled_outputs_do_not_alias(dtype: torch.dtype) -> None:
    x = torch.arange(5).to(dtype)
    y, z = filled(1, 1)(x)
    assert torch.equal(y, x + 1)
    assert torch.equal(z, x.clamp(min=1))


def test_outputs_are_filled_with_any_number_of_their_dtype() -> None:
    x = torch.arange(5).to(torch.bfloat16)
    y, z = filled(-0.5, float("-inf"))(x)
    assert torch.equal(y, x - 0.5)
    assert torch.equal(z, x)


def test_in_out_arguments_are_updated() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def double(x: tkl.InOutBuffer[SIZE, T]) -> None:
        start = (tkl.program_id(0) * BLOCK,)
        tkl.store(x, start, 2 * tkl.load(x, start, (BLOCK,)))

    x = torch.arange(5.0)
    assert double(x) is None
    assert torch.equal(x, 2 * torch.arange(5.0))


def test_dtype_symbols_are_inferred_from_arguments() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def ones(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[SIZE, T]) -> None:
        made = tkl.zeros((BLOCK,), T)
        tkl.store(y, (tkl.program_id(0) * BLOCK,), made + tkl.to_dtype(1, T))

    for dtype in (torch.float16, torch.int8):
        assert torch.equal(ones.interpret(torch.zeros(3, dtype=dtype)), torch.ones(3, dtype=dtype))


def test_unbound_dtype_symbols_are_rejected() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def zeros(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[SIZE, T]) -> None:
        tkl.store(y, (tkl.program_id(0) * BLOCK,), tkl.zeros((BLOCK,), tkl.types.U))

    with pytest.raises(errors.KernelError, match="U is not a dtype of an argument"):
        zeros.interpret(torch.ones(3))


def test_using_loop_results_as_a_tile_suggests_indexing() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def twice(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[SIZE, T]) -> None:
        start = (tkl.program_id(0) * BLOCK,)

        @tkl.for_loop(0, 2, init_args=[tkl.load(x, start, (BLOCK,))])
        def body(turn: Any, tile: Any) -> Any:
            return tile + tile

        tkl.store(y, start, body)  # type: ignore[arg-type]

    with pytest.raises(errors.KernelError, match=r"^tkl.store of several values") as raised:
        twice.interpret(torch.ones(3))
    assert "body[0]" in str(raised.value)


def test_none_in_a_shape_drops_the_axis() -> None:
    @tk.gen.kernel(HEADS, SIZE // BLOCK)
    def copy(x: tkl.InputBuffer[HEADS, SIZE, T], y: tkl.OutputBuffer[HEADS, SIZE, T]) -> None:
        place = tkl.program_id(0), tkl.program_id(1) * BLOCK
        tile = tkl.load(x, place, (None, BLOCK))
        assert len(tile.shape) == 1
        tkl.store(y, place, tile)

    x = torch.randn(3, 1030)
    assert torch.equal(copy(x), x)


def test_explicit_ceiling_division_is_not_rounded_up_twice() -> None:
    @tk.gen.kernel((SIZE + BLOCK - 1) // BLOCK, blocks={BLOCK: 4})
    def count(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[1, tkl.i32].filled(0)) -> None:
        tkl.load(x, (tkl.program_id(0) * BLOCK,), (BLOCK,))
        tkl.atomic_add(y, (0,), 1)

    assert [int(count.interpret(torch.ones(size))) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_output_only_sizes_are_not_tuned() -> None:
    @tk.gen.kernel(1)
    def first(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[COUNT, T]) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (COUNT,)))

    with pytest.raises(errors.KernelError, match="cannot infer COUNT"):
        first.interpret(torch.ones(3))
    assert torch.equal(first.using(COUNT=2).interpret(torch.ones(3)), torch.ones(2))


@tk.gen.kernel(SIZE // BLOCK)
def scaled(
    x: tkl.InputBuffer[SIZE, tkl.f32], y: tkl.OutputBuffer[SIZE, tkl.f32], by: tkl.f32 = 2.0
) -> None:
    start = (tkl.program_id(0) * BLOCK,)
    tkl.store(y, start, by * tkl.load(x, start, (BLOCK,)))


@pytest.mark.parametrize("by", [(), (torch.tensor(3),), (torch.tensor(0.5),)], ids=str)
def test_scalar_arguments_may_be_omitted_or_tensors(by: Any) -> None:
    x = torch.arange(5.0)
    for _ in range(3):
        assert torch.equal(scaled(x, *by), x * (by[0] if by else 2))


@tk.gen.kernel(tkl.sym.P, blocks={tkl.sym.P: 3, BLOCK: 4})
def in_strides(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[SIZE, T]) -> None:
    @tkl.for_loop(tkl.program_id(0), SIZE // BLOCK, tkl.num_programs(0))
    def block(i: Any) -> None:
        tkl.store(y, (i * BLOCK,), 2 * tkl.load(x, (i * BLOCK,), (BLOCK,)))


@pytest.mark.parametrize("size", [0, 1, 24, 33])
def test_loops_may_step_by_num_programs(size: int) -> None:
    x = torch.arange(size)
    assert torch.equal(in_strides(x), 2 * x)
    assert torch.equal(in_strides.interpret(x), 2 * x)


def test_cdiv_of_a_computed_number_counts_blocks() -> None:
    @tk.gen.kernel(1)
    def counts(n: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[SIZE, T]) -> None:
        tkl.store(y, (0,), tkl.cdiv(tkl.load(n, (0,), (SIZE,)), 4))

    for dtype in (torch.int32, torch.uint8):
        numbers = torch.tensor([0, 1, 4, 5, 127]).to(dtype)
        assert counts(numbers).tolist() == [0, 1, 1, 2, 32]


def test_a_loop_whose_step_is_zero_terminates() -> None:
    @tk.gen.kernel(1)
    def turns(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[1, tkl.i64]) -> None:
        total = tkl.for_loop(3, 20, SIZE, init_args=[tkl.full((), 0, tkl.i64)])(lambda k, a: a + k)
        tkl.store(y, (0,), total[0])

    assert [turns(torch.zeros(n)).item() for n in (1, 2, 30)] == [187, 99, 3]
    assert turns(torch.zeros(0)).item() == turns.interpret(torch.zeros(0)).item()


def test_gathers_of_rows_match_torch() -> None:
    @tk.gen.kernel(COUNT // BLOCK, blocks={BLOCK: 8})
    def rows(
        table: tkl.InputBuffer[SIZE, HEADS, T],
        index: tkl.InputBuffer[COUNT, tkl.i64],
        y: tkl.OutputBuffer[COUNT, HEADS, T].filled(0),
    ) -> None:
        start = tkl.program_id(0) * BLOCK
        named = tkl.load(index, (start,), (BLOCK,))
        columns = tkl.arange(HEADS) + 1
        tkl.store(y, (start, 0), tkl.load(table, (named[:, None], columns[None, :]), check=False))

    table, index = torch.randn(20, 37), torch.tensor([3, 19, -1, 0, 20, 7, 7, 2**40, 1])
    inside = (index >= 0) & (index < 20)
    wanted = torch.zeros(9, 37)
    wanted[inside, :-1] = table[index[inside], 1:]
    assert torch.equal(rows(table, index), wanted)


def test_masked_stores_use_vectors_or_single_lanes() -> None:
    @tk.gen.kernel(SIZE // BLOCK, blocks={BLOCK: 64})
    def some(x: tkl.InputBuffer[SIZE, T], y: tkl.OutputBuffer[SIZE, T].filled(-1)) -> None:
        places = tkl.program_id(0) * BLOCK + tkl.arange(BLOCK)
        tkl.store(y, (places,), tkl.load(x, (places,)), mask=(places % 3 != 0) | (places < 64))

    x, places = torch.randn(200), torch.arange(200)
    taking = (places % 3 != 0) | (places < 64)
    assert torch.equal(some(x), torch.where(taking, x, torch.tensor(-1.0)))


def test_aliased_in_out_buffers_are_rejected() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def both(x: tkl.InOutBuffer[SIZE, T], y: tkl.InOutBuffer[SIZE, T]) -> None:
        place = (tkl.program_id(0) * BLOCK,)
        tkl.store(x, place, tkl.load(x, place, (BLOCK,)) + 1)
        tkl.store(y, place, tkl.load(y, place, (BLOCK,)) * 2)

    whole = torch.ones(6)
    with pytest.raises(errors.KernelError, match="x and y are in-out and share memory"):
        both(whole, whole)
    both(whole[:3], whole[3:])
    assert whole.tolist() == [2.0] * 6


def test_optional_scalar_arguments_may_be_omitted() -> None:
    @tk.gen.kernel(SIZE // BLOCK)
    def moved(
        x: tkl.InputBuffer[SIZE, T],
        by: tkl.f32 | None,
        to: Optional[tkl.i32],  # noqa: UP045
        y: tkl.OutputBuffer[SIZE, T],
    ) -> None:
        start = tkl.program_id(0) * BLOCK
        tile = tkl.load(x, (start,), (BLOCK,))
        tile = tile if by is None else tile * by
        tkl.store(y, (start,), tile if to is None else tile + to)

    x = torch.arange(3.0)
    assert moved(x).tolist() == [0, 1, 2]
    assert moved(x, 0.5).tolist() == [0, 0.5, 1]
    assert moved(x, to=3).tolist() == [3, 4, 5]


def test_buffers_may_have_rank_0() -> None:
    @tk.gen.kernel()
    def doubled(x: tkl.InputBuffer[T], y: tkl.OutputBuffer[T].filled(7)) -> None:
        tile = tkl.load(x, ())
        tkl.store(y, (), 2 * tile, mask=tile > 0)

    for run in (doubled, doubled.interpret):
        assert [run(torch.tensor(x)).item() for x in (3.0, -3.0)] == [6, 7]


def test_the_order_of_keywords_does_not_matter() -> None:
    @tk.gen.kernel(SIZE // BLOCK, COUNT, specialize=[SIZE])
    def outer(
        x: tkl.InputBuffer[SIZE, T],
        z: tkl.InputBuffer[COUNT, T],
        y: tkl.OutputBuffer[SIZE, COUNT, T],
    ) -> None:
        start, place = tkl.program_id(0) * BLOCK, tkl.program_id(1)
        tile = tkl.load(x, (start,), (BLOCK,))[:, None] * tkl.load(z, (place,))
        tkl.store(y, (start, place), tile)

    two, three = torch.arange(2.0), torch.arange(3.0)
    assert torch.equal(outer(x=two, z=three), torch.outer(two, three))
    assert torch.equal(outer(z=two, x=three), torch.outer(three, two))
