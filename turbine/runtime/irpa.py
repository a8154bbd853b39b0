"""IREE's parameter archives, .irpa: a mapped file in, entries out, and back.

IREE's own reader follows offsets out of the file if the file is damaged, and ends the process.
Its writer takes no file that is already open.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy

from turbine import dtypes
from turbine.runtime.entries import Entry, part, plain

_MAGIC = b"IRPA"
_DATA_ENTRY = 2
# Magic, version, header size, offset of the next header, flags; number of entries; then where
# the entries, their names and their data lie.
_HEADER = struct.Struct("<4sHHQQQ7Q")
# Size, type, flags, where its name and its metadata lie, alignment, where its data lies.
_ENTRY = struct.Struct("<QIQ2Q2QQ2Q")
_ENTRY_ALIGNMENT = 16
_DATA_ALIGNMENT = 64
# Begins the metadata of an entry that was a tensor; JSON follows.
_TENSOR = b"PYTORCH:"


def read(data: memoryview) -> Iterator[Entry]:
    """Entries that are data; those that stand for a repeated value or another file are not."""
    base, next_header = 0, -1
    while next_header:
        magic, major, minor, _, next_header, _, count, *places = _HEADER.unpack_from(data, base)
        if (magic, major, minor) != (_MAGIC, 0, 0):
            raise ValueError(f"not an IRPA file of version 0.0: {magic!r} {major}.{minor}")
        table, names, storage = (
            part(data, base + start, length)
            for start, length in zip(places[::2], places[1::2], strict=True)
        )
        position = 0
        for _ in range(count):
            size, kind, _, *name, note, length, _, first, last = _ENTRY.unpack_from(table, position)
            if kind == _DATA_ENTRY:
                key = str(part(names, *name), "utf-8")
                yield _entry(key, part(storage, first, last), bytes(part(names, note, length)))
            position += max(_aligned(size, _ENTRY_ALIGNMENT), _ENTRY_ALIGNMENT)
        base += next_header


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
            _ENTRY.size, _DATA_ENTRY, 0, *text, _DATA_ALIGNMENT, place, len(entry.data)
        )
        table += row.ljust(_aligned(_ENTRY.size, _ENTRY_ALIGNMENT), b"\0")
        texts += name + note
    first = _aligned(_HEADER.size, _ENTRY_ALIGNMENT)
    names = first + len(table)
    storage = _aligned(names + len(texts), _DATA_ALIGNMENT)
    parts = (first, len(table), names, len(texts), storage, length)
    header = _HEADER.pack(_MAGIC, 0, 0, _HEADER.size, 0, 0, len(entries), *parts)
    file.write(header.ljust(first, b"\0") + table + texts)
    for entry, place in zip(entries, places, strict=True):
        file.seek(storage + place)
        file.write(entry.data)
    file.truncate(storage + length)


def metadata(entry: Entry) -> str:
    """What an archive says about a tensor; nothing about other bytes."""
    if entry.dtype is None or entry.shape is None:
        return ""
    row = dtypes.named(entry.dtype)
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
    """Where each blob starts, and where the last one ends."""
    known: dict[tuple[int, int], int] = {}
    end = 0
    for blob in blobs:
        if _identity(blob) not in known:
            start = _aligned(end, _DATA_ALIGNMENT)
            known[_identity(blob)] = start
            end = start + len(blob)
    return [known[_identity(blob)] for blob in blobs], end


def _identity(blob: memoryview) -> tuple[int, int]:
    return numpy.asarray(blob).ctypes.data if len(blob) else 0, len(blob)


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
