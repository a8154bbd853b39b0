"""Archive files of weights: a path in, parameters by name out, mapped and not copied."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from turbine import errors
from turbine.runtime import gguf_file, irpa, safetensors_file
from turbine.runtime.conversion import convert
from turbine.runtime.entries import Damage, Declared, Entry

READERS: dict[str, Callable[[memoryview], Iterator[Entry]]] = {
    ".irpa": irpa.read,
    ".safetensors": safetensors_file.read,
    ".gguf": gguf_file.read,
}


@dataclass(frozen=True)
class Archive:
    """A mapped file or folder of files, which may be replaced or removed; or values in memory."""

    path: Path | None  # None in memory
    entries: dict[str, Entry]

    def check(self, wanted: Iterable[Declared]) -> None:
        """Raise unless the archive has all that state dicts have, and those it has fit."""
        declared = {weight.key: weight for weight in wanted}
        required = {key for key, weight in declared.items() if weight.persistent}
        missing = sorted(required - set(self.entries))
        wrong = [
            f"{key} ({weight.describe_mismatch(self.entries[key])})"
            for key, weight in declared.items()
            if key in self.entries and not weight.accepts(self.entries[key])
        ]
        facts = []
        if missing:
            facts.append(f"lacks {len(missing)} parameters: {', '.join(missing)}")
        if wrong:
            facts.append(f"holds parameters of another type: {', '.join(wrong)}")
        if facts:
            raise errors.ParameterError(
                f"the archive {'; and it '.join(facts)}",
                where=None if self.path is None else str(self.path),
                hint="use the archive of the model that was exported, or export this one",
            )

    def bytes_of(self, weight: Declared) -> memoryview:
        """The elements of a parameter in the dtype that the program declares."""
        return convert(self.entries[weight.key], weight.dtype)

    def check_bytes(self, wanted: Iterable[Declared]) -> None:
        """Raise if a parameter differs from its checksum, where it has one."""
        wrong = [
            weight.key
            for weight in wanted
            if weight.crc32 is not None
            and zlib.crc32(self.entries[weight.key].data) != weight.crc32
        ]
        if wrong:
            raise errors.ParameterError(
                f"the archive is damaged, or was made for another model: {', '.join(wrong)}",
                where=str(self.path),
                hint="save it again; load(weights=...) takes other weights on purpose",
            )


def open_archive(path: Path, *, mapped: bool = True, writable: bool = False) -> Archive:
    """Open an .irpa, .safetensors or .gguf file, or a folder of .safetensors files.

    Writes to a `writable` file reach it.
    """
    if path.is_dir():
        return _open_folder(path, mapped)
    if path.suffix not in READERS and (path.suffix or path.exists()):
        raise errors.ParameterError(
            errors.unknown("archive type", path.suffix, READERS),
            hint="iree-convert-parameters turns other types into .irpa",
        )
    if not path.is_file():
        raise errors.ParameterError(
            f"no archive at {path}",
            hint=f"archives in that folder: {', '.join(_archives_in(path.parent)) or 'none'}",
        )
    try:
        data = _map(path, writable) if mapped else memoryview(bytearray(path.read_bytes()))
        return Archive(path, _by_key(READERS[path.suffix](data)))
    except (OSError, Damage) as error:
        raise _refusal(str(error), path) from error
    except _STUMBLES as error:
        raise _refusal(f"it is damaged, or no {path.suffix} file", path) from error


def _open_folder(folder: Path, mapped: bool) -> Archive:
    """The shards that the index of a folder names, or all of its .safetensors files."""
    shards = _shards(folder)
    if not shards:
        raise errors.ParameterError(
            f"no {_SHARD} files in {folder}",
            hint=f"archives in that folder: {', '.join(_archives_in(folder)) or 'none'}",
        )
    opened = [open_archive(folder / name, mapped=mapped) for name in shards]
    every = (entry for shard in opened for entry in shard.entries.values())
    try:
        return Archive(folder, _by_key(every))
    except Damage as error:
        raise _refusal(str(error), folder) from error


def _shards(folder: Path) -> list[str]:
    indices = sorted(folder.glob(f"*{_SHARD}.index.json"))
    if not indices:
        return sorted(path.name for path in folder.glob(f"*{_SHARD}"))
    try:
        named = {shard for index in indices for shard in _weight_map(index).values()}
        # An index names files of its own folder, and no others.
        return sorted(Path(str(name)).name for name in named)
    except (OSError, *_STUMBLES) as error:
        raise _refusal("its index is damaged", indices[0]) from error


def _weight_map(index: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return found


_SHARD = ".safetensors"


def _archives_in(folder: Path) -> list[str]:
    """The names of a few archives in a folder, which may not exist."""
    names = sorted(path.name for path in folder.glob("*") if path.suffix in READERS)
    return names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], "..."]


_MOST_NAMES = 5


def _refusal(reason: str, path: Path) -> errors.ParameterError:
    return errors.ParameterError(
        f"cannot read the archive: {reason}",
        where=str(path),
        hint="the file may be damaged or cut short: write or fetch it again",
    )


# Errors of libraries about the contents of a file; their messages do not help a user.
_STUMBLES = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def _map(path: Path, writable: bool) -> memoryview:
    # Without MAP_SHARED, writes to the memory do not reach the file.
    flags = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
    with path.open("r+b" if writable else "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, flags=flags))


def _by_key(entries: Iterable[Entry]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.key in found:
            raise Damage(f"it holds {entry.key!r} twice")
        found[entry.key] = entry
    return found
