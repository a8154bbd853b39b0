"""The artifact file: a header, a manifest, and page-aligned sections that can be mapped.

Layout: magic, format version, manifest length, manifest digest; the manifest as JSON; then
the sections it lists. Offsets are from the start of the file.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import platform
import re
import secrets
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy

from turbine import errors

MAGIC = b"TURBINE\n"
FORMAT = 2
PAGE = 4096
_HEADER = struct.Struct("<8sIQ32s")


@dataclass(frozen=True)
class Section:
    """The position of named bytes in the file, and their checksum."""

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
        """The addresses of the mapping."""
        start = numpy.frombuffer(self.data, numpy.uint8).ctypes.data
        return start, start + len(self.data)

    @property
    def digest(self) -> bytes:
        """The digest of the manifest, which has the checksums of the sections."""
        digest: bytes = _HEADER.unpack_from(self.data)[-1]
        return digest

    def check(self, name: str) -> None:
        """Raise unless a section matches its checksum."""
        if zlib.crc32(self.bytes_of(name)) != self.sections[name].crc32:
            raise errors.ArtifactError(
                f"{name} is damaged: its checksum does not match", where=self.source, hint=AGAIN
            )


AGAIN = "copy or compile the file again"
_WRITTEN_BY = "give a file that `turbine compile` or ExportOutput.compile(save_to=...) wrote"


def write(file: IO[bytes], manifest: dict[str, Any], sections: Sequence[tuple[str, Any]]) -> None:
    """Write a whole container to an open file."""
    blobs = [(name, memoryview(data).cast("B") if len(data) else b"") for name, data in sections]
    checksums = [zlib.crc32(blob) for _, blob in blobs]
    # Offsets count from the first section: that depends on the length of the manifest.
    lengths = [len(blob) for _, blob in blobs]
    starts = _starts(lengths)
    table = [
        asdict(Section(name, start, length, crc))
        for (name, _), start, length, crc in zip(blobs, starts, lengths, checksums, strict=True)
    ]
    text = json.dumps({**manifest, "sections": table}).encode()
    file.write(_HEADER.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest()))
    file.write(text)
    base = _align(_HEADER.size + len(text))
    for (_, blob), start in zip(blobs, starts, strict=True):
        file.seek(base + start)
        file.write(blob)
    file.truncate(max(file.tell(), base))


def save(path: Path, manifest: dict[str, Any], sections: Sequence[tuple[str, Any]]) -> None:
    """Write a container to a path, and replace an old file atomically."""
    with replace_file(path) as file:
        write(file, manifest, sections)


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` if the block does not raise."""
    check_folder(path)
    _remove_stale(path.parent)
    draft = path.with_name(f"{_DRAFT}{os.getpid()}-{_process_space()}{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise errors.ArtifactError(
            f"cannot write {path}: {error.strerror}",
            hint="choose a file in a folder with space left that you may write to",
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    space = _process_space()
    for draft in folder.glob(f"{_DRAFT}*"):
        with suppress(OSError):
            is_old = time.time() - draft.stat().st_mtime > _STALE_SECONDS
            if is_old or _is_of_dead_process(draft.name, space):
                draft.unlink()


_DRAFT = ".turbine-"
_STALE_SECONDS = 3600.0


def _is_of_dead_process(name: str, space: str) -> bool:
    """Whether a temporary file was made here, by a process that no longer exists."""
    made = re.fullmatch(rf"{re.escape(_DRAFT)}([1-9]\d{{0,9}})-{space}[0-9a-f]{{8}}", name)
    return made is not None and not _exists(int(made[1]))


def _exists(process: int) -> bool:
    # On Windows, os.kill ends the process.
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # One of another user, or no number of a process.
    except (OSError, OverflowError):
        return True
    return True


def _process_space() -> str:
    """Eight digits for where a process id means the same process: this machine and container.

    Others may write to the same folder, over a network or from a container.
    """
    parts = [platform.node()]
    with suppress(OSError):
        parts += [_BOOT.read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


_BOOT = Path("/proc/sys/kernel/random/boot_id")


# What a file of each suffix holds, and what writes one.
_WRITERS = {
    ".turbine": "an artifact, which compile(save_to=...) and Artifact.save write",
    ".vmfb": "code for IREE's tools, which compile(save_to=...) and Artifact.save_vmfb write",
    ".mlir": "IR as text, which ExportOutput.save_mlir writes",
    ".mlirbc": "IR as bytecode, which ExportOutput.save_mlir writes",
    ".irpa": "weights, which compile(..., archive=...) writes",
    ".safetensors": "weights, which the safetensors package writes",
    ".gguf": "weights, which the gguf package writes",
    ".pt2": "a program of PyTorch, which torch.export.save writes",
    ".onnx": "a program of ONNX, which torch.onnx.export writes",
}


def check_suffix(path: Path, *valid: str) -> None:
    """Raise if a file's suffix says that it holds something else; other names are free."""
    if path.suffix in _WRITERS and path.suffix not in valid:
        raise errors.ConfigError(
            f"cannot write {path.name}: {path.suffix} is for {_WRITERS[path.suffix]}",
            hint=f"call it {path.with_suffix(valid[0]).name}",
        )


def check_folder(path: Path) -> None:
    """Raise unless the parent folder of a path exists."""
    if not path.parent.is_dir():
        raise errors.ArtifactError(
            f"no folder {path.parent} to save {path.name} in",
            hint=f"make it first: mkdir -p {path.parent}",
        )


def anonymous(manifest: dict[str, Any], sections: Sequence[tuple[str, Any]]) -> Container:
    """A container in an unnamed temporary file, which ends with the process."""
    return _unnamed(lambda file: write(file, manifest, sections), IN_MEMORY)


def from_bytes(content: bytes, source: str) -> Container:
    """A container from the bytes of a file, for errors from `source`; mapped like a file."""
    return _unnamed(lambda file: file.write(content), source)


IN_MEMORY = "<memory>"


def _unnamed(fill: Callable[[IO[bytes]], object], source: str) -> Container:
    try:
        with tempfile.TemporaryFile() as file:
            fill(file)
            file.flush()
            return _map(file, source)
    except OSError as error:
        raise errors.ArtifactError(
            f"cannot keep the artifact in {tempfile.gettempdir()}: {error.strerror}",
            hint="save it with save_to=, or set TMPDIR to a folder with more room",
        ) from error


def open_file(path: Path) -> Container:
    """Map a file and read its manifest; raises if it is damaged or no artifact."""
    try:
        with path.open("rb") as file:
            return _map(file, str(path))
    except OSError as error:
        raise errors.ArtifactError(
            f"cannot open {path}: {error.strerror}",
            hint=_WRITTEN_BY,
        ) from error


def _map(file: IO[bytes], source: str) -> Container:
    size = os.fstat(file.fileno()).st_size
    if size < _HEADER.size:
        raise errors.ArtifactError("not a turbine artifact", where=source, hint=_WRITTEN_BY)
    # A private mapping: the program cannot change the file.
    data = memoryview(mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE))
    magic, version, length, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise errors.ArtifactError("not a turbine artifact", where=source, hint=_WRITTEN_BY)
    if version != FORMAT:
        raise errors.ArtifactVersionError(
            f"the artifact has format {version}, this turbine reads format {FORMAT}",
            where=source,
            hint="compile the model again, or install the version that wrote it",
        )
    text = data[_HEADER.size : _HEADER.size + length]
    if hashlib.sha256(text).digest() != digest:
        raise errors.ArtifactError("the manifest is damaged", where=source, hint=AGAIN)
    manifest, sections = _read(bytes(text), _align(_HEADER.size + length), source)
    end = max((s.offset + s.length for s in sections.values()), default=0)
    if end > size:
        raise errors.ArtifactError(
            f"the file is cut off: {size} bytes of {end}", where=source, hint=AGAIN
        )
    return Container(manifest, sections, data, source)


def _read(text: bytes, base: int, source: str) -> tuple[dict[str, Any], dict[str, Section]]:
    try:
        manifest = json.loads(text)
        rows = [_section(row) for row in manifest.pop("sections")]
        return manifest, {row.name: replace(row, offset=base + row.offset) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise errors.ArtifactError(
            f"the manifest is invalid: {error}", where=source, hint=AGAIN
        ) from error


def _section(row: dict[str, Any]) -> Section:
    section = Section(**row)
    numbers = (section.offset, section.length, section.crc32)
    if type(section.name) is not str or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{section} is not a section")
    return section


def _starts(lengths: Sequence[int]) -> list[int]:
    starts, position = [], 0
    for length in lengths:
        starts.append(position)
        position = _align(position + length)
    return starts


def _align(position: int) -> int:
    return -(-position // PAGE) * PAGE
