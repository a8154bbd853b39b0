"""Merged modules: names, collisions and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import iree.runtime
import numpy
import pytest

from tests.passes.modules import TWO, parse, refusal
from turbine import errors
from turbine.mlir import context
from turbine.mlir.ir import Module
from turbine.passes import Merge, Merger, run_passes


@pytest.mark.parametrize(
    ("source", "renames", "told"),
    [
        ("func.func @main() { return }", {}, "@main collides with @main: the target has that name"),
        (
            "func.func @f() { return }",
            {"f": "main"},
            "@f, renamed to @main, collides with @main: the target has that name",
        ),
        (
            "func.func @f() { return }\nfunc.func @g() { return }",
            {"f": "x", "g": "x"},
            "@g, renamed to @x, collides with @x: @f of the source has that name",
        ),
        ("func.func @f() { return }", {"g": "x"}, "unknown symbol to rename 'g'; valid: f"),
        (
            "util.global private @g = dense<0> : tensor<4xi32>",
            {"g": "a"},
            "@g cannot stand for @a: tensor<4xi32> is not tensor<4xf32>",
        ),
        (
            "util.global private mutable @g = dense<0.0> : tensor<4xf32>",
            {"g": "a"},
            "@g cannot stand for @a: mutable tensor<4xf32> is not tensor<4xf32>",
        ),
        (
            "func.func private @main() -> f32",
            {},
            "@main cannot stand for @main: () -> f32 is not () -> tensor<4xf32>",
        ),
    ],
)
def test_name_collisions_are_rejected(source: str, renames: dict[str, str], told: str) -> None:
    assert refusal([Merge(parse(source), renames)]).startswith(told)


def test_a_failed_merge_changes_nothing() -> None:
    target = parse()
    with target.context:
        source = context.parse(
            "func.func @f() { return } func.func @main() { return }", target.context
        )
    before = str(source), str(target)
    with pytest.raises(errors.TransformError):
        Merger(source, target).merge()
    assert (str(source), str(target)) == before


def test_a_merger_renames_and_swaps_names() -> None:
    target = parse()
    source = context.parse(
        """
        func.func private @helper() { return }
        func.func @f() { func.call @g() : () -> () return }
        func.func @g() { func.call @helper() : () -> () return }
        """,
        target.context,
    )
    merger = Merger(source, target, user_rename_map={"f": "g", "g": "f"})
    merger.merge()
    context.verify(target)
    assert [merger.translate_symbol(n) for n in ("f", "g", "helper")] == ["g", "f", "helper_1"]
    text = str(target)
    assert text.index("func.func @g()") < text.index("call @f()") < text.index("call @helper_1()")
    assert not list(source.body.operations)


def test_conflicting_module_attributes_are_rejected() -> None:
    told = refusal(
        [Merge(parse("module attributes {util.x = 1} {}"))],
        f"module attributes {{util.x = 2}} {{{TWO}}}",
    )
    assert told.splitlines() == [
        "the modules disagree about util.x: 1 : i64 and 2 : i64",
        "  hint: remove util.x from one of them",
    ]


@pytest.mark.run
def test_merged_functions_match_the_reference(tmp_path: Path) -> None:
    """The entry point calls the merged function."""
    library = """
        func.func private @add_one(%x: tensor<4xf32>) -> tensor<4xf32> {
          %one = arith.constant dense<1.0> : tensor<4xf32>
          %y = arith.addf %x, %one : tensor<4xf32>
          return %y : tensor<4xf32>
        }
    """
    declared = """
        func.func private @add_one(%x: tensor<4xf32>) -> tensor<4xf32>
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @add_one(%x) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
    """
    module = run_passes(parse(library), [Merge(parse(declared))])
    assert run_module(module, tmp_path, numpy.arange(4, dtype=numpy.float32)).tolist() == [
        1,
        2,
        3,
        4,
    ]


def run_module(module: Module, folder: Path, *inputs: Any) -> Any:
    """Compile plain IR and call its function main."""
    from turbine import target
    from turbine.compiler import pipeline

    compiled = pipeline.compile_ir(context.to_bytecode(module), target.parse("cpu"))
    (folder / "module.vmfb").write_bytes(compiled.data)
    loaded = iree.runtime.load_vm_flatbuffer_file(str(folder / "module.vmfb"), driver="local-sync")
    return loaded.main(*inputs).to_host()
