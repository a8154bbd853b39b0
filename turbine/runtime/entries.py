"""Entries of archives, weights that programs declare, and whether they match."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turbine import dtypes


class Damage(ValueError):
    """An archive is invalid; the message says why."""


@dataclass(frozen=True)
class Entry:
    """One parameter of an archive: its bytes and type."""

    key: str
    data: memoryview
    dtype: str | None = None  # None if the file has none or an unknown one
    shape: tuple[int, ...] | None = None
    blocks: str | None = None  # the block format of quantized elements
    convertible: bool = False  # to other floating point types

    @property
    def text(self) -> str:
        """The entry's type as a user would write it, or its size."""
        if self.shape is None:
            return f"{len(self.data)} bytes"
        return type_text(self.blocks or self.dtype, self.shape)


@dataclass(frozen=True)
class Declared:
    """A weight that a program expects under `key` in the archive of a scope."""

    name: str  # in the model's state dict
    scope: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    length: int
    crc32: int | None = None  # of its bytes, if an archive has them
    # Whether state dicts have it. If not, the artifact's file does, for archives that lack it.
    persistent: bool = True

    @staticmethod
    def from_json(row: dict[str, Any]) -> Declared:
        """The declaration in a row of a manifest."""
        return Declared(**{**row, "shape": tuple(row["shape"])})

    def accepts(self, entry: Entry) -> bool:
        """Whether the entry has this type or can be converted to it."""
        if entry.shape is None:
            return len(entry.data) == self.length
        is_readable = (
            entry.dtype == self.dtype
            or entry.dtype in WIDENED.get(self.dtype, ())
            or (entry.convertible and self.dtype in CONVERSIONS)
        )
        return is_readable and entry.shape == self.shape

    def describe_mismatch(self, entry: Entry) -> str:
        """The type of the entry and the declared type, as text."""
        wanted = type_text(self.dtype, self.shape)
        return f"{entry.text}, expected {f'{self.length} bytes' if entry.shape is None else wanted}"


# Dtypes whose numbers a wider one has too: they are converted in any archive.
WIDENED = {
    "float32": ("float16", "bfloat16"),
    "float64": ("float16", "bfloat16", "float32"),
}
# Dtypes that convertible entries are converted to.
CONVERSIONS = ("float16", "bfloat16", "float32")


def type_text(dtype: str | None, shape: Sequence[int]) -> str:
    """A type as in a signature: "float32[2, 3]"."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def plain(key: str, data: memoryview, dtype: str | None, shape: Any) -> Entry:
    """An entry with a dtype of the table, or of bytes if the dtype is unknown."""
    if dtype not in dtypes.BY_NAME:
        return Entry(key, data)
    sizes = check_shape(key, shape)
    expected = math.prod(sizes) * dtypes.from_torch_name(dtype).itemsize
    if len(data) != expected:
        text = type_text(dtype, sizes)
        raise Damage(f"{key} has {len(data)} bytes, and {text} takes {expected}")
    return Entry(key, data, dtype, sizes)


def check_shape(key: str, shape: Any) -> tuple[int, ...]:
    """The shape as a tuple of sizes; raises if it is invalid."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise Damage(f"{key} has the shape {shape}")
    return tuple(shape)


def part(data: memoryview, start: int, length: int) -> memoryview:
    """A range of bytes; raises if it is out of bounds."""
    if start < 0 or length < 0 or start + length > len(data):
        raise Damage(f"bytes {start} to {start + length} of {len(data)} are not there")
    return data[start : start + length]


def unpack(layout: struct.Struct, data: memoryview, start: int) -> tuple[Any, ...]:
    """The fields of a struct; raises if it is out of bounds."""
    return layout.unpack(part(data, start, layout.size))
