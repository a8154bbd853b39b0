"""Philox 4x32-10 in plain Python, and its uniform numbers."""

from __future__ import annotations

import numpy as np

WORD = 2**32 - 1


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 in whole numbers, as its authors define it."""
    for _ in range(10):
        high, low = divmod(0xD2511F53 * counter[0], 2**32)
        upper, lower = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [upper ^ counter[1] ^ key[0], lower, high ^ counter[3] ^ key[1], low]
        key = [(key[0] + 0x9E3779B9) & WORD, (key[1] + 0xBB67AE85) & WORD]
    return counter


def words(seed: int, offset: int) -> list[int]:
    return philox([offset & WORD, offset >> 32 & WORD, 0, 0], [seed & WORD, seed >> 32 & WORD])


def uniform(word: int) -> np.float32:
    signed = word - 2**32 if word >= 2**31 else word
    return np.float32(-signed - 1 if signed < 0 else signed) * np.float32(4.6566127342e-10)
