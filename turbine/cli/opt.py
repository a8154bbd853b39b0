"""`turbine opt`: IR as text or bytecode in, the IR after some passes out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turbine import errors
from turbine.cli.options import Ordered, check_output

if TYPE_CHECKING:
    from turbine.mlir.ir import Module
    from turbine.passes import Pass

Steps = tuple[Ordered, ...]


def transform_ir(
    input: Annotated[Path, "IR as text or bytecode; - is stdin"],
    *,
    output: Annotated[
        Path | None, "file to write: .mlir or .mlirbc (default: stdout)", "-o"
    ] = None,
    rename_parameters: Annotated[Steps, """a JSON object of names, '{"old": "new"}'"""] = (),
    add_metadata: Annotated[Steps, """a function and its facts, '{"main": {"a": "b"}}'"""] = (),
    merge: Annotated[Steps, "another module, and new names for it: other.mlir,old=new"] = (),
    expand_custom_ops: Annotated[
        Steps, "a library with a function for each op, lib.mlir, or a program that declares them"
    ] = (),
    group_quantize: Annotated[Steps, "how to quantize linear layers: bits=4,group-size=32"] = (),
) -> int:
    """Transform IR and print it, or write it to a file.

    The passes, each an option, run in the order they are given; without one the IR is read,
    verified and written again. On an error nothing is written. A file keeps the lines of source
    code that ops come from; what is printed does not show them. Weights outside the IR stay as
    they are, so an archive has to follow renames (ExportOutput.transform sees to that).

    example:
      turbine opt lenet.mlir --rename-parameters='{"0.weight": "first"}' -o renamed.mlir
    """
    _check(output)
    try:
        from turbine.passes import run_passes
    except ImportError as error:
        raise errors.MissingExtra(
            f"transforming needs IREE's compiler: {error}", hint="pip install iree-base-compiler"
        ) from error
    given = {
        "rename-parameters": rename_parameters,
        "add-metadata": add_metadata,
        "merge": merge,
        "expand-custom-ops": expand_custom_ops,
        "group-quantize": group_quantize,
    }
    passes = _passes(given)
    _write(run_passes(_read(input), passes), output)
    return 0


SUFFIXES = (".mlir", ".mlirbc")


def _check(output: Path | None) -> None:
    if output is None:
        return
    check_output(output, SUFFIXES)


def _passes(given: dict[str, Steps]) -> list[Pass]:
    from turbine.passes import PASSES

    ordered = sorted((step.position, name, step.text) for name in given for step in given[name])
    return [PASSES[name].parse(text) for _, name, text in ordered]


def _read(path: Path) -> Module:
    from turbine.mlir import context

    return context.parse(sys.stdin.buffer.read()) if path == Path("-") else context.read(path)


def _write(module: Module, output: Path | None) -> None:
    from turbine.mlir import context
    from turbine.runtime import container

    if output is None:
        sys.stdout.write(context.to_text(module))
        return
    with container.replace_file(output) as file:
        file.write(context.to_bytes(module, output.suffix))
    print(output)
