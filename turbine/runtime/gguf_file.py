"""GGUF files: a mapped file in, entries out; quantized blocks become floating point numbers.

The gguf package decodes the block formats. Its reader is not used: it makes several arrays for
every word of a vocabulary, which takes too much memory.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy

from turbine import dtypes, errors
from turbine.runtime.entries import CONVERSIONS, Damage, Entry, check_shape, part, plain, unpack

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_HEADER = struct.Struct("<4sIQQ")
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")
# Size in bytes of a metadata value, by type number.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_ALIGNMENT_KEY = "general.alignment"
_ALIGNMENT = 32
_MOST_AXES = 8
# Dtypes of tensors of plain elements, by type number; other types are blocks.
PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}


@dataclass
class _Cursor:
    """A position in the file that advances with each read."""

    data: memoryview
    position: int = 0

    def take(self, layout: struct.Struct) -> Any:
        values = unpack(layout, self.data, self.position)
        self.position += layout.size
        return values[0] if len(values) == 1 else values

    def skip(self, length: int) -> memoryview:
        found = part(self.data, self.position, length)
        self.position += length
        return found

    def text(self) -> str:
        return str(self.skip(self.take(_LONG)), "utf-8")


def read(data: memoryview) -> Iterator[Entry]:
    """Every tensor of the file; shapes are reversed, since the file has the last axis first."""
    cursor = _Cursor(data)
    magic, version, tensors, pairs = cursor.take(_HEADER)
    if magic != _MAGIC or version not in _VERSIONS:
        raise Damage(f"not a GGUF file of version 2 or 3: {magic!r} {version}")
    alignment = _alignment(cursor, pairs)
    rows = [_row(cursor) for _ in range(tensors)]
    start = -(-cursor.position // alignment) * alignment
    for key, shape, kind, offset in rows:
        yield _entry(key, shape, kind, data, start + offset)


def _alignment(cursor: _Cursor, pairs: int) -> int:
    """Skip the metadata, and return the alignment."""
    seen, alignment = set(), _ALIGNMENT
    for _ in range(pairs):
        key, kind = cursor.text(), cursor.take(_WORD)
        if key in seen:
            raise Damage(f"the metadata has {key!r} twice")
        seen.add(key)
        value = _skip_value(cursor, kind)
        if key == _ALIGNMENT_KEY and kind == _UINT32:
            (alignment,) = _WORD.unpack(value)
    if alignment == 0:
        raise Damage("the alignment is 0")
    return alignment


def _skip_value(cursor: _Cursor, kind: int) -> memoryview:
    if kind == _STRING:
        return cursor.skip(cursor.take(_LONG))
    if kind != _ARRAY:
        return cursor.skip(_size(kind))
    element, count = cursor.take(_WORD), cursor.take(_LONG)
    if element != _STRING:
        return cursor.skip(_size(element) * count)
    for _ in range(count):
        cursor.skip(cursor.take(_LONG))
    return cursor.skip(0)


def _size(kind: int) -> int:
    if kind not in _SIZES:
        raise Damage(f"the metadata has a value of unknown type {kind}")
    return _SIZES[kind]


def _row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    key, axes = cursor.text(), cursor.take(_WORD)
    if axes > _MOST_AXES:
        raise Damage(f"{key} has {axes} axes")
    sizes = [cursor.take(_LONG) for _ in range(axes)]
    return key, check_shape(key, sizes[::-1]), cursor.take(_WORD), cursor.take(_LONG)


def _entry(key: str, shape: tuple[int, ...], kind: int, data: memoryview, start: int) -> Entry:
    if kind in PLAIN:
        length = math.prod(shape) * dtypes.from_torch_name(PLAIN[kind]).itemsize
        entry = plain(key, part(data, start, length), PLAIN[kind], shape)
        return replace(entry, convertible=entry.dtype in CONVERSIONS)
    name, elements, size = _block(kind)
    if not shape or shape[-1] % elements:
        raise Damage(f"{key} of shape {shape} is not whole blocks of {elements}")
    length = math.prod(shape) // elements * size
    return Entry(key, part(data, start, length), None, shape, blocks=name, convertible=True)


def _block(kind: int) -> tuple[str, int, int]:
    """The name of a block format, and its elements and bytes per block."""
    package = _package("to know the blocks of quantized tensors")
    if kind not in set(package.GGMLQuantizationType):
        raise Damage(f"it has a tensor of unknown type {kind}")
    known = package.GGMLQuantizationType(kind)
    return known.name, *package.GGML_QUANT_SIZES[known]


def decode(entry: Entry) -> numpy.ndarray[Any, Any]:
    """The numbers of an entry of quantized blocks."""
    package = _package("to read quantized tensors")
    kind = package.GGMLQuantizationType[entry.blocks]
    _, size = package.GGML_QUANT_SIZES[kind]
    blocks = numpy.asarray(entry.data).reshape(-1, size)
    try:
        numbers: numpy.ndarray[Any, Any] = package.dequantize(blocks, kind)
    except NotImplementedError as error:
        raise errors.ParameterError(
            f"{entry.key} has blocks of type {entry.blocks}, which the gguf package cannot decode",
            hint="use a file with another quantization, or a newer gguf package",
        ) from error
    return numbers


def _package(why: str) -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise errors.MissingExtra(
            f"the gguf package is needed {why}", hint="pip install turbine[gguf]"
        ) from error
    return gguf
