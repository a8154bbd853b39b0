"""Every option, once: an argument wins over `config.set`, which wins over `TURBINE_*` variables."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from turbine import errors


def _option(default: Any, doc: str, *, least: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least})


@dataclass(frozen=True)
class Config:
    """All options and their values; each can be set as TURBINE_<NAME> in the environment.

    >>> import turbine
    >>> with turbine.config.override(cache=False):
    ...     turbine.config.current().cache
    False
    """

    target: str = _option("cpu", "what to compile for when no target is given")
    strategy: str = _option(
        "auto", "a strategy name, 'auto' (first that compiles) or 'tune' (fastest)"
    )
    cache: bool = _option(True, "keep compiled code on disk")
    cache_dir: Path = _option(
        Path(os.path.expanduser("~")) / ".cache" / "turbine", "where compiled code is kept"
    )
    cache_seed_dir: Path | None = _option(
        None, "a second cache, which is only read: filled by one job for many"
    )
    cache_limit_mb: int = _option(
        4096, "least recently used entries go when the cache is larger", least=0
    )
    compile_timeout: float = _option(
        600.0, "seconds one strategy may take to compile before the next is tried", least=0
    )
    compile_workers: int = _option(
        os.cpu_count() or 1, "compiler processes that may run at once", least=1
    )
    compile_memory_mb: int = _option(
        0, "memory one compiler process may take; 0 is no limit", least=0
    )
    in_process: bool = _option(False, "compile in this process, for debugging the compiler")
    dump: Path | None = _option(None, "folder that receives every stage's IR, numbered")
    trace_dir: Path | None = _option(
        None, "folder that receives each kernel's IR and code, and a log of calls"
    )
    debug: str = _option(
        "", "flags of turbine.compat.debugging: log_level=debug,-asserts,runtime_trace_dir=DIR"
    )
    log_level: str = _option("", "short for log_level among the debug flags")
    check_indices: bool = _option(
        True, "report loaded indices outside of a buffer; read when a kernel is traced"
    )
    verify_weights: bool = _option(True, "check weights against their checksums on the first call")
    interpret: bool = _option(False, "run kernels of TK in the interpreter, program by program")
    guard: bool = _option(
        False, "put guard pages around what compiled code reads and writes, for debugging"
    )
    raise_faults: bool = _option(
        False, "raise an error of turbine's own; otherwise torch.compile runs the part in PyTorch"
    )
    library_calls: str = _option(
        "auto",
        "whether torch.compile leaves matmuls, convolutions, attention and norms to PyTorch: "
        "'auto' (where it is faster on this machine), 'never' or 'always'",
    )
    freezing: bool = _option(
        False,
        "torch.compile without gradients packs weights once; writes through .data are not seen",
    )
    eager: str = _option(
        "lazy",
        "how ops on the turbine device run: 'lazy' (compiled together) or 'op' (one by one in "
        "PyTorch, for debugging)",
    )
    sync_limit_mflop: float = _option(
        1.0, "programs below this much work run on the calling thread", least=0
    )
    threads: int = _option(
        0, "threads that a call runs on; 0: as many as PyTorch's, or one for each core", least=0
    )
    cores: tuple[int, ...] = _option(
        (), "cores that threads of programs are pinned to, such as '0,2-3'; none: all"
    )
    overflow_mb: int = _option(
        256,
        "artifacts of up to this size are loaded again, for calls that find their threads busy",
        least=0,
    )
    pickle_content: bool = _option(
        False, "pickled artifacts hold the contents of their files, in place of the paths"
    )
    keep_memory_mb: int = _option(
        256, "freed blocks of up to this size stay with the process for the next call", least=0
    )


OPTIONS = {f.name: f for f in fields(Config)}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
# Both are replaced, never changed in place, so that a reader needs no lock.
_settings: dict[str, Any] = {}
_overrides: ContextVar[dict[str, Any]] = ContextVar("turbine_overrides")
_setting = threading.Lock()


def current() -> Config:
    """The current options of this thread."""
    from_environment = {
        name: _check(name, text, label=variable)
        for name, variable in _VARIABLES.items()
        if (text := os.environ.get(variable))
    }
    return replace(Config(), **{**from_environment, **_settings, **_overrides.get({})})


def get(name: str) -> Any:
    """The current value of one option; fast, for what every call reads."""
    overrides = _overrides.get(None)
    if overrides and name in overrides:
        return overrides[name]
    if name in _settings:
        return _settings[name]
    text = os.environ.get(_VARIABLES[name])
    return _check(name, text, label=_VARIABLES[name]) if text else OPTIONS[name].default


def set(**options: Any) -> None:
    """Set options for the whole process: `turbine.config.set(cache=False)`."""
    global _settings
    checked = {name: _check(name, value) for name, value in options.items()}
    with _setting:
        _settings = {**_settings, **checked}


@contextmanager
def override(**options: Any) -> Iterator[None]:
    """Set options for a `with` block, in this thread (or async task) only.

    Inside the block these win over `config.set`. Threads started in the block do not see them.
    """
    checked = {name: _check(name, value) for name, value in options.items()}
    token = _overrides.set({**_overrides.get({}), **checked})
    try:
        yield
    finally:
        _overrides.reset(token)


_PREFIX = "TURBINE_"
_VARIABLES = {name: f"{_PREFIX}{name.upper()}" for name in OPTIONS}


def warn_of_misspelt_variables() -> None:
    """Warn of environment variables whose names are nearly those of options."""
    for name in os.environ:
        if not name.startswith(_PREFIX) or name in _VARIABLES.values():
            continue
        for near in get_close_matches(name, _VARIABLES.values(), n=1, cutoff=0.85):
            errors.warn(f"{name} is not a variable of Turbine, and has no effect; is it {near}?")


def _check(name: str, value: Any, label: str | None = None) -> Any:
    """The value, converted to the option's type, or an error that names where it was set."""
    if name not in OPTIONS:
        raise errors.ConfigError(errors.unknown("option", name, OPTIONS))
    option, label = OPTIONS[name], label or f"option {name}"
    try:
        converted = _CONVERT[str(option.type)](value)
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(
            f"{label}={value!r} is not of type {option.type}", hint=option.metadata["doc"]
        ) from error
    least = option.metadata["least"]
    if least is not None and not converted >= least:  # also true for NaN
        raise errors.ConfigError(
            f"{label}={value!r} is less than {least}", hint=option.metadata["doc"]
        )
    return converted


def _truth(value: Any) -> bool:
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("not a truth value")
    return text in _TRUE


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _whole(value: Any) -> int:
    number = int(value)
    if not isinstance(value, str) and number != value:
        raise ValueError("not a whole number")
    return number


def _wholes(value: Any) -> tuple[int, ...]:
    """Different whole numbers, from a list or a text such as "0,2-3"."""
    if isinstance(value, str):
        ends = [[int(end) for end in part.split("-", 1)] for part in value.split(",")]
        value = [number for end in ends for number in range(end[0], end[-1] + 1)]
    numbers = tuple(map(_whole, value))
    if len(dict.fromkeys(numbers)) < len(numbers) or min(numbers, default=0) < 0:
        raise ValueError("negative, or the same number twice")
    return numbers


def _path(value: Any) -> Path:
    return Path(value).expanduser()


def _path_or_none(value: Any) -> Path | None:
    return None if value is None else _path(value)


_CONVERT: dict[str, Any] = {
    "bool": _truth,
    "int": _whole,
    "float": float,
    "str": _text,
    "tuple[int, ...]": _wholes,
    "Path": _path,
    "Path | None": _path_or_none,
}
