"""The seed of a test run, derived from the commit.

A run of the same commit sees the same slices and random programs, the next commit sees others.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Drawn = Callable[[Iterable[Any], int], list[Any]]  # the fixture `drawn`

DIGITS = 8
FALLBACK = "0" * DIGITS  # without git or its history, as in an sdist


def commit_seed(folder: Path = Path(__file__).parent) -> int:
    """The first digits of the hash of the commit that is checked out in a folder."""
    # A checkout that belongs to another user is read all the same, as containers of CI have them.
    command = ["git", "-c", "safe.directory=*", "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return parse_seed(FALLBACK)
    return parse_seed(answer.stdout[:DIGITS])


def parse_seed(digits: str) -> int:
    """The number that hexadecimal digits stand for, as `--seed` takes them."""
    return int(digits, 16)


def draw_slice(name: str, items: Sequence[T], count: int, seed: int) -> list[T]:
    """So many items, in their order; sweeps of other names draw others."""
    places = random.Random(f"{seed:x} {name}").sample(range(len(items)), min(count, len(items)))
    return [items[place] for place in sorted(places)]
