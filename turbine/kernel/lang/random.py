"""Counter-based random numbers: Philox 4x32-10.

Note [Random numbers]
The 64 bits of the seed are the key, and `offset` is the counter: its low 32 bits are the first
word, the high ones of a 64-bit integer the second, the other two are zero. A random number uses the
first of the four result words, as in Triton, so the same seed and offset give the same number on
every backend. All of it is composed of integer ops on i64, so a backend needs no rule for it.
"""

from __future__ import annotations

import math
from typing import Any

from turbine import errors
from turbine.kernel.lang.arithmetic import maximum, where
from turbine.kernel.lang.functions import cos, log, sqrt
from turbine.kernel.lang.operands import as_tile
from turbine.kernel.trace.op import common_dtype
from turbine.kernel.trace.tracer import IndexExpr, Tile, user_line
from turbine.kernel.trace.types import DTYPES, F32, I32, I64, dtype_name

Words = tuple[Any, Any, Any, Any]

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def random_bits(seed: Any, offset: Any) -> Tile:
    """32 random bits as u32 for each offset.

    A number depends on the seed and its offset alone, so it is the same on every backend. The
    generator is Philox 4x32-10, of whose four words this is the first, as in Triton.

    Args:
        seed: A single integer: a Python number, an argument of the kernel, or a computed one.
        offset: A tile of integers, such as `i * BLOCK + tkl.arange(BLOCK)`.

    Example::

        tkl.random_bits(0, tkl.arange(2))  # [1713891541 4175744164]
    """
    return _tile(_words(seed, offset, "random_bits")[0]).to(DTYPES["u32"])


def random_bits4(seed: Any, offset: Any) -> tuple[Tile, Tile, Tile, Tile]:
    """128 random bits for each offset, as four tiles of u32.

    The first tile is that of `tkl.random_bits`, and so are the arguments.

    Example::

        first, second, third, fourth = tkl.random_bits4(0, tkl.arange(2))
        second  # [3781805453 1555169499]
    """
    one, two, three, four = (
        word.to(DTYPES["u32"]) for word in _words(seed, offset, "random_bits4")
    )
    return one, two, three, four


def rand(seed: Any, offset: Any) -> Tile:
    """Uniform random f32 from 0 to below 1 for each offset.

    Arguments are those of `tkl.random_bits`, whose bits are scaled: as i32, those of negative
    numbers flipped, times 4.6566127342e-10, a little less than 2^-31.

    Example::

        tkl.rand(0, tkl.arange(3))  # [0.798093 0.0555176 0.0388988]
    """
    return to_uniform(_words(seed, offset, "rand")[0])


def randn(seed: Any, offset: Any) -> Tile:
    """Standard normal random f32 for each offset.

    Arguments are those of `tkl.random_bits`. Two uniform numbers u and v, made as by `tkl.rand`
    from the first two words of the generator, give sqrt(-2 log(max(u, 1e-7))) * cos(2 pi v), the
    Box-Muller transform.

    Example::

        tkl.randn(0, tkl.arange(3))  # [0.0465515 -0.388361 -1.63795]
    """
    words = _words(seed, offset, "randn")
    radius = sqrt(-2.0 * log(maximum(to_uniform(words[0]), 1.0e-7)))
    return _tile(radius * cos(2.0 * math.pi * to_uniform(words[1])))


def randint(seed: Any, offset: Any, low: Any, high: Any) -> Tile:
    """Random i64 from low to below high for each offset.

    The other arguments are those of `tkl.random_bits`. high - low is at most 2^31. The number is
    low + (bits * (high - low) >> 32), so the probability of a number is off by a share of (high -
    low) / 2^32 at most.

    Example::

        tkl.randint(0, tkl.arange(5), 1, 7)  # [3 6 1 5 6]
    """
    if isinstance(low, int) and isinstance(high, int) and not 0 < high - low <= 2**31:
        raise errors.KernelError(
            f"tkl.randint from {low} to below {high}",
            where=user_line(),
            hint="high - low must be from 1 to 2**31",
        )
    first, end = as_tile(low, I64, "randint"), as_tile(high, I64, "randint")
    return _tile(first + ((_words(seed, offset, "randint")[0] * (end - first)) >> 32))


def philox(counter: Words, key: tuple[Any, Any]) -> Words:
    """Philox 4x32-10: four words of i64 from a counter and a key."""
    for step in range(_ROUNDS):
        if step:
            key = (key[0] + _KEY_STEPS[0]) & _WORD, (key[1] + _KEY_STEPS[1]) & _WORD
        counter = _round(counter, key)
    return counter


def _round(counter: Words, key: tuple[Any, Any]) -> Words:
    first, second = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
    # The products may wrap around to negative numbers; the mask removes the shifted sign.
    return (
        ((second >> 32) & _WORD) ^ counter[1] ^ key[0],
        second & _WORD,
        ((first >> 32) & _WORD) ^ counter[3] ^ key[1],
        first & _WORD,
    )


def _words(seed: Any, offset: Any, what: str) -> Words:
    """The random words of each offset: see Note [Random numbers]."""
    dtype = common_dtype([offset], what)
    if dtype.kind not in ("int", "uint"):
        raise errors.KernelError(
            f"tkl.{what}: the offset has dtype {dtype_name(dtype)}",
            where=user_line(),
            hint="pass a tile of integers, such as i * BLOCK + tkl.arange(BLOCK)",
        )
    places = as_tile(offset, I64, what)
    high = (places >> 32) & _WORD if dtype.bits == 64 else 0
    return philox((places & _WORD, high, 0, 0), _key(seed, what))


def _key(seed: Any, what: str) -> tuple[Any, Any]:
    if isinstance(seed, int) and not isinstance(seed, bool):
        return seed & _WORD, (seed >> 32) & _WORD
    is_scalar = isinstance(seed, IndexExpr) or (isinstance(seed, Tile) and not seed.type.rank)
    if not is_scalar or common_dtype([seed], what).kind not in ("int", "uint"):
        raise errors.KernelError(
            f"tkl.{what}: the seed is {seed!r}",
            where=user_line(),
            hint="pass a single integer: a number, an argument of type tkl.i64, or a computed one",
        )
    wide = as_tile(seed, I64, what)
    return wide & _WORD, (wide >> 32) & _WORD


def to_uniform(word: Tile) -> Tile:
    """Convert a 32-bit word to an f32 in [0, 1)."""
    folded = where(word > 0x7FFFFFFF, _WORD - word, word)
    return _tile(folded.to(I32).to(F32) * 4.6566127342e-10)


def _tile(value: Any) -> Tile:
    assert isinstance(value, Tile)
    return value
