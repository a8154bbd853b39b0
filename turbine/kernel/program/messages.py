"""Messages of running kernels: prints as text, failed assertions as errors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import Expr, Symbol
from turbine.dtypes import Dtype
from turbine.kernel.trace.types import TileType

# Words of 64 bits that the prints of one launch may fill.
LOG_WORDS = 1 << 16
# A failed assertion is a constant minus the program's number: the maximum is the first.
ALARM = 1 << 62
# Assertions that one kernel may have.
MOST_ALARMS = 256
# After them, the first bad index of each workgroup: 1 + the alarm's index, program, index.
RECORD_WORDS = 3


@dataclass(frozen=True)
class Site:
    """A print in a kernel: texts, and the types of tiles."""

    line: str | None
    label: str | None
    parts: tuple[str | TileType, ...]


@dataclass(frozen=True)
class Alarm:
    """An assertion in a kernel, or a check of the indices of a buffer's axis."""

    line: str | None
    message: str
    indexed: Indexed | None = None


@dataclass(frozen=True)
class Indexed:
    """The axis of a buffer that is indexed."""

    buffer: str
    axis: int
    size: Expr


@dataclass(frozen=True)
class MessageTable:
    """The prints and assertions of compiled code, by which its messages are read."""

    sites: tuple[Site, ...] = ()
    alarms: tuple[Alarm, ...] = ()

    def deliver(
        self, given: Sequence[Tensor], grid: Sequence[Expr], sizes: Mapping[Symbol, int]
    ) -> None:
        """Print what was logged, then raise for an assertion that failed."""
        if self.sites:
            _show(self.sites, given[-1].tolist(), _counts(grid, sizes), sizes)
        if self.alarms and any(given[0][: len(self.alarms)].tolist()):
            _raise(self.alarms, given[0].tolist(), _counts(grid, sizes), sizes)


def _counts(grid: Sequence[Expr], sizes: Mapping[Symbol, int]) -> list[int]:
    return [count.evaluate(sizes) for count in grid]


def _raise(
    alarms: Sequence[Alarm],
    words: Sequence[int],
    grid: Sequence[int],
    sizes: Mapping[Symbol, int],
) -> None:
    """Raise for the first program with a failed assertion."""
    number = ALARM - max(words[: len(alarms)])
    ids = program_ids(number, grid)
    first = alarms[words.index(ALARM - number)]
    if first.indexed is None:
        raise assertion_error(first.message, ids, "", first.line)
    for start in range(MOST_ALARMS, len(words), RECORD_WORDS):
        place, program, value = words[start : start + RECORD_WORDS]
        if place and program == number:
            alarm = alarms[place - 1]
            assert alarm.indexed is not None
            size = alarm.indexed.size.evaluate(sizes)
            raise bad_index(alarm.indexed, size, value, ids, alarm.line)
    raise AssertionError("a bad index was seen and not recorded")


def bad_index(
    indexed: Indexed, size: int, value: int, ids: Sequence[int], line: str | None
) -> errors.KernelError:
    """The error for an index out of range."""
    wraps = "; negative ones do not count from the end" if value < 0 else ""
    range_text = f"from 0 to {size - 1}{wraps}" if size else "of a tensor that has elements"
    return errors.KernelError(
        f"index {value} is out of range for axis {indexed.axis} of {indexed.buffer}, which has "
        f"size {size} (program {tuple(ids)})",
        where=line,
        hint=f"pass indices {range_text}; mask= leaves lanes out, and check=False all that lie "
        "outside",
    )


def assertion_error(
    message: str, ids: Sequence[int], lane: str, line: str | None
) -> errors.KernelError:
    """The error for a failed assertion."""
    where = f"program {tuple(ids)}{lane}"
    return errors.KernelError(f"an assertion fails: {message} ({where})", where=line)


def program_ids(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    """The position of a program in the grid."""
    ids = []
    for size in reversed(grid):
        ids.append(number % size)
        number //= size
    return tuple(reversed(ids))


def _show(
    sites: Sequence[Site], words: Sequence[int], grid: Sequence[int], sizes: Mapping[Symbol, int]
) -> None:
    used = min(words[0], LOG_WORDS - 1)
    records: list[tuple[int, int, str]] = []
    place = 1
    while place < used + 1 and place + 2 <= LOG_WORDS and words[place]:
        site, number = sites[words[place] - 1], words[place + 1]
        texts, place = _texts(site, words, place + 2, sizes)
        records.append((number, place, line(site, program_ids(number, grid), texts)))
    for _, _, text in sorted(records):
        sys.stdout.write(text)
    if words[0] > used:
        sys.stdout.write(f"... {words[0] - used} words of prints did not fit\n")


def line(site: Site, ids: Sequence[int], texts: Sequence[str]) -> str:
    """The text of one print."""
    named = texts if site.label is None else [f"{site.label}:", *texts]
    return f"{site.line} program {tuple(ids)}: {' '.join(named)}\n"


def _texts(
    site: Site, words: Sequence[int], place: int, sizes: Mapping[Symbol, int]
) -> tuple[list[str], int]:
    texts = []
    for part in site.parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        shape = [_size(size, sizes) for size in part.shape]
        count = int(np.prod(shape, dtype=np.int64))
        pairs = np.array(words[place : place + 2 * count], dtype=np.int64).reshape(count, 2)
        numbers = _numbers(pairs[:, 1], part.dtype)
        texts.append(format_tile(numbers, pairs[:, 0].astype(bool).tolist(), shape))
        place += 2 * count
    return texts, place


def _size(size: Expr, sizes: Mapping[Symbol, int]) -> int:
    return size.evaluate(sizes)


def _numbers(words: Any, dtype: Dtype) -> list[Any]:
    if dtype.kind == "float":
        numbers: list[Any] = words.view(np.float64).tolist()
        return numbers
    listed: list[Any] = torch.from_numpy(words.copy()).to(dtype.torch).tolist()
    return listed


def format_tile(numbers: Sequence[Any], held: Sequence[bool], shape: Sequence[int]) -> str:
    """The elements of a tile; a dot for masked-off ones."""
    texts = [f"{n:.6g}" if isinstance(n, float) else str(n) for n in numbers]
    marked = [text if is_held else "." for text, is_held in zip(texts, held, strict=True)]
    table = np.array(marked, dtype=object).reshape(tuple(shape))
    return np.array2string(table, formatter={"all": str}) if table.ndim else marked[0]
