"""Random numbers against Philox in plain Python and published vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import turbine.kernel.lang as tkl
from tests.kernel.interpreted import interpreted
from tests.kernel.philox import WORD, philox, uniform, words
from turbine import errors
from turbine.kernel.lang import random

N, BN = tkl.sym.N, tkl.sym.BN


# The known answers that come with Random123.
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([WORD] * 4, [WORD] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), VECTORS)
def test_philox_matches_known_answers(
    counter: list[int], key: list[int], answer: list[int]
) -> None:
    def kernel(c: tkl.InputBuffer[4, tkl.i64], y: tkl.OutputBuffer[4, tkl.u32]) -> None:
        one, two, three, four = (tkl.load(c, (place,)) for place in range(4))
        given = random.philox((one, two, three, four), (tkl.to_dtype(key[0], tkl.i64), key[1]))
        for place, word in enumerate(given):
            tkl.store(y, (place,), word.to(tkl.u32))

    assert interpreted(kernel, c=torch.tensor(counter))["y"].tolist() == answer
    assert philox(counter, key) == answer


def kernel_of(function: Any, dtype: Any) -> Any:
    def kernel(offsets, seed, y):  # type: ignore[no-untyped-def]
        start = tkl.program_id(0) * BN
        tile = tkl.load(offsets, (start,), (BN,))
        tkl.store(y, (start,), function(seed, tile))

    kernel.__annotations__ = {
        "offsets": tkl.InputBuffer[N, tkl.types.T],
        "seed": tkl.i64,
        "y": tkl.OutputBuffer[N, dtype],
    }
    return kernel


def numbers(
    function: Any, dtype: Any, seed: int, offsets: torch.Tensor, block: int = 8
) -> torch.Tensor:
    kernel = kernel_of(function, dtype)
    return interpreted(kernel, (N // BN,), {"BN": block}, offsets=offsets, seed=seed)["y"]


SEEDS = [0, 42, 2**40 + 5, -7]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_bits_are_the_first_philox_word(seed: int) -> None:
    offsets = torch.tensor([0, 1, 2, 1000, 2**31, 2**32 - 1, 2**32, 2**50 + 3, -1])
    bits = numbers(tkl.random_bits, tkl.u32, seed, offsets)
    assert bits.tolist() == [words(seed, offset)[0] for offset in offsets.tolist()]


def test_a_32_bit_offset_is_one_word() -> None:
    bits = numbers(tkl.random_bits, tkl.u32, 3, torch.tensor([-1, 5], dtype=torch.int32))
    assert bits.tolist() == [words(3, WORD)[0], words(3, 5)[0]]


def test_python_and_argument_seeds_agree() -> None:
    seed = 2**40 + 5
    offsets = torch.arange(20)
    passed = numbers(tkl.random_bits, tkl.u32, seed, offsets)
    known = numbers(lambda _, offset: tkl.random_bits(seed, offset), tkl.u32, 0, offsets)
    assert torch.equal(passed.view(torch.int32), known.view(torch.int32))


def test_rand_is_computed_from_the_bits() -> None:
    expected = [uniform(words(42, offset)[0]) for offset in range(40)]
    assert numbers(tkl.rand, tkl.f32, 42, torch.arange(40)).tolist() == [*map(float, expected)]


@pytest.mark.parametrize("word", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_rand_is_in_0_to_1(word: int) -> None:
    def kernel(x: tkl.InputBuffer[1, tkl.i64], y: tkl.OutputBuffer[1, tkl.f32]) -> None:
        tkl.store(y, (0,), random.to_uniform(tkl.load(x, (0,), (1,))))

    (value,) = interpreted(kernel, x=torch.tensor([word]))["y"].tolist()
    assert 0.0 <= value < 1.0


def test_randn_has_mean_0_and_deviation_1() -> None:
    actual = numbers(tkl.randn, tkl.f32, 1, torch.arange(20000), 20000)
    assert abs(actual.mean()) < 0.03
    assert abs(actual.std() - 1) < 0.03


def test_randint_of_an_empty_range_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.randint from 3 to below 3"):
        numbers(lambda s, o: tkl.randint(s, o, 3, 3), tkl.i64, 5, torch.arange(4))


def test_a_tile_as_seed_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.rand: the seed is a tile"):
        numbers(lambda _, offset: tkl.rand(offset, offset), tkl.f32, 5, torch.arange(4))


def test_a_float_offset_is_rejected() -> None:
    with pytest.raises(errors.KernelError, match=r"tkl.rand: the offset has dtype f32"):
        numbers(lambda seed, offset: tkl.rand(seed, offset * 0.5), tkl.f32, 5, torch.arange(4))


def test_seed_and_offset_may_be_scalars() -> None:
    def kernel(x: tkl.InputBuffer[N, tkl.i64], y: tkl.OutputBuffer[N, tkl.u32]) -> None:
        place = tkl.program_id(0)
        tkl.store(y, (place,), tkl.random_bits(place, place))

    bits = interpreted(kernel, (N,), x=torch.zeros(3, dtype=torch.int64))["y"]
    assert bits.tolist() == [words(n, n)[0] for n in range(3)]
