"""Trace compiled programs: programs, calls and tensors in, files in a folder out.

The folder is the option `trace_dir`. Programs are kernels, custom ops, artifacts and compiled parts
under torch.compile. Reading an option takes longer than a small call, so it is read when a program
is loaded: `kernel` returns the label for its calls, or None if tracing is off.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from turbine import config, redirects
from turbine.runtime import libraries
from turbine.runtime.entries import type_text

if TYPE_CHECKING:
    from turbine.compat.runtime_tracer import DirectoryTracer as DirectoryTracer
    from turbine.compat.runtime_tracer import RuntimeTracer as RuntimeTracer
    from turbine.compat.runtime_tracer import tracer as tracer
else:
    __getattr__, __dir__ = redirects.old_names(__name__)

log = logging.getLogger(__name__)

CALLS = "calls.jsonl"  # a line for each call, of every process
IR, BINARY, TENSOR = ".mlir", ".vmfb", ".npy"

Result = TypeVar("Result")
TensorCallback = Callable[[str, Any], None]


def folder() -> Path | None:
    """The trace folder, or None. Slow: not for use in every call."""
    settings = config.current()
    found = settings.trace_dir or _old_flag(settings.debug)
    return None if found is None else found.absolute()


def kernel(name: str, ir: Callable[[], str] | None, binary: bytes | memoryview) -> Path | None:
    """Write a kernel's IR and code; returns the label of its calls, or None if tracing is off.

    A name that is taken by other code gets a part of the code's checksum as a suffix. `ir` is
    called only if tracing is on.

    >>> from turbine import config
    >>> from turbine.runtime import run_trace
    >>> with config.override(trace_dir="trace"):  # doctest: +SKIP
    ...     label = run_trace.kernel("scale", lambda: "module {}", b"code")
    >>> run_trace.call(label, [2.5], milliseconds=0.1)  # doctest: +SKIP
    """
    into = folder()
    if into is None:
        return None
    label = into / _NOT_IN_FILES.sub("_", name)
    try:
        into.mkdir(parents=True, exist_ok=True)
        label = _write_code(label, bytes(binary))
        if ir is not None:
            _with_suffix(label, IR).write_text(ir())
    except OSError as error:
        log.warning("cannot trace %s: %s", label, error)
    return label


def call(label: Path, args: Iterable[Any], milliseconds: float) -> None:
    """Add a line to the log: the kernel, the types of its arguments, and its time."""
    row = {
        "kernel": label.name,
        "args": [_describe(argument) for argument in args],
        "ms": round(milliseconds, 6),
        "time": time.time(),
        "process": os.getpid(),
    }
    try:
        # One write in append mode is atomic, even with other writers.
        with (label.parent / CALLS).open("ab", buffering=0) as file:
            file.write(json.dumps(row).encode() + b"\n")
    except OSError as error:
        log.warning("cannot trace a call of %s: %s", label, error)


def traced(
    call_code: Callable[[Sequence[Any]], Result], label: Path | None
) -> Callable[[Sequence[Any]], Result]:
    """A function of arguments whose calls are logged; the function itself without a label."""
    if label is None:
        return call_code

    def run(args: Sequence[Any]) -> Result:
        started = time.perf_counter()
        results = call_code(args)
        call(label, args, 1e3 * (time.perf_counter() - started))
        return results

    return run


def trace_tensor(key: str, tensor: Any) -> None:
    """Pass a tensor to the callback; the default one writes KEY.npy to the trace folder."""
    _tensor_callback(key, tensor)


def set_tensor_callback(callback: TensorCallback | None) -> TensorCallback:
    """Set the callback for traced tensors, None for the default; returns the old one."""
    global _tensor_callback
    before, _tensor_callback = _tensor_callback, callback or keep_tensor
    return before


def tensor_callback() -> TensorCallback:
    """The current callback for traced tensors."""
    return _tensor_callback


def keep_tensor(key: str, tensor: Any) -> None:
    """Write a tensor to KEY.npy, KEY-1.npy ... in the trace folder; without one, log it."""
    into = folder()
    if into is None:
        log.info("%s: %s", key, tensor)
        return
    into.mkdir(parents=True, exist_ok=True)
    stem = into / _NOT_IN_FILES.sub("_", key)
    with _new_file(stem, TENSOR).open("wb") as file:
        library = libraries.of(tensor)
        numpy.save(file, tensor if library is None else library.to_numpy(tensor))


_tensor_callback: TensorCallback = keep_tensor
_NOT_IN_FILES = re.compile(r"[^\w.$=,+-]")
_OLD_FLAG = re.compile(r"(?:^|,)\s*runtime_trace_dir=([^,]+)")


def _old_flag(debug: str) -> Path | None:
    found = _OLD_FLAG.search(debug)
    return None if found is None else Path(found[1]).expanduser()


def _write_code(label: Path, binary: bytes) -> Path:
    """Write the code; returns the label, with a suffix if other code has its name."""
    path = _with_suffix(label, BINARY)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent) as file:
            file.write(binary)
            file.flush()
            os.link(file.name, path)
        return label
    except FileExistsError:
        if path.read_bytes() == binary:
            return label
    own = label.with_name(f"{label.name}-{hashlib.sha256(binary).hexdigest()[:8]}")
    _with_suffix(own, BINARY).write_bytes(binary)
    return own


def _new_file(stem: Path, suffix: str) -> Path:
    """Create an empty file, with the next free number in its name."""
    number = 0
    while True:
        path = _with_suffix(stem, f"-{number}{suffix}" if number else suffix)
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            number += 1


def _with_suffix(stem: Path, suffix: str) -> Path:
    # Names may contain dots, which Path.with_suffix would take for a suffix.
    return stem.with_name(stem.name + suffix)


def _describe(value: Any) -> str:
    """A tensor as "float32[2, 3]", anything else by its type."""
    if libraries.of(value) is None:
        return type(value).__name__
    return type_text(str(value.dtype).removeprefix("torch."), value.shape)
