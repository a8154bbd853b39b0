"""Compile one AOTAutograd graph to a boxed callable: compiled parts, and fallbacks to PyTorch."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from turbine import config, errors
from turbine.capture import passes, support
from turbine.capture.effects import Mutation
from turbine.capture.partition import LEAST_OPS, Part, is_compute, partition
from turbine.dynamo import failure_cache, parts
from turbine.dynamo.in_place import place_updates
from turbine.dynamo.library import LibraryCalls
from turbine.dynamo.op_probe import find_refused
from turbine.dynamo.part_code import Weights
from turbine.dynamo.records import GraphRecord, LeftOp
from turbine.dynamo.totals import add
from turbine.lower.body import user_line

log = logging.getLogger(__name__)

Boxed = Callable[[list[Any]], Sequence[Any]]
# After more compile failures than this, what is left of a graph runs in PyTorch.
_MAX_FAILURES = 24
# How many edges away from an op to look for a node that has a source line.
_MAX_DISTANCE = 3


@dataclass
class _GraphState:
    """The state that the parts of one graph share."""

    record: GraphRecord
    settings: dict[str, Any]
    calls: LibraryCalls
    weights: Weights
    failures: int = 0


def compile_graph(
    graph: fx.GraphModule,
    record: GraphRecord,
    settings: dict[str, Any],
    calls: LibraryCalls,
    weights: Weights,
    updated: Mapping[int, str],
) -> Boxed:
    """Compile a graph to a callable that takes a list of arguments, clears it and gives results.

    The caller copies some results to inputs, {index: placeholder}, unless they are the inputs.
    """
    passes.clean(graph)
    with config.override(**settings):
        updates = place_updates(graph, updated)
    record.updates = len(updates)
    add(ops_compiled=sum(len(update.formula) for update in updates))
    outer = _assemble(graph, _GraphState(record, settings, calls, weights), {})
    add(graphs=1)
    return box(outer)


def leave_to_pytorch(
    graph: fx.GraphModule, record: GraphRecord, reason: str, *, is_chosen: bool = False
) -> Callable[..., Any]:
    """Run a graph as Dynamo traced it, and record the reason."""
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
    record.left.extend(LeftOp(_name(node), reason, place_of(node), is_chosen) for node in nodes)
    add(graphs=1, **{"library_calls" if is_chosen else "ops_in_pytorch": len(nodes)})
    # Otherwise every call would go through the one that generates the code on first use.
    _LazyGraphModule.force_recompile(graph)
    forward: Callable[..., Any] = graph.forward
    return forward


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _assemble(
    graph: fx.GraphModule, state: _GraphState, refused: dict[str, str], cut: int | None = None
) -> fx.GraphModule:
    """The graph with a `PartModule` in place of each part; parts compile in the background."""
    with config.override(**state.settings):
        nodes = [node for node in graph.graph.nodes if node.name not in refused]
        chosen = state.calls.reasons(nodes, state.weights.frozen)
        reasons = _obstacles(graph, refused) | chosen
        split = partition(
            graph,
            lambda node: node not in reasons,
            cut=cut,
            is_worth_a_part=state.calls.is_worth_a_part,
        )
        for name, part in split.parts.items():
            replace = partial(_replace_part, part, state)
            module = parts.PartModule(part, state.weights, replace, is_mixed=bool(chosen))
            split.outer.add_submodule(name, module)
            state.record.parts.append(module)
    _record_left(graph, split.parts.values(), reasons, chosen.keys(), state.record)
    return split.outer


def _obstacles(graph: fx.GraphModule, refused: dict[str, str]) -> dict[fx.Node, str]:
    """The nodes that cannot be compiled, with reasons."""
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
        if is_compute(node) and node.name not in inside and not isinstance(node.target, Mutation):
            reason = reasons.get(node, f"in a part of fewer than {LEAST_OPS} ops")
            record.left.append(LeftOp(str(node.target), reason, place_of(node), node in chosen))
            add(**{"library_calls" if node in chosen else "ops_in_pytorch": 1})


def place_of(node: fx.Node) -> str | None:
    """The user's line; that of a neighbour for ops autograd adds, such as sums of gradients."""
    ring = {node: None}
    for _ in range(_MAX_DISTANCE):
        for near in ring:
            if (where := user_line(near)) is not None:
                return where
        ring = {n: None for near in ring for n in (*near.all_input_nodes, *near.users)}
    return None


def _replace_part(
    part: Part, state: _GraphState, error: errors.TurbineError
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A callable in place of a part that does not compile: smaller parts, or PyTorch."""
    log.info("a part did not compile: %s", error)
    add(compile_failures=1)
    state.failures += 1
    compute = [node for node in part.graph.graph.nodes if is_compute(node)]
    if isinstance(error, errors.LinkerError):
        errors.warn(f"torch.compile runs the model in PyTorch: {error}")
        outer = _assemble(part.graph, state, {node.name: error.fact for node in compute})
    elif state.failures > _MAX_FAILURES:
        everything = {node.name: "the compiler failed too often" for node in compute}
        outer = _assemble(part.graph, state, everything)
    elif refused := _find_refused(part, error):
        outer = _assemble(part.graph, state, refused)
    else:
        outer = _assemble(part.graph, state, {}, cut=len(compute) // 2)
    return lambda args: outer(*args)


def _find_refused(part: Part, error: errors.TurbineError) -> dict[str, str]:
    """The ops that the error names, or that do not compile alone, with reasons."""
    nodes = [node for node in part.graph.graph.nodes if node.op == "call_function"]
    compute = [node for node in nodes if is_compute(node)]
    blamed = {node: error.fact for node in nodes if node.name == parts.node_name_of(error.where)}
    if not blamed and isinstance(error, errors.UnsupportedOpInIR):
        ops = [node for node in nodes if node.target is not operator.getitem]
        blamed = find_refused({failure_cache.key(node): node for node in ops}.values())
    if not blamed and len(compute) == 1:
        blamed = {compute[0]: error.fact}
    reasons = {
        node: f"the compiler refused it: {why.splitlines()[0]}" for node, why in blamed.items()
    }
    if _is_proven(error, len(nodes)):
        for node, reason in reasons.items():
            failure_cache.remember(node, reason)
    return {node.name: reason for node, reason in reasons.items()}


def _is_proven(error: errors.TurbineError, op_count: int) -> bool:
    """Whether the ops fail in every graph, so that the failure may be cached."""
    names_them = isinstance(error, (errors.UnsupportedOp, errors.UnsupportedOpInIR))
    return failure_cache.is_lasting(error) and (names_them or op_count == 1)


def box(outer: fx.GraphModule) -> Boxed:
    """A graph as a callable that takes a list of arguments and clears it."""
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
    """Return tensors that autograd does not know as views in place of views.

    Some decompositions end in a view where the op itself does not, and autograd forbids writes to
    a view that a custom function, such as AOTAutograd's, returns. AOTAutograd recreates the views
    that the user's program returns.
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
    """Code that takes a list of arguments and clears it: each is freed after its last use."""

    def gen_fn_def(self, free_vars: list[str], *_: Any, **__: Any) -> str:
        names = [variable.partition(":")[0].strip() for variable in free_vars]
        taken = "".join(f"{name}, " for name in names if name != "self")
        unpacked = f"\n    {taken}= args\n    args.clear()" if taken else ""
        return f"def forward(self, args):{unpacked}"
