"""Files of the safetensors package, read and written without it: entries in and out."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import IO, Any

from turbine.runtime.entries import Damage, Entry, part, plain, unpack

_LENGTH = struct.Struct("<Q")
DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}


def read(data: memoryview) -> Iterator[Entry]:
    """Every tensor of the file."""
    (length,) = unpack(_LENGTH, data, 0)
    header = json.loads(bytes(part(data, _LENGTH.size, length)), object_pairs_hook=_unique)
    storage = data[_LENGTH.size + length :]
    for key, facts in header.items():
        if key != "__metadata__":
            first, last = facts["data_offsets"]
            found = part(storage, first, last - first)
            yield plain(key, found, DTYPES.get(facts["dtype"]), facts["shape"])


def write(file: IO[bytes], entries: Iterable[Entry]) -> None:
    """Write a file with these tensors, in order of their names."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    header, position = {}, 0
    for entry in ordered:
        end = position + entry.data.nbytes
        header[entry.key] = {
            "dtype": _NAMES[entry.dtype],
            "shape": [*(entry.shape or ())],
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(_LENGTH.pack(len(text)))
    file.write(text)
    for entry in ordered:
        file.write(entry.data.cast("B") if entry.data.nbytes else b"")


_ALIGNMENT = 8
_NAMES: dict[str | None, str] = {name: kind for kind, name in DTYPES.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Damage("the header has a name twice")
    return found
