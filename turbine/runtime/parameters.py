"""Pass weights to IREE as parameter providers, and write archives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as iree

from turbine import errors
from turbine.runtime import container, irpa
from turbine.runtime.entries import Entry

WRITTEN_SUFFIX = ".irpa"


def from_memory(scope: str, entries: Mapping[str, memoryview]) -> Any:
    """A provider of bytes in memory, which are not copied."""
    return index(Entry(key, data) for key, data in entries.items()).create_provider(scope=scope)


def index(entries: Iterable[Entry]) -> Any:
    """The entries as a parameter index of IREE; their bytes are not copied."""
    found = iree.ParameterIndex()
    for entry in entries:
        found.add_buffer(entry.key, entry.data, metadata=irpa.metadata(entry))
    return found


def save_archive(path: Path, entries: Sequence[Entry]) -> None:
    """Write an .irpa archive, and replace an old one atomically."""
    if path.suffix != WRITTEN_SUFFIX:
        raise errors.ParameterError(
            errors.unknown("archive type to write", path.suffix, [WRITTEN_SUFFIX]),
            hint=f"call it {path.with_suffix(WRITTEN_SUFFIX).name}",
        )
    with container.replace_file(path) as file:
        irpa.write(file, entries)
