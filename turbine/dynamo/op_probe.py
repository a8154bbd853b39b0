"""Test whether single ops compile, with the types they have in a graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import fx

from turbine import config, errors
from turbine.capture.control_flow import body_at
from turbine.capture.program import Region
from turbine.compiler import diagnostics, host, invoke, session, strategies
from turbine.compiler.invoke import Job
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import lower
from turbine.mlir import context as mlir_context


def find_refused(nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """The nodes that do not compile alone, with the reason."""
    reasons: dict[fx.Node, str] = {}
    with ExitStack() as stack:
        jobs: dict[fx.Node, Job] = {}
        for node in nodes:
            try:
                module = lower(_isolate(node), TargetQuery(host.default_target)).module
                mlir_context.verify(module)
            except (errors.UnsupportedOp, errors.CompileError) as error:
                reasons[node] = error.fact
                continue
            source = mlir_context.to_bytecode(module)
            request = session.Request(source, strategies.COMMON, until=session.INPUT_CONVERTED)
            jobs[node] = stack.push(invoke.begin(request))
        for node, job in jobs.items():
            try:
                outcome = job.result(config.current().compile_timeout)
            except errors.CompileError as error:
                reasons[node] = error.fact
                continue
            if outcome.data is None:
                said = diagnostics.first_error(outcome.diagnostics)
                reasons[node] = said.message if said is not None else "no reason given"
    return reasons


def _isolate(node: fx.Node) -> Region:
    """A graph of one op, with its operands as placeholders."""
    graph = fx.Graph()
    value: dict[fx.Node, fx.Node] = {}
    for argument in node.all_input_nodes:
        if body_at(argument) is not None:
            value[argument] = graph.node_copy(argument)
            continue
        value[argument] = graph.placeholder(argument.name)
        value[argument].meta = {"val": argument.meta["val"]}
    op = graph.node_copy(node, value.__getitem__)
    module = fx.GraphModule(node.graph.owning_module or torch.nn.Module(), graph)
    inputs = tuple(place.name for place in graph.find_nodes(op="placeholder"))
    return Region(module, inputs, _results(graph, op))


def _results(graph: fx.Graph, op: fx.Node) -> tuple[fx.Node, ...]:
    several = op.meta["val"]
    if not isinstance(several, (tuple, list)):
        return (op,)
    picked = []
    for index, one in enumerate(several):
        if isinstance(one, torch.Tensor):
            picked.append(graph.call_function(operator.getitem, (op, index)))
            picked[-1].meta = {"val": one}
    return tuple(picked)
