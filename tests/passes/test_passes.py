"""Passes on IR: metadata, matchers, rewrites, and names of iree-turbine."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import iree.runtime
import pytest
import torch
from torch import nn

import turbine
from tests.passes.modules import LINEAR, parse, refusal
from turbine import errors
from turbine.compat.add_metadata import AddMetadataPass
from turbine.compat.mm_group_quant import MMGroupQuantRewriterPass
from turbine.compat.rename_parameters import RenameParametersPass
from turbine.compat.rewriter import Pass as PeerPass
from turbine.mlir import context, matchers, parameters, rewrites, symbols
from turbine.mlir.ir import Operation, Value
from turbine.mlir.parameters import Parameter
from turbine.passes import AddMetadata

# Metadata


@pytest.mark.run
def test_metadata_is_readable_at_run_time(tmp_path: Path) -> None:
    output = turbine.aot.export(nn.ReLU(), args=(torch.ones(2),))
    transformed = output.transform(AddMetadata("main", {"author": "me", "batch": 2}))
    transformed.compile(tmp_path / "x.vmfb")
    instance = iree.runtime.VmInstance()
    module = iree.runtime.VmModule.mmap(instance, str(tmp_path / "x.vmfb"))
    found = module.lookup_function("main").reflection
    assert {"author": "me", "batch": "2"}.items() <= found.items()


def test_metadata_for_an_unknown_function_is_rejected() -> None:
    told = refusal([AddMetadata("mian", {"a": "b"})])
    assert told == "unknown function 'mian'; valid: main, helper"


# Matching and rewriting


def test_children_are_matched_in_loops_but_not_in_other_modules() -> None:
    module = parse(
        """
        func.func @f(%c: i1) { scf.if %c { func.call @g() : () -> () } return }
        func.func private @g() { return }
        module @inner { func.func @h() { return } }
        """
    )
    functions = matchers.match_children(module, matchers.FuncOpMatcher())
    calls: matchers.NamedOpMatcher[Any] = matchers.NamedOpMatcher("func.call")
    assert len(functions) == 2
    assert len(matchers.match_children(functions, calls)) == 1


def test_global_loads_are_matched_through_conversions() -> None:
    module = parse(LINEAR)
    linear: matchers.NamedOpMatcher[Any] = matchers.NamedOpMatcher("torch.aten.linear")
    (match,) = matchers.match_children(module, linear)
    load = matchers.GlobalLoadMatcher(matchers.globals_of(module))(match.op.operands[1])
    assert load is not None
    assert load.resolved_global is not None
    assert (load.global_ref, load.resolved_global.sym_name) == ("w", "w")
    assert matchers.GlobalLoadMatcher()(match.op.operands[0]) is None


def test_nonterminating_patterns_are_rejected() -> None:
    module = parse(LINEAR)

    def again(op: Operation) -> Sequence[Value] | None:
        return [op.clone().result] if op.name == "torch.constant.none" else None

    with pytest.raises(errors.TransformError, match="still apply after 100 rounds"):
        rewrites.rewrite(module, [again])


# Names of the peer


def test_passes_run_under_their_iree_turbine_names() -> None:
    module = parse()
    RenameParametersPass(
        module.operation, rename_map={("model", "a"): ("s", "x"), "absent": "y"}
    ).run()
    assert AddMetadataPass(module, {"n": 1}, "main").run() is module
    peer = PeerPass(module)
    other = context.parse("func.func private @helper() { return }", module.context)
    assert peer.merge_module(other.operation).translate_symbol("helper") == "helper_1"
    peer.cleanup()
    assert [symbols.symbol_name(match.op) for match in peer.funcs] == ["main"]
    assert parameters.by_global(module) == {"a": Parameter("s", "x")}


def test_group_quantization_runs_under_its_iree_turbine_name() -> None:
    module = parse(LINEAR)
    MMGroupQuantRewriterPass(module.operation, group_size=32).run()
    assert "tensor<8x1x16xi8>" in str(module)


def test_the_examples_in_docstrings_run() -> None:
    names = "base rename_parameters add_metadata merge".split()
    modules = [f"turbine.passes.{name}" for name in names]
    modules += ["turbine.mlir.matchers", "turbine.mlir.rewrites"]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert [result.failed for result in results] == [0] * len(modules)
    assert all(result.attempted for result in results)
