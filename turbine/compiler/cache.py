"""Compiled bytes on disk by content: written whole or not at all, bounded, checked when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbine import config, errors, permissions

# Part of every key: raise it when the layout of a file or the facts in it change.
FORMAT = 2
_SUFFIX = ".entry"
_TEMPORARY = ".writing-"
_STALE_SECONDS = 3600.0
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Entry:
    """An entry of the cache: bytes and metadata."""

    data: bytes
    facts: dict[str, Any]


@dataclass(frozen=True)
class Listing:
    """One file of the cache."""

    key: str
    size: int
    used: float
    facts: dict[str, Any]


def key_of(parts: Iterable[str | bytes]) -> str:
    """The key: a digest of all parts, each with its length so that none runs into the next."""
    digest = hashlib.sha256()
    for part in (str(FORMAT), *parts):
        raw = part.encode() if isinstance(part, str) else part
        digest.update(_LENGTH.pack(len(raw)))
        digest.update(raw)
    return digest.hexdigest()


def read(key: str) -> Entry | None:
    """The entry, of the cache or of its seed; None if there is none that we or root wrote."""
    settings = config.current()
    entry = _read_own(key, settings.cache_dir)
    if entry is None and settings.cache_seed_dir is not None:
        entry = _read_seed(key, settings.cache_seed_dir)
    return entry


def _read_own(key: str, folder: Path) -> Entry | None:
    """An entry of our folder, marked as used; a damaged file is removed."""
    path = path_of(key, folder)
    try:
        raw = _read_trusted(path, folder)
    except _Untrusted as error:
        _warn_once(folder, f"turbine does not read its cache: {error}")
        return None
    except OSError:
        return None
    entry = _decode(key, raw)
    with contextlib.suppress(OSError):
        if entry is None:
            path.unlink()
        else:
            os.utime(path)
    return entry


def _read_seed(key: str, folder: Path) -> Entry | None:
    """An entry of a folder in which nothing is changed."""
    try:
        return _decode(key, _read_trusted(path_of(key, folder), folder))
    except OSError as error:
        if not isinstance(error, FileNotFoundError) or not folder.is_dir():
            _warn_once(folder, f"turbine does not read the seed of its cache: {error}")
        return None


def write(key: str, entry: Entry) -> None:
    """Write an entry; a folder that cannot be written causes one warning, and no error."""
    folder = config.current().cache_dir
    path = path_of(key, folder)
    try:
        make_folder(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_TEMPORARY, delete=False) as file:
            try:
                file.write(_encode(key, entry))
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
                raise
        evict()
    except OSError as error:
        _warn_once(folder, f"turbine cannot write its cache ({error}); compiled code is not kept")


def make_folder(folder: Path) -> None:
    """Make a folder of the cache which nobody else may write; raise OSError if somebody may."""
    root = config.current().cache_dir
    root.parent.mkdir(parents=True, exist_ok=True)
    for path in dict.fromkeys((root, folder)):
        path.mkdir(mode=0o700, exist_ok=True)
        _check_writers(path, path.stat())


class _Untrusted(OSError):
    """A file or a folder of the cache that another user may have written."""


def _read_trusted(path: Path, root: Path) -> bytes:
    """The bytes of a file that, as its folders, nobody but us and root may write."""
    for folder in (root, path.parent):
        _check_writers(folder, folder.stat())
    with path.open("rb") as file:
        _check_writers(path, os.fstat(file.fileno()))
        return file.read()


def _check_writers(path: Path, status: os.stat_result) -> None:
    problem = permissions.problem(status)
    if problem is not None:
        raise _Untrusted(f"{path} {problem}; remove it, or `chmod go-w` what is yours")


def listings(folder: Path | None = None) -> list[Listing]:
    """Every whole entry of the cache, or of a seed, most recently used first."""
    found = []
    for path in _files(folder or config.current().cache_dir):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append(Listing(path.stem, status.st_size, status.st_mtime, _facts(path)))
    return sorted(found, key=lambda item: item.used, reverse=True)


def clear() -> int:
    """Remove every entry and the IR of failed compiles; returns the number of entries."""
    count = 0
    for path in [*_files(config.current().cache_dir), *_failed_entries()]:
        with contextlib.suppress(OSError):
            path.unlink()
            count += path.suffix == _SUFFIX
    return count


def failed_folder() -> Path:
    """The folder for the IR of failed compiles; it counts towards the size limit."""
    return config.current().cache_dir / "failed"


def evict() -> None:
    """Remove least recently used files past the size limit, and files of killed writers."""
    limit = config.current().cache_limit_mb * 2**20
    sized = []
    for path in [*_files(config.current().cache_dir), *_failed_entries()]:
        with contextlib.suppress(OSError):
            status = path.stat()
            sized.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in sized)
    for _, size, path in sorted(sized):
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # another process may be evicting too
            total -= size
    _remove_stale()


def _remove_stale() -> None:
    for path in config.current().cache_dir.glob(f"*/{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def path_of(key: str, folder: Path) -> Path:
    """The file of an entry of a cache or of a seed."""
    return folder / key[:2] / f"{key}{_SUFFIX}"


def _files(folder: Path) -> Iterator[Path]:
    return folder.glob(f"??/*{_SUFFIX}")


def _failed_entries() -> Iterator[Path]:
    return failed_folder().glob("*.mlir*")


def _encode(key: str, entry: Entry) -> bytes:
    facts = json.dumps(entry.facts, sort_keys=True).encode()
    body = _LENGTH.pack(len(facts)) + facts + entry.data
    return _digest(key, body) + body


def _decode(key: str, raw: bytes) -> Entry | None:
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if _digest(key, body) != digest:
        return None
    try:
        (length,) = _LENGTH.unpack_from(body)
        start = _LENGTH.size
        return Entry(body[start + length :], json.loads(body[start : start + length]))
    except (struct.error, ValueError):
        return None


def _digest(key: str, body: bytes) -> bytes:
    """A digest of the contents and the key, so that files cannot be swapped."""
    return hashlib.sha256(key.encode() + body).digest()


def _facts(path: Path) -> dict[str, Any]:
    """The facts of an entry from the head of its file, unchecked."""
    try:
        with path.open("rb") as file:
            file.seek(_DIGEST_BYTES)
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            facts: dict[str, Any] = json.loads(file.read(min(length, 2**16)))
            return facts
    except (OSError, ValueError, struct.error):
        return {}


_warned: set[Path] = set()


def _warn_once(folder: Path, message: str) -> None:
    if folder not in _warned:
        _warned.add(folder)
        errors.warn(message, RuntimeWarning)
