"""Files of the safetensors package: a mapped file in, entries out, without the package."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Damage("the header has a name twice")
    return found
