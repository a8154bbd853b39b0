"""Give an exported program a random state: a buffer with the seed and a counter of numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from turbine import errors
from turbine.capture.decompositions import Table
from turbine.capture.effects import draws
from turbine.capture.nodes import inline, put_in_place
from turbine.capture.random_ops import COUNTED, CountedRandom, Stream

STATE = "random_state"  # the name of the buffer


def keep_whole(table: Table) -> Table:
    """The table without rules for the random ops that are counted."""
    return {op: rule for op, rule in table.items() if op not in COUNTED}


def count_random(exported: ExportedProgram, stream: Stream, seed: int, table: Table) -> None:
    """Replace random ops by draws from a stream, whose state is a buffer of the program."""
    graph = exported.graph
    drawing = [node for node in graph.nodes if draws(node.target)]
    _check_branches(exported)
    if not drawing:
        return
    tensor = stream.initial_state(seed)
    place = _add_place(graph, tensor)
    state: fx.Node = place
    for node in drawing:
        state = _replace(node, state, stream, table)
    _add_to_signature(exported, place, state, tensor)
    exported.graph_module.recompile()


def _check_branches(exported: ExportedProgram) -> None:
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule) and module is not exported.graph_module:
            for node in module.graph.nodes:
                if draws(node.target):
                    raise errors.UnsupportedOp(
                        f"{node.target} draws random numbers in a branch or a loop",
                        where=errors.line_of_trace(node.stack_trace),
                        hint="draw them outside, and pass them to the branch as an operand",
                    )


def _add_place(graph: fx.Graph, tensor: Tensor) -> fx.Node:
    values = (node.meta.get("val") for node in graph.nodes)
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), FakeTensorMode())
    with graph.inserting_before(next(iter(graph.nodes))):
        place = graph.placeholder(STATE)
    place.meta["val"] = mode.from_tensor(tensor)
    return place


def _replace(node: fx.Node, state: fx.Node, stream: Stream, table: Table) -> fx.Node:
    """Replace a random op; returns the state after it."""
    operands = list(node.all_input_nodes)
    op: Any = node.target

    def call(before: Tensor, *values: Any) -> tuple[Any, Tensor]:
        given = dict(zip(operands, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        random = CountedRandom(before, stream)
        with random:
            result = op(*args, **kwargs)
        return result, random.next_state()

    try:
        result, after = inline(node, call, [state, *operands], table)
        assert isinstance(after, fx.Node)
    except errors.UnsupportedOp as error:
        raise errors.UnsupportedOp(
            error.fact, where=errors.line_of_trace(node.stack_trace), hint=error.hint
        ) from error
    put_in_place(node, result)
    return after


def _add_to_signature(
    exported: ExportedProgram, place: fx.Node, state: fx.Node, tensor: Tensor
) -> None:
    signature = exported.graph_signature
    given, left = TensorArgument(name=place.name), TensorArgument(name=state.name)
    signature.input_specs.insert(0, InputSpec(InputKind.BUFFER, given, STATE, persistent=True))
    signature.output_specs.insert(0, OutputSpec(OutputKind.BUFFER_MUTATION, left, STATE))
    (output,) = exported.graph.find_nodes(op="output")
    output.args = ((state, *output.args[0]),)
    exported.state_dict[STATE] = tensor
