"""Weights as IREE parameter providers, and entries as a written archive."""

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
    """A provider over bytes in memory, which are not copied."""
    return index(Entry(key, data) for key, data in entries.items()).create_provider(scope=scope)


def index(entries: Iterable[Entry]) -> Any:
    """The entries as IREE lists them; their bytes are not copied."""
    found = iree.ParameterIndex()
    for entry in entries:
        found.add_buffer(entry.key, entry.data, metadata=irpa.metadata(entry))
    return found


def save_archive(path: Path, entries: Sequence[Entry]) -> None:
    """Write an .irpa archive; an old one stays whole until the end."""
    if path.suffix != WRITTEN_SUFFIX:
        raise errors.ParameterError(
            errors.unknown("archive type to write", path.suffix, [WRITTEN_SUFFIX]),
            hint=f"call it {path.with_suffix(WRITTEN_SUFFIX).name}",
        )
    with container.replace_file(path) as file:
        irpa.write(file, entries)
