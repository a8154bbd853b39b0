"""Run IREE's compiler once, in this process: IR and flags in, bytes and diagnostics out."""

from __future__ import annotations

import ctypes
import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turbine.compiler import dispatch_limits, strategies
from turbine.compiler.diagnostics import ERROR, Diagnostic, parse

log = logging.getLogger(__name__)
VM_BYTECODE = "vm"
INPUT_CONVERTED = "input"  # the phase after which there are only ops on builtin tensors
DISPATCHES = "dispatches"  # what each dispatch is, as JSON
_START, _END = "start", "end"  # phases
_DISPATCHES_FORMED = "flow"  # the phase after which there are dispatches


@dataclass(frozen=True)
class Request:
    """A request: compile until "vm" for code, "dispatches", or a phase of IREE for IR."""

    source: bytes
    flags: tuple[str, ...]
    until: str = VM_BYTECODE
    isolated: bool = False  # no op is fused with another


@dataclass(frozen=True)
class Outcome:
    """The compiled bytes, or None and the reasons; and how long it took."""

    data: bytes | None
    diagnostics: tuple[Diagnostic, ...]
    seconds: float = 0.0


def run(request: Request) -> Outcome:
    """Compile; every return value is checked, since going on after a failure crashes IREE."""
    collected: list[Diagnostic] = []
    started = time.perf_counter()
    try:
        if request.until == VM_BYTECODE:
            data = _compile_within_limits(request, collected)
        elif request.until == DISPATCHES:
            data = _describe_dispatches(request, collected)
        else:
            data = _compile(request, collected)
    except ValueError as error:  # how IREE's wrapper reports each call that returned an error
        data = None
        collected.append(Diagnostic(ERROR, f"the compiler says: {error}", ()))
    return Outcome(data, tuple(collected), time.perf_counter() - started)


@cache
def version() -> str:
    """The version of IREE's compiler, without importing it."""
    from importlib.metadata import version as installed

    return installed("iree-base-compiler")


def find_linker() -> Path:
    """The linker that IREE's compiler starts."""
    found = find_spec("iree.compiler")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "_mlir_libs" / "iree-lld"


def is_bytecode(source: bytes) -> bool:
    """Whether a source is MLIR bytecode rather than text."""
    return source[:4] == b"ML\xefR"


def _compile_within_limits(request: Request, collected: list[Diagnostic]) -> bytes | None:
    with dispatch_limits.collect_sources() as sources:
        data = _compile(replace(request, flags=(*request.flags, *sources.flags)), collected)
        problem = sources.problem() if data is not None else None
    if problem is not None:
        collected.append(Diagnostic(ERROR, f"a loop is too large: {problem}", ()))
        return None
    return data


def _compile(request: Request, collected: list[Diagnostic]) -> bytes | None:
    from iree.compiler.api import Invocation, Output, Session, Source

    if request.isolated:
        return _compile_isolated(request, collected)
    _set_process_flags()
    # IREE reads the buffer in place and looks for a NUL after text.
    source = request.source if is_bytecode(request.source) else request.source + b"\0"
    callbacks = []  # kept alive for as long as IREE may call them
    with ExitStack() as stack:
        session = stack.enter_context(Session())
        session.set_flags(*request.flags)

        def run(begin: str, end: str, module: Any = None) -> Any:
            """Compile a module, or else the source; the result is None if that fails."""
            invocation = stack.enter_context(Invocation(session))
            callbacks.append(_collect_diagnostics(invocation, collected))
            _set_phases(invocation, begin, end)
            if module is not None:
                invocation.import_module(module)
            elif not invocation.parse_source(Source.wrap_buffer(session, source)):
                return None
            return invocation if invocation.execute() else None

        if request.until == VM_BYTECODE:
            invocation = _compile_to_code(run)
        else:
            invocation = run(_START, request.until)
        return None if invocation is None else _output(Output, invocation, request.until)


def _compile_to_code(run: Callable[..., Any]) -> Any:
    """Compile to the end, and change the module between phases.

    Some dispatches have wide vectors while they become code. Contexts of a program with state share
    their globals.
    """
    from turbine.mlir import shared_globals, wide_loops

    formed = run(_START, wide_loops.BEGIN)
    if formed is None:
        return None
    module, phase = formed.export_module(), wide_loops.BEGIN
    has_state = shared_globals.has_state(module)
    targets = wide_loops.widen_loops(module)
    if targets:
        if run(phase, wide_loops.END, module) is None:
            return None
        phase = wide_loops.END
        wide_loops.restore_targets(module, targets)
    if has_state:
        if run(phase, shared_globals.PHASE, module) is None:
            return None
        phase = shared_globals.PHASE
        shared_globals.share_globals(module)
    return run(phase, _END, module)


@cache
def _set_process_flags() -> None:
    """Set the flags that IREE has for a process, not for a session; it takes them once."""
    from iree.compiler.api import _initializeGlobalCL

    _initializeGlobalCL("turbine", *strategies.OF_PROCESS)


def _compile_isolated(request: Request, collected: list[Diagnostic]) -> bytes | None:
    """Compile in two steps, with barriers between the ops after the first step."""
    from turbine.mlir.isolation import isolate_ops

    first = replace(request, until=INPUT_CONVERTED, isolated=False)
    converted = _compile(first, collected)
    if converted is None:
        return None
    return _compile(replace(request, source=isolate_ops(converted), isolated=False), collected)


def _describe_dispatches(request: Request, collected: list[Diagnostic]) -> bytes | None:
    from turbine.mlir.dispatches import describe

    formed = _compile(replace(request, until=_DISPATCHES_FORMED), collected)
    if formed is None:
        return None
    return json.dumps([asdict(dispatch) for dispatch in describe(request.source, formed)]).encode()


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def _collect_diagnostics(invocation: Any, into: list[Diagnostic]) -> object:
    """Send diagnostics to a list. The C API has this callback; the Python wrapper does not."""
    from iree.compiler.api import ctypes_dl

    def on_message(severity: int, text: int, length: int, _: int) -> None:
        message = ctypes.string_at(text, length).decode(errors="replace")
        into.append(parse(severity, message))
        # If the compiler crashes next, its log is all there is.
        log.debug("%s", into[-1].message)

    enable = ctypes_dl._dylib.ireeCompilerInvocationEnableCallbackDiagnostics
    enable.argtypes = [ctypes.c_void_p, ctypes.c_int, _CALLBACK, ctypes.c_void_p]
    enable.restype = None
    callback = _CALLBACK(on_message)
    enable(invocation._inv_p, 0, callback, None)
    return callback


def _set_phases(invocation: Any, begin: str, end: str) -> None:
    from iree.compiler.api import ctypes_dl

    for name, phase in (("From", begin), ("To", end)):
        set_phase = getattr(ctypes_dl._dylib, f"ireeCompilerInvocationSetCompile{name}Phase")
        set_phase.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        set_phase.restype = None
        set_phase(invocation._inv_p, phase.encode())


def _output(output_class: Any, invocation: Any, until: str) -> bytes:
    with output_class.open_membuffer() as output:
        if until == VM_BYTECODE:
            invocation.output_vm_bytecode(output)
        elif until == _DISPATCHES_FORMED:
            invocation.output_ir_bytecode(output)  # text has no locations
        else:
            invocation.output_ir(output)
        return bytes(output.map_memory())
