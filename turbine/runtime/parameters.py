"""Weights as IREE parameter providers: from an artifact's own bytes or from an archive file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as iree

from turbine import errors

ARCHIVE_SUFFIXES = (".irpa", ".safetensors", ".gguf")


def from_memory(scope: str, entries: Mapping[str, memoryview]) -> Any:
    """A provider over bytes in memory, which are not copied."""
    index = iree.ParameterIndex()
    for key, data in entries.items():
        index.add_buffer(key, data)
    return index.create_provider(scope=scope)


def from_archive(scope: str, path: Path, lengths: Mapping[str, int]) -> Any:
    """A provider over a mapped archive file that holds at least the named parameters."""
    index = open_archive(path)
    found = {key: entry.length for key, entry in index.items()}
    missing = sorted(set(lengths) - set(found))
    if missing:
        raise errors.ParameterError(
            f"the archive lacks {len(missing)} parameters: {', '.join(missing)}", where=str(path)
        )
    wrong = [f"{k} ({found[k]} bytes, expected {n})" for k, n in lengths.items() if found[k] != n]
    if wrong:
        raise errors.ParameterError(
            f"the archive holds parameters of another size: {', '.join(wrong)}", where=str(path)
        )
    return index.create_provider(scope=scope)


def open_archive(path: Path) -> Any:
    """The index of an .irpa, .safetensors or .gguf file."""
    if path.suffix not in ARCHIVE_SUFFIXES:
        raise errors.ParameterError(errors.unknown("archive type", path.suffix, ARCHIVE_SUFFIXES))
    if not path.is_file():
        raise errors.ParameterError(f"no archive at {path}")
    index = iree.ParameterIndex()
    try:
        index.load(str(path))
    except (RuntimeError, ValueError, IndexError) as error:
        raise errors.ParameterError(f"cannot read the archive: {error}", where=str(path)) from error
    return index


def save_archive(path: Path, entries: Sequence[tuple[str, Any]]) -> None:
    """Write an .irpa archive of (key, bytes)."""
    index = iree.ParameterIndex()
    for key, data in entries:
        index.add_buffer(key, data)
    index.create_archive_file(str(path))
