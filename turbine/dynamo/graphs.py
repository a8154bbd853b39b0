"""Compile one graph of AOTAutograd's: parts for the compiler, the rest in PyTorch, boxed."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from turbine import config, errors
from turbine.capture import passes, support
from turbine.capture.partition import LEAST_OPS, Part, is_compute, partition
from turbine.dynamo import failure_cache, parts
from turbine.dynamo.library import LibraryCalls
from turbine.dynamo.op_probe import find_refused
from turbine.dynamo.records import GraphRecord, LeftOp
from turbine.dynamo.totals import add
from turbine.lower.importer import user_line

log = logging.getLogger(__name__)

Boxed = Callable[[list[Any]], Sequence[Any]]
# A graph on which the compiler fails more often than this runs in PyTorch.
_PATIENCE = 24
# How many steps away from an op a neighbour may be whose line stands for it.
_NEAR = 3


@dataclass
class _Whole:
    """What the parts of one graph share."""

    record: GraphRecord
    settings: dict[str, Any]
    calls: LibraryCalls
    fixed: AbstractSet[str]  # placeholders of weights, which stay where they are between calls
    failures: int = 0


def compile_graph(
    graph: fx.GraphModule,
    record: GraphRecord,
    settings: dict[str, Any],
    calls: LibraryCalls,
    fixed: AbstractSet[str],
) -> Boxed:
    """A callable that takes a list, empties it, and gives the graph's results."""
    passes.clean(graph)
    outer = _assemble(graph, _Whole(record, settings, calls, fixed), {})
    add(graphs=1)
    return _box(outer)


def leave_to_pytorch(graph: fx.GraphModule, record: GraphRecord, reason: str) -> Callable[..., Any]:
    """The graph as Dynamo traced it, with the reason on record."""
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
    record.left.extend(LeftOp(_name(node), reason, _place(node)) for node in nodes)
    add(graphs=1, ops_in_pytorch=len(nodes))
    forward: Callable[..., Any] = graph.forward
    return forward


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _assemble(
    graph: fx.GraphModule, whole: _Whole, refused: dict[str, str], cut: int | None = None
) -> fx.GraphModule:
    """The graph with a module under compilation in place of each part."""
    with config.override(**whole.settings):
        chosen = whole.calls.reasons(n for n in graph.graph.nodes if n.name not in refused)
        reasons = _obstacles(graph, refused) | chosen
        split = partition(graph, lambda node: node not in reasons, cut=cut)
        for name, part in split.parts.items():
            module = parts.PartModule(part, whole.fixed, partial(_without_culprit, part, whole))
            split.outer.add_submodule(name, module)
            whole.record.parts.append(module)
    _record_left(graph, split.parts.values(), reasons, chosen.keys(), whole.record)
    return split.outer


def _obstacles(graph: fx.GraphModule, refused: dict[str, str]) -> dict[fx.Node, str]:
    """Why some nodes have to run in PyTorch."""
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    known = {node: refused.get(node.name) or support.obstacle(node) for node in nodes}
    reasons = {node: reason for node, reason in known.items() if reason is not None}
    return reasons | failure_cache.refusals(node for node in nodes if node not in reasons)


def _record_left(
    graph: fx.GraphModule,
    compiled: Any,
    reasons: dict[fx.Node, str],
    chosen: AbstractSet[fx.Node],
    record: GraphRecord,
) -> None:
    inside = {n.name for part in compiled for n in part.graph.graph.nodes if is_compute(n)}
    for node in graph.graph.nodes:
        if is_compute(node) and node.name not in inside:
            reason = reasons.get(node, f"in a part of fewer than {LEAST_OPS} ops")
            record.left.append(LeftOp(str(node.target), reason, _place(node), node in chosen))
            add(**{"library_calls" if node in chosen else "ops_in_pytorch": 1})


def _place(node: fx.Node) -> str | None:
    """The user's line; for what autograd adds, such as sums of gradients, that of a neighbour."""
    ring = {node: None}
    for _ in range(_NEAR):
        for near in ring:
            if (where := user_line(near)) is not None:
                return where
        ring = {n: None for near in ring for n in (*near.all_input_nodes, *near.users)}
    return None


def _without_culprit(
    part: Part, whole: _Whole, error: errors.TurbineError
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What to call in place of a part that does not compile: smaller ones, or PyTorch."""
    log.info("a part did not compile: %s", error)
    add(compile_failures=1)
    whole.failures += 1
    compute = [node for node in part.graph.graph.nodes if is_compute(node)]
    if isinstance(error, errors.LinkerError):
        errors.warn(f"torch.compile runs the model in PyTorch: {error}")
        outer = _assemble(part.graph, whole, {node.name: error.fact for node in compute})
    elif whole.failures > _PATIENCE:
        everything = {node.name: "the compiler failed too often" for node in compute}
        outer = _assemble(part.graph, whole, everything)
    elif refused := _find_refused(part, error):
        outer = _assemble(part.graph, whole, refused)
    else:
        outer = _assemble(part.graph, whole, {}, cut=len(compute) // 2)
    return lambda args: outer(*args)


def _find_refused(part: Part, error: errors.TurbineError) -> dict[str, str]:
    """The ops that the error blames, or that are refused alone, with the reason."""
    nodes = [node for node in part.graph.graph.nodes if node.op == "call_function"]
    blamed = {node: error.fact for node in nodes if node.name == parts.node_name_of(error.where)}
    if not blamed and isinstance(error, errors.UnsupportedOpInIR):
        ops = [node for node in nodes if node.target is not operator.getitem]
        blamed = find_refused({failure_cache.key(node): node for node in ops}.values())
    if not blamed and len(nodes) == 1:
        blamed = {nodes[0]: error.fact}
    reasons = {
        node: f"the compiler refused it: {why.splitlines()[0]}" for node, why in blamed.items()
    }
    if _is_proven(error, len(nodes)):
        for node, reason in reasons.items():
            failure_cache.remember(node, reason)
    return {node.name: reason for node, reason in reasons.items()}


def _is_proven(error: errors.TurbineError, op_count: int) -> bool:
    """Whether ops are at fault by themselves, whatever stands around them: to be remembered."""
    names_them = isinstance(error, (errors.UnsupportedOp, errors.UnsupportedOpInIR))
    return failure_cache.is_lasting(error) and (names_them or op_count == 1)


def _box(outer: fx.GraphModule) -> Boxed:
    _hide_views(outer.graph)
    outer.graph.set_codegen(_BoxedCode())
    outer.recompile()
    forward = outer.forward

    def call(args: list[Any]) -> Sequence[Any]:
        results: Sequence[Any] = forward(args)
        return results

    call._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd knows
    return call


def _hide_views(graph: fx.Graph) -> None:
    """Give views that are results out as tensors of their own.

    Rules of ours end in views where the op they stand for does not, and autograd forbids to write
    to a view that a function like AOTAutograd's returns. It makes views of what it knows of anew.
    """
    (output,) = (node for node in graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
            with graph.inserting_before(output):
                output.replace_input_with(node, graph.call_function(_without_base, (node,)))


def _without_base(view: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowADInplaceOrView():
        alone: torch.Tensor = torch.ops.aten.alias.default(view)
        return alone


class _BoxedCode(fx.graph.CodeGen):
    """Code that takes its arguments out of a list, so that each can be freed after its last use."""

    def gen_fn_def(self, free_vars: list[str], *_: Any, **__: Any) -> str:
        names = [variable.partition(":")[0].strip() for variable in free_vars]
        taken = "".join(f"{name}, " for name in names if name != "self")
        unpacked = f"\n    {taken}= args\n    args.clear()" if taken else ""
        return f"def forward(self, args):{unpacked}"
