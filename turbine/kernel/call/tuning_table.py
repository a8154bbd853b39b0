"""Configurations that were tuned: rows in the cache, and in tables that a project keeps.

Note [Shape classes]
A configuration that was tuned for some sizes serves others of the same class. Sizes up to 16 are a
class each. Larger ones are rounded up to a power of two, and those that are no multiple of 16 are
apart, marked by "~", since code for them has masks: 4096 is in "4096", and 4095 in "~4096".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from turbine import config, errors
from turbine.compiler import cache, session
from turbine.kernel.call import configuration as configurations
from turbine.kernel.call.configuration import Configuration
from turbine.kernel.call.machines import Machine
from turbine.version import __version__

FORMAT = 1
_SMALL = 16


@dataclass(frozen=True)
class Case:
    """What a configuration was tuned for."""

    kernel: str
    program: str  # a digest of what the kernel computes
    machine: str
    dtypes: tuple[tuple[str, str], ...]  # of the arguments
    sizes: tuple[tuple[str, str], ...]  # their classes
    given: tuple[tuple[str, int], ...] = ()  # what blocks= and using() set

    def serves(self, other: Case, machine: Machine) -> bool:
        """Whether it is for the same calls, if perhaps of another version of the kernel."""
        here = replace(self, program=other.program, machine=other.machine)
        return machine.is_served_by(self.machine) and here == other

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes)
        given = f" with {configurations.text(dict(self.given))}" * bool(self.given)
        dtypes = ", ".join(dict.fromkeys(name for _, name in self.dtypes))
        return f"{self.kernel}{given}, {dtypes}, {sizes or 'no sizes'}, on {self.machine}"


@dataclass(frozen=True)
class Row:
    """The fastest configuration of a case, and its time beside that of the default."""

    case: Case
    configuration: Configuration
    seconds: float
    default_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The row as it is written."""
        case: dict[str, Any] = asdict(self.case)
        case |= {name: dict(case[name]) for name in ("dtypes", "sizes", "given")}
        times = {"seconds": self.seconds, "default_seconds": self.default_seconds}
        return {**case, "configuration": dict(self.configuration), **times}


def parse_row(data: Any) -> Row:
    """A row that was written; raises ValueError for anything else."""
    if not isinstance(data, dict):
        raise ValueError("a row is not an object")
    wanted = {field.name for field in fields(Case)} | {"configuration", *_TIMES}
    missing = sorted(wanted - data.keys())
    if missing:
        raise ValueError(f"a row has no {missing[0]!r}")
    pairs = {name: _pairs(name, data[name], str) for name in ("dtypes", "sizes")}
    given = _pairs("given", data["given"], int)
    kernel, program, machine = (
        _checked(name, data[name], str) for name in ("kernel", "program", "machine")
    )
    case = Case(kernel, program, machine, pairs["dtypes"], pairs["sizes"], given)
    chosen = dict(_pairs("configuration", data["configuration"], int))
    seconds, default = (float(_checked(name, data[name], (int, float))) for name in _TIMES)
    return Row(case, chosen, seconds, default)


_TIMES = ("seconds", "default_seconds")


def _pairs(name: str, data: Any, type: type) -> tuple[tuple[str, Any], ...]:
    pairs = _checked(name, data, dict)
    return tuple((str(key), _checked(f"{name}.{key}", value, type)) for key, value in pairs.items())


def _checked(name: str, value: Any, type: Any) -> Any:
    if not isinstance(value, type) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}")
    return value


def class_of(size: int) -> str:
    """The class of a size: see Note [Shape classes]."""
    if size <= _SMALL:
        return str(size)
    return f"{'~' * bool(size % _SMALL)}{1 << (size - 1).bit_length()}"


# Rows of this process


def recall(case: Case, machine: Machine) -> Row | None:
    """The row that this process measured, or that is in the cache."""
    key = _key(case, machine)
    if key not in KNOWN:
        KNOWN[key] = _read(key) if config.current().cache else None
    return KNOWN[key]


def measured_here(case: Case, machine: Machine) -> Row | None:
    """The row that this process measured."""
    return MEASURED.get(_key(case, machine))


def keep(row: Row, machine: Machine) -> None:
    """Keep a row for this process, and in the cache for others."""
    key = _key(row.case, machine)
    MEASURED[key] = KNOWN[key] = row
    if config.current().cache:
        gain = f"{row.default_seconds / row.seconds:.2f} times the default's speed"
        what = f"tuned {row.case}: {configurations.text(row.configuration) or 'nothing'}, {gain}"
        cache.write(key, cache.Entry(b"", {"what": what, "row": row.to_json()}))


# By cache key: rows that were read or found missing, and rows of calls of `kernel.tune`.
KNOWN: dict[str, Row | None] = {}
MEASURED: dict[str, Row] = {}


def _read(key: str) -> Row | None:
    entry = cache.read(key)
    try:
        return None if entry is None else parse_row(entry.facts.get("row"))
    except ValueError:  # of another version, though its key is ours
        return None


def _key(case: Case, machine: Machine) -> str:
    """Other compilers make other code, for which other configurations are fastest."""
    compiler = session.version() if machine.kind == "cpu" else _triton_version()
    parts = [__version__, compiler, machine.name, machine.details]
    return cache.key_of(["tuned", str(FORMAT), *parts, repr(case)])


def _triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "none"


# Tables


@dataclass(frozen=True)
class TuningTable:
    """A file of rows, of one kernel or of several, that a project keeps."""

    path: Path
    rows: tuple[Row, ...]

    def find(self, case: Case, machine: Machine) -> Row | None:
        """The row for a case: of this version of the kernel, or else of another."""
        found = [row for row in self.rows if row.case.serves(case, machine)]
        same = [row for row in found if row.case.program == case.program]
        return next(iter([*same, *found]), None)


def read_table(path: Path, kernel: str, place: str | None) -> TuningTable:
    """Read a table; a missing one is empty, with a warning, since calls can do without."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        errors.warn(
            f"{kernel} has default block sizes, as there is no table {path}: "
            f"{kernel}.tune(...).save() makes one"
        )
        return TuningTable(path, ())
    except (OSError, ValueError) as error:
        raise _unreadable(path, kernel, place, str(error)) from error
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise _unreadable(path, kernel, place, 'it has no list of "rows"')
    if data.get("format") != FORMAT:
        errors.warn(
            f"{kernel} has default block sizes, as the table {path} has format "
            f"{data.get('format')!r}, and this version of Turbine reads {FORMAT}: tune again"
        )
        return TuningTable(path, ())
    try:
        return TuningTable(path, tuple(map(parse_row, data["rows"])))
    except ValueError as error:
        raise _unreadable(path, kernel, place, str(error)) from error


def _unreadable(path: Path, kernel: str, place: str | None, why: str) -> errors.KernelError:
    return errors.KernelError(
        f"{kernel}: {path} is not a table of tuned configurations: {why}",
        where=place,
        hint=f"remove the file and write it again: {kernel}.tune(...).save(path)",
    )


def add_to_table(path: Path, row: Row) -> None:
    """Write a row into a table, in place of one for the same case; other rows stay."""
    kernel = row.case.kernel
    rows = read_table(path, kernel, None).rows if path.exists() else ()
    kept = [one for one in rows if not _is_same_case(one.case, row.case)]
    _write(path, sorted([*kept, row], key=lambda one: repr(one.case)))


def _is_same_case(one: Case, other: Case) -> bool:
    return one.machine == other.machine and one.serves(other, Machine("", other.machine))


def _write(path: Path, rows: Iterable[Row]) -> None:
    data: Mapping[str, Any] = {"format": FORMAT, "rows": [row.to_json() for row in rows]}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=2) + "\n")
    temporary.replace(path)
