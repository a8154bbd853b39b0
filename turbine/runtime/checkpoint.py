"""Write the state of a program to a safetensors file, and read it back.

Tensors have the names of the state. Those of an optimizer are there for each parameter, as PyTorch
has them, though a program may keep one count of steps for a whole group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from turbine import dtypes, errors
from turbine.runtime import container, libraries, safetensors_file
from turbine.runtime.archive import open_archive
from turbine.runtime.entries import Entry
from turbine.runtime.state import Kept, State

SUFFIX = ".safetensors"
_MOST = 5
# Values that PyTorch does not have.
_TRAINER = "trainer."

# A name of the state, and the names under which a file has its value.
Shared = Mapping[str, Sequence[str]]


def save(path: Path, state: State, shared: Shared) -> None:
    """Write all of the state; the file replaces an old one atomically."""
    entries = []
    for name in state:
        kept, value = state.declaration(name), state[name]
        library = libraries.of(value)
        row = dtypes.BY_NAME[kept.dtype]
        array = numpy.asarray(value, row.numpy) if library is None else library.to_numpy(value)
        raw = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
        entries += [
            Entry(key, raw.data, kept.dtype, tuple(array.shape)) for key in shared.get(name, [name])
        ]
    write(path, entries)


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write a checkpoint; the file replaces an old one atomically."""
    _check_suffix(path)
    with container.replace_file(path) as file:
        safetensors_file.write(file, entries)


def load(path: Path, state: State, shared: Shared, constants: Sequence[str]) -> None:
    """Set all of the state; it stays as it is if the file does not fit.

    Values of the trainer that are not in the file stay, and so do weights that are constants.
    """
    _check_suffix(path)
    entries = open_archive(path).entries
    places = {name: [*shared.get(name, [name])] for name in state}
    places = {n: keys for n, keys in places.items() if not _is_left_out(n, keys, entries)}
    expected = {key for keys in places.values() for key in keys}
    missing = sorted(expected - entries.keys())
    unknown = sorted(entries.keys() - expected - {*constants})
    if missing or unknown:
        raise errors.ParameterError(
            "the checkpoint is of another program: "
            + "; ".join(
                f"{what} {_list(names)}"
                for what, names in (("it lacks", missing), ("it also has", unknown))
                if names
            ),
            where=str(path),
            hint="load a checkpoint of the same model and optimizer",
        )
    _check_types(path, state, entries, places)
    values = {
        name: _value(path, state.declaration(name), entries, keys) for name, keys in places.items()
    }
    for name, value in values.items():
        state[name] = value


def _is_left_out(name: str, keys: Sequence[str], entries: Mapping[str, Entry]) -> bool:
    return name.startswith(_TRAINER) and not any(key in entries for key in keys)


def _check_types(path: Path, state: State, entries: Mapping[str, Entry], places: Shared) -> None:
    """Raise if values have other dtypes or shapes than the state, and name these values."""
    wrong = [
        f"{key} of type {entries[key].text}, expected {state.declaration(name).text()}"
        for name, keys in places.items()
        for key in keys
        if not _fits(entries[key], state.declaration(name))
    ]
    if wrong:
        raise errors.ParameterError(
            f"the checkpoint has {_list(wrong, '; ')}",
            where=str(path),
            hint="load a checkpoint of the same model and optimizer",
        )


def _value(path: Path, kept: Kept, entries: Mapping[str, Entry], keys: Sequence[str]) -> Any:
    """The value of a state, which is the same under all keys."""
    found = [entries[key] for key in keys]
    different = [key for key, one in zip(keys, found, strict=True) if one.data != found[0].data]
    if different:
        raise errors.ParameterError(
            f"{keys[0]} and {different[0]} differ, and the program has one value for both",
            where=str(path),
            hint="export the step with an optimizer that has the state of this checkpoint",
        )
    row = dtypes.BY_NAME[kept.dtype]
    array = numpy.frombuffer(found[0].data, dtype=row.numpy).reshape(found[0].shape or ())
    return array.item() if kept.shape is None else array.copy()


def _fits(entry: Entry, kept: Kept) -> bool:
    shape = kept.shape or ()
    if entry.dtype != kept.dtype or entry.shape is None or len(entry.shape) != len(shape):
        return False
    pairs = zip(entry.shape, shape, strict=True)
    return all(isinstance(size, str) or one == size for one, size in pairs)


def _list(items: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(items) - _MOST} more" if len(items) > _MOST else ""
    return separator.join(items[:_MOST]) + more


def _check_suffix(path: Path) -> None:
    if path.suffix != SUFFIX:
        raise errors.ParameterError(
            f"a checkpoint is a {SUFFIX} file, not {path.name}",
            hint=f"call it {path.with_suffix(SUFFIX).name}",
        )
