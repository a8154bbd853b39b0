"""Weights as IREE parameter providers: from an artifact's own bytes or from an archive file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as iree

from turbine import errors
from turbine.runtime import container
from turbine.runtime.archive import open_archive

WRITTEN_SUFFIX = ".irpa"


def from_memory(scope: str, entries: Mapping[str, memoryview]) -> Any:
    """A provider over bytes in memory, which are not copied."""
    return _index(entries.items()).create_provider(scope=scope)


def from_archive(scope: str, path: Path, lengths: Mapping[str, int]) -> Any:
    """A provider over a mapped archive file that holds at least the named parameters."""
    archive = open_archive(path)
    archive.check_sizes(lengths)
    return from_memory(scope, archive.entries)


def save_archive(path: Path, entries: Sequence[tuple[str, Any]]) -> None:
    """Write an .irpa archive of (key, bytes); an old one stays whole until the end."""
    if path.suffix != WRITTEN_SUFFIX:
        raise errors.ParameterError(
            errors.unknown("archive type to write", path.suffix, [WRITTEN_SUFFIX])
        )
    with container.replacing(path) as file:
        try:
            _index(entries).create_archive_file(file.name)
        except (RuntimeError, ValueError, IndexError) as error:
            raise errors.ArtifactError(f"cannot write {path}: {error}") from error


def _index(entries: Iterable[tuple[str, Any]]) -> Any:
    index = iree.ParameterIndex()
    for key, data in entries:
        index.add_buffer(key, data)
    return index
