"""MLIR contexts with the dialects of IREE loaded, and modules as text and bytes."""

from __future__ import annotations

import hashlib
import io
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
        raise errors.CompileError(f"the IR does not parse: {error}") from error


def verify(module: Module) -> None:
    """Raise unless every op of the module is well formed."""
    try:
        module.operation.verify()
    except MLIRError as error:
        raise errors.CompileError(f"the IR is not valid: {error}") from error


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


def fingerprint(module: Module) -> str:
    """A digest of what the module computes: equal programs from different files agree."""
    bare = parse(to_bytecode(module), module.context)
    with module.context:
        PassManager.parse("builtin.module(strip-debuginfo)").run(bare.operation)
    return hashlib.sha256(to_bytecode(bare)).hexdigest()


def save(module: Module, path: Path) -> None:
    """Write text, or bytecode where the name ends in .mlirbc."""
    if path.suffix == BYTECODE_SUFFIX:
        path.write_bytes(to_bytecode(module))
    else:
        path.write_text(to_text(module, locations=True))
