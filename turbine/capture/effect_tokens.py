"""Remove effect tokens from an exported program; checks of factorizations become assertions.

PyTorch threads a token through ops with effects to keep their order. Compiled code keeps the order
of its assertions without one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.export.graph_signature import InputKind

from turbine.capture.rules.linear_algebra import failure

aten = torch.ops.aten


def drop_tokens(program: ExportedProgram) -> None:
    """Rewrite a program and its signature in place."""
    if any(spec.kind == InputKind.TOKEN for spec in program.graph_signature.input_specs):
        _remove_effect_tokens(program)
    checks = program.graph.find_nodes(op="call_function", target=aten._linalg_check_errors.default)
    for check in checks:
        _assert_success(program.graph, check)


def _assert_success(graph: fx.Graph, check: fx.Node) -> None:
    """Assert that the error code of every matrix is 0, as PyTorch's op does."""
    info, name = check.args[:2]
    assert isinstance(info, fx.Node)
    assert isinstance(name, str)
    with graph.inserting_before(check):
        zero = _call(graph, check, aten.eq.Scalar, info, 0)
        holds = _call(graph, check, aten.all.default, zero)
        assertion = graph.call_function(aten._assert_async.msg, (holds, failure(name)))
        assertion.meta = dict(check.meta)
    graph.erase_node(check)


def _call(graph: fx.Graph, beside: fx.Node, target: Any, value: fx.Node, *rest: Any) -> fx.Node:
    node = graph.call_function(target, (value, *rest))
    node.meta = {**beside.meta, "val": target(value.meta["val"], *rest)}
    return node
