"""Every knob, once: an argument wins over `config.set`, which wins over `TURBINE_*` variables."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from turbine import errors


def _knob(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class Config:
    """All knobs and their values; each can be set as TURBINE_<NAME> in the environment.

    >>> import turbine
    >>> with turbine.config.override(cache=False):
    ...     turbine.config.current().cache
    False
    """

    target: str = _knob("cpu", "what to compile for when no target is given")
    strategy: str = _knob(
        "auto", "a strategy name, 'auto' (first that compiles) or 'tune' (fastest)"
    )
    cache: bool = _knob(True, "keep compiled code on disk")
    cache_dir: Path = _knob(
        Path(os.path.expanduser("~")) / ".cache" / "turbine", "where compiled code is kept"
    )
    cache_limit_mb: int = _knob(4096, "least recently used entries go when the cache is larger")
    compile_timeout: float = _knob(600.0, "seconds one compile may take")
    compile_workers: int = _knob(os.cpu_count() or 1, "compiler processes that may run at once")
    compile_memory_mb: int = _knob(0, "memory one compiler process may take; 0 is no limit")
    in_process: bool = _knob(False, "compile in this process, for debugging the compiler")
    dump: Path | None = _knob(None, "folder that receives every stage's IR, numbered")
    verify_weights: bool = _knob(True, "check weights against their checksums on the first call")
    sync_limit_mflop: float = _knob(1.0, "programs below this much work run on the calling thread")


_lock = threading.Lock()
_overrides: dict[str, Any] = {}


def current() -> Config:
    """The knobs in force now."""
    from_environment = {
        name: _parse(name, text)
        for name in KNOBS
        if (text := os.environ.get(f"TURBINE_{name.upper()}")) is not None
    }
    return replace(Config(), **{**from_environment, **_overrides})


def set(**knobs: Any) -> None:
    """Set knobs for the whole process: `turbine.config.set(cache=False)`."""
    checked = {name: _check(name, value) for name, value in knobs.items()}
    with _lock:
        _overrides.update(checked)


@contextmanager
def override(**knobs: Any) -> Iterator[None]:
    """Set knobs for a `with` block and put the old values back after it."""
    checked = {name: _check(name, value) for name, value in knobs.items()}
    with _lock:
        before = dict(_overrides)
        _overrides.update(checked)
    try:
        yield
    finally:
        with _lock:
            _overrides.clear()
            _overrides.update(before)


KNOBS = {f.name: f for f in fields(Config)}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def _parse(name: str, text: str) -> Any:
    """The value of a knob from the text of its environment variable."""
    kind = KNOBS[name].type
    if kind == "bool":
        if text.lower() not in _TRUE | _FALSE:
            raise errors.ConfigError(
                f"TURBINE_{name.upper()}={text!r} is not a truth value", hint="use 1 or 0"
            )
        return text.lower() in _TRUE
    return _check(name, text)


def _check(name: str, value: Any) -> Any:
    """The value, converted to the knob's type, or an error that names the knob."""
    if name not in KNOBS:
        raise errors.ConfigError(errors.unknown("knob", name, KNOBS))
    if value is None and "None" in str(KNOBS[name].type):
        return None
    convert = _CONVERT[str(KNOBS[name].type)]
    try:
        return convert(value)
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(
            f"knob {name}={value!r} is not of type {KNOBS[name].type}",
            hint=KNOBS[name].metadata["doc"],
        ) from error


def _path(value: Any) -> Path:
    return Path(value).expanduser()


_CONVERT: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "Path": _path,
    "Path | None": _path,
}
