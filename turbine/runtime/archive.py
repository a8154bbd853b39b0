"""Archive files of weights: a path in, the bytes of each parameter by its name out.

IREE's own reader follows offsets out of the file if the file is damaged, and ends the process.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from turbine import errors

Entries = dict[str, memoryview]


@dataclass(frozen=True)
class Archive:
    """A mapped archive: what the file holds now, whatever becomes of its name."""

    path: Path
    entries: Entries

    def check_sizes(self, lengths: Mapping[str, int]) -> None:
        """Raise unless the archive holds at least the named parameters."""
        missing = sorted(set(lengths) - set(self.entries))
        if missing:
            raise errors.ParameterError(
                f"the archive lacks {len(missing)} parameters: {', '.join(missing)}",
                where=str(self.path),
            )
        found = {key: len(self.entries[key]) for key in lengths}
        wrong = [
            f"{k} ({found[k]} bytes, expected {n})" for k, n in lengths.items() if found[k] != n
        ]
        if wrong:
            raise errors.ParameterError(
                f"the archive holds parameters of another size: {', '.join(wrong)}",
                where=str(self.path),
            )

    def check_bytes(self, checksums: Mapping[str, int]) -> None:
        """Raise unless the named parameters have the bytes they were saved with."""
        wrong = [key for key, crc in checksums.items() if zlib.crc32(self.entries[key]) != crc]
        if wrong:
            raise errors.ParameterError(
                f"the archive is damaged, or was made for another model: {', '.join(wrong)}",
                where=str(self.path),
                hint="save it again; load(weights=...) takes other weights on purpose",
            )


def open_archive(path: Path) -> Archive:
    """Map an .irpa or .safetensors file."""
    if path.suffix not in READERS:
        raise errors.ParameterError(
            errors.unknown("archive type", path.suffix, READERS),
            hint="iree-convert-parameters turns other types into .irpa",
        )
    if not path.is_file():
        raise errors.ParameterError(f"no archive at {path}")
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE))
        return Archive(path, dict(READERS[path.suffix](data)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise errors.ParameterError(f"cannot read the archive: {error}", where=str(path)) from error


_IRPA = b"IRPA"
_DATA_ENTRY = 2
# Magic, version, header size, offset of the next header, flags; number of entries; then where
# the entries, their names and their data lie.
_HEADER = struct.Struct("<4sHHQQQ7Q")
# Size, type, flags, where its name and its metadata lie, alignment, where its data lies.
_ENTRY = struct.Struct("<QIQ2Q2QQ2Q")
_ENTRY_ALIGNMENT = 16


def _irpa(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Entries that are data; those that stand for a repeated value or another file are not."""
    base, next_header = 0, -1
    while next_header:
        magic, major, minor, _, next_header, _, count, *places = _HEADER.unpack_from(data, base)
        if (magic, major, minor) != (_IRPA, 0, 0):
            raise ValueError(f"not an IRPA file of version 0.0: {magic!r} {major}.{minor}")
        table, names, storage = (
            _part(data, base + start, length)
            for start, length in zip(places[::2], places[1::2], strict=True)
        )
        position = 0
        for _ in range(count):
            size, kind, _, name, length, _, _, _, *place = _ENTRY.unpack_from(table, position)
            if kind == _DATA_ENTRY:
                yield str(_part(names, name, length), "utf-8"), _part(storage, *place)
            position += max(-(-size // _ENTRY_ALIGNMENT) * _ENTRY_ALIGNMENT, _ENTRY_ALIGNMENT)
        base += next_header


def _safetensors(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    (length,) = struct.unpack_from("<Q", data)
    start = 8 + length
    for name, entry in json.loads(bytes(_part(data, 8, length))).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            yield name, _part(data, start + first, last - first)


def _part(data: memoryview, start: int, length: int) -> memoryview:
    if start < 0 or length < 0 or start + length > len(data):
        raise ValueError(f"bytes {start} to {start + length} of {len(data)} are not there")
    return data[start : start + length]


READERS: dict[str, Callable[[memoryview], Iterator[tuple[str, memoryview]]]] = {
    ".irpa": _irpa,
    ".safetensors": _safetensors,
}
