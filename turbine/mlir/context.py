"""MLIR contexts with the dialects of IREE loaded, and modules as text and bytes."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path

from iree.compiler.ir import Context, MLIRError, Module
from iree.compiler.passmanager import PassManager

from turbine import errors

TEXT_SUFFIX = ".mlir"
BYTECODE_SUFFIX = ".mlirbc"


def new_context() -> Context:
    """A context in which every IREE and torch op parses."""
    return Context()


def parse(source: str | bytes, context: Context | None = None) -> Module:
    """Parse MLIR text or bytecode."""
    try:
        return Module.parse(source, context or new_context())
    except MLIRError as error:
        raise _error("the IR does not parse", error) from error


def read(path: Path, context: Context | None = None) -> Module:
    """Parse a file of text or bytecode, whatever its suffix."""
    try:
        if not path.read_bytes().strip():
            raise errors.CompileError(
                f"{path} is empty", hint="write it again: aot.export(...).save_mlir(path)"
            )
        return Module.parseFile(str(path), context or new_context())
    except OSError as error:
        raise errors.CompileError(
            f"cannot read {path}: {error.strerror}", hint="pass a file of MLIR text or bytecode"
        ) from error
    except MLIRError as error:
        raise _error("the IR does not parse", error) from error


def verify(module: Module) -> None:
    """Raise if the module does not verify."""
    try:
        module.operation.verify()
    except MLIRError as error:
        raise _error("the IR is not valid", error) from error


def _error(fact: str, error: MLIRError) -> errors.CompileError:
    """The first diagnostic of MLIR, with its line and column."""
    first = error.error_diagnostics[0]
    place = _PLACE.search(str(first.location))
    where = None if place is None else f"{place['file']}:{place['line']}:{place['column']}"
    return errors.CompileError(f"{fact}: {first.message.strip()}", where=where)


_PLACE = re.compile(r'"(?P<file>[^"]*)":(?P<line>\d+):(?P<column>\d+)')


def to_text(
    module: Module, *, large_elements_limit: int | None = None, locations: bool = False
) -> str:
    """The module as text; constants longer than the limit are elided."""
    return str(
        module.operation.get_asm(
            large_elements_limit=large_elements_limit,
            large_resource_limit=large_elements_limit,
            enable_debug_info=locations,
        )
    )


def to_bytecode(module: Module) -> bytes:
    """The module as MLIR bytecode, locations included."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def run_pipeline(module: Module, pipeline: str, *, print_ir: bool = False) -> None:
    """Run passes of MLIR's and IREE's own on a module, "builtin.module(canonicalize)"."""
    try:
        with module.context:
            manager = PassManager.parse(pipeline)
            if print_ir:
                module.context.enable_multithreading(False)
                manager.enable_ir_printing()
            manager.run(module.operation)
    except MLIRError as error:
        raise _error(f"the pipeline {pipeline} failed", error) from error
    except ValueError as error:
        raise errors.CompileError(
            f"the pipeline {pipeline} does not parse: {error}",
            hint="write \"builtin.module(canonicalize, cse)\" with passes of MLIR's and IREE's",
        ) from error


def fingerprint(module: Module) -> str:
    """A digest of what the module computes: equal programs from different files agree."""
    bare = parse(to_bytecode(module), module.context)
    with module.context:
        PassManager.parse("builtin.module(strip-debuginfo)").run(bare.operation)
    return hashlib.sha256(to_bytecode(bare)).hexdigest()


def to_bytes(module: Module, suffix: str) -> bytes:
    """The contents of a file with this suffix: bytecode for .mlirbc, else text, with locations."""
    if suffix == BYTECODE_SUFFIX:
        return to_bytecode(module)
    return to_text(module, locations=True).encode()


def save(module: Module, path: Path) -> None:
    """Write text, or bytecode where the name ends in .mlirbc."""
    path.write_bytes(to_bytes(module, path.suffix))
