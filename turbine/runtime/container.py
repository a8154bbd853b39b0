"""The artifact file: a header, a manifest, and page-aligned sections that can be mapped.

Layout: magic, format version, manifest length, manifest digest; the manifest as JSON; then
the sections it lists. Offsets are from the start of the file.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy

from turbine import errors

MAGIC = b"TURBINE\n"
FORMAT = 1
PAGE = 4096
_HEADER = struct.Struct("<8sIQ32s")


@dataclass(frozen=True)
class Section:
    """Where some named bytes lie in the file, and their checksum."""

    name: str
    offset: int
    length: int
    crc32: int


@dataclass(frozen=True)
class Container:
    """An opened artifact: its manifest and its bytes, mapped and not copied."""

    manifest: dict[str, Any]
    sections: dict[str, Section]
    data: memoryview
    source: str

    def bytes_of(self, name: str) -> memoryview:
        """The bytes of a section."""
        section = self.sections[name]
        return self.data[section.offset : section.offset + section.length]

    @property
    def span(self) -> tuple[int, int]:
        """The addresses the file is mapped to."""
        start = numpy.frombuffer(self.data, numpy.uint8).ctypes.data
        return start, start + len(self.data)

    def check(self, name: str) -> None:
        """Raise unless a section has the bytes it was written with."""
        if zlib.crc32(self.bytes_of(name)) != self.sections[name].crc32:
            raise errors.ArtifactError(
                f"{name} is damaged: its checksum does not match", where=self.source, hint=_AGAIN
            )


_AGAIN = "copy or compile the file again"


def write(file: IO[bytes], manifest: dict[str, Any], sections: Sequence[tuple[str, Any]]) -> None:
    """Write a whole container to an open file."""
    blobs = [(name, memoryview(data).cast("B") if len(data) else b"") for name, data in sections]
    checksums = [zlib.crc32(blob) for _, blob in blobs]
    # Offsets depend on the manifest's length, so they are counted from where sections begin.
    lengths = [len(blob) for _, blob in blobs]
    starts = _starts(lengths)
    table = [
        asdict(Section(name, start, length, crc))
        for (name, _), start, length, crc in zip(blobs, starts, lengths, checksums, strict=True)
    ]
    text = json.dumps({**manifest, "sections": table}).encode()
    file.write(_HEADER.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest()))
    file.write(text)
    base = _aligned(_HEADER.size + len(text))
    for (_, blob), start in zip(blobs, starts, strict=True):
        file.seek(base + start)
        file.write(blob)
    file.truncate(max(file.tell(), base))


def save(path: Path, manifest: dict[str, Any], sections: Sequence[tuple[str, Any]]) -> None:
    """Write a container to a path; an interrupted save leaves the old file whole."""
    with replacing(path) as file:
        write(file, manifest, sections)


class replacing:  # noqa: N801 - reads as a verb in a with statement
    """A file that takes the place of `path` only when the block ends well."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> IO[bytes]:
        folder = self.path.parent
        if not folder.is_dir():
            raise errors.ArtifactError(f"no folder {folder} to save {self.path.name} in")
        self.file = tempfile.NamedTemporaryFile(
            dir=folder, prefix=f".{self.path.name}.", delete=False
        )
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
                os.chmod(self.file.name, 0o666 & ~_umask())
                os.replace(self.file.name, self.path)
        finally:
            self.file.close()
            Path(self.file.name).unlink(missing_ok=True)


def anonymous(manifest: dict[str, Any], sections: Sequence[tuple[str, Any]]) -> Container:
    """A container in memory only."""
    with tempfile.TemporaryFile() as file:
        write(file, manifest, sections)
        file.flush()
        return _map(file, "<memory>")


def open_file(path: Path) -> Container:
    """Map a file and read its manifest, or say what is wrong with it."""
    try:
        with path.open("rb") as file:
            return _map(file, str(path))
    except OSError as error:
        raise errors.ArtifactError(f"cannot open {path}: {error.strerror}") from error


def _map(file: IO[bytes], source: str) -> Container:
    size = os.fstat(file.fileno()).st_size
    if size < _HEADER.size:
        raise errors.ArtifactError("not a turbine artifact", where=source)
    # A private mapping: nothing the program does can reach the file.
    data = memoryview(mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE))
    magic, version, length, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise errors.ArtifactError("not a turbine artifact", where=source)
    if version != FORMAT:
        raise errors.ArtifactVersionError(
            f"the artifact has format {version}, this turbine reads format {FORMAT}",
            where=source,
            hint="compile the model again, or install the version that wrote it",
        )
    text = data[_HEADER.size : _HEADER.size + length]
    if hashlib.sha256(text).digest() != digest:
        raise errors.ArtifactError("the manifest is damaged", where=source, hint=_AGAIN)
    manifest = json.loads(bytes(text))
    sections = _sections(manifest.pop("sections"), _aligned(_HEADER.size + length))
    end = max((s.offset + s.length for s in sections.values()), default=0)
    if end > size:
        raise errors.ArtifactError(
            f"the file is cut off: {size} bytes of {end}", where=source, hint=_AGAIN
        )
    return Container(manifest, sections, data, source)


def _sections(table: Iterable[dict[str, Any]], base: int) -> dict[str, Section]:
    return {
        row["name"]: Section(row["name"], base + row["offset"], row["length"], row["crc32"])
        for row in table
    }


def _starts(lengths: Sequence[int]) -> list[int]:
    starts, position = [], 0
    for length in lengths:
        starts.append(position)
        position = _aligned(position + length)
    return starts


def _aligned(position: int) -> int:
    return -(-position // PAGE) * PAGE


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
