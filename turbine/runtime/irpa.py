"""IREE's parameter archives, .irpa: a mapped file in, entries out, and back.

IREE's reader follows offsets out of a damaged file, which ends the process. Its writer takes no
open file.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy

from turbine import dtypes
from turbine.runtime.entries import Damage, Entry, part, plain, unpack

_MAGIC = b"IRPA"
_SPLAT_ENTRY, _DATA_ENTRY = 1, 2
# Magic, version, header size, offset of the next header, flags; number of entries; then offset and
# length of the entries, their names and their data.
_HEADER = struct.Struct("<4sHHQQQ7Q")
# Size, type, flags, offset and length of name and metadata, alignment.
_ENTRY = struct.Struct("<QIQ2Q2QQ")
# Then for data: offset and length; for a splat: length, the pattern, and its length.
_DATA, _SPLAT = struct.Struct("<2Q"), struct.Struct("<Q16sB")
_ENTRY_ALIGNMENT = 16
_DATA_ALIGNMENT = 64
# Prefix of the metadata of a tensor; JSON follows.
_TENSOR = b"PYTORCH:"


def read(data: memoryview) -> Iterator[Entry]:
    """The entries that are data or splats; entries in other files are skipped."""
    base, next_header = 0, -1
    while next_header:
        magic, major, minor, _, next_header, _, count, *places = unpack(_HEADER, data, base)
        if (magic, major, minor) != (_MAGIC, 0, 0):
            raise Damage(f"not an IRPA file of version 0.0: {magic!r} {major}.{minor}")
        table, names, storage = (
            part(data, base + start, length)
            for start, length in zip(places[::2], places[1::2], strict=True)
        )
        position = 0
        for _ in range(count):
            size, kind, _, *name, note, length, _ = unpack(_ENTRY, table, position)
            row = part(table, position, size)
            if kind in (_DATA_ENTRY, _SPLAT_ENTRY):
                key = str(part(names, *name), "utf-8")
                found = _data(row, storage) if kind == _DATA_ENTRY else _splat(key, row)
                yield _entry(key, found, bytes(part(names, note, length)))
            position += max(_align(size, _ENTRY_ALIGNMENT), _ENTRY_ALIGNMENT)
        base += next_header


def _data(row: memoryview, storage: memoryview) -> memoryview:
    return part(storage, *unpack(_DATA, row, _ENTRY.size))


def _splat(key: str, row: memoryview) -> memoryview:
    """The repeated value, in new memory."""
    length, pattern, width = unpack(_SPLAT, row, _ENTRY.size)
    if width not in _WIDTHS or length % width:
        raise Damage(f"{key} repeats {width} bytes to a length of {length}")
    if not length:
        return memoryview(bytearray())
    memory = mmap.mmap(-1, length)
    # New memory is zero, and is not committed until it is written.
    if any(pattern[:width]):
        numpy.frombuffer(memory, f"V{width}")[:] = numpy.frombuffer(pattern[:width], f"V{width}")
    return memoryview(memory)


_WIDTHS = (1, 2, 4, 8, 16)


def _entry(key: str, data: memoryview, metadata: bytes) -> Entry:
    if not metadata.startswith(_TENSOR):
        return Entry(key, data)
    facts = json.loads(metadata.removeprefix(_TENSOR))
    if facts["type"] != "Tensor":
        return Entry(key, data)
    return plain(key, data, facts["dtype"], facts["shape"])


def write(file: IO[bytes], entries: Sequence[Entry]) -> None:
    """Write a whole archive to an open file; data that several entries share is written once."""
    places, length = _places([entry.data for entry in entries])
    table, texts = bytearray(), bytearray()
    for entry, place in zip(entries, places, strict=True):
        name, note = entry.key.encode(), metadata(entry).encode()
        text = (len(texts), len(name), len(texts) + len(name), len(note))
        row = _ENTRY.pack(
            _ENTRY.size + _DATA.size, _DATA_ENTRY, 0, *text, _DATA_ALIGNMENT
        ) + _DATA.pack(place, len(entry.data))
        table += row.ljust(_align(len(row), _ENTRY_ALIGNMENT), b"\0")
        texts += name + note
    first = _align(_HEADER.size, _ENTRY_ALIGNMENT)
    names = first + len(table)
    storage = _align(names + len(texts), _DATA_ALIGNMENT)
    parts = (first, len(table), names, len(texts), storage, length)
    header = _HEADER.pack(_MAGIC, 0, 0, _HEADER.size, 0, 0, len(entries), *parts)
    file.write(header.ljust(first, b"\0") + table + texts)
    for entry, place in zip(entries, places, strict=True):
        file.seek(storage + place)
        file.write(entry.data)
    file.truncate(storage + length)


def metadata(entry: Entry) -> str:
    """The metadata of a tensor; empty for other bytes."""
    if entry.dtype is None or entry.shape is None:
        return ""
    row = dtypes.from_torch_name(entry.dtype)
    facts: dict[str, Any] = {
        "type": "Tensor",
        "dtype": row.name,
        "shape": list(entry.shape),
        "dtype_desc": {
            "class_name": "dtype",
            "is_complex": row.kind == "complex",
            "is_floating_point": row.kind == "float",
            "is_signed": row.kind not in ("bool", "uint") and row.name != "float8_e8m0fnu",
            "itemsize": row.itemsize,
        },
    }
    return _TENSOR.decode() + json.dumps(facts)


def _places(blobs: Sequence[memoryview]) -> tuple[list[int], int]:
    """The offset of each blob, and the end of the last one."""
    known: dict[tuple[int, int], int] = {}
    end = 0
    for blob in blobs:
        if _identity(blob) not in known:
            start = _align(end, _DATA_ALIGNMENT)
            known[_identity(blob)] = start
            end = start + len(blob)
    return [known[_identity(blob)] for blob in blobs], end


def _identity(blob: memoryview) -> tuple[int, int]:
    return numpy.asarray(blob).ctypes.data if len(blob) else 0, len(blob)


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
