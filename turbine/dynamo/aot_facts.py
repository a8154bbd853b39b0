"""What AOTAutograd knows about the graph that is being compiled, and does around its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta
from torch._guards import TracingContext

from turbine.dynamo.part_code import Weights


def _metadata() -> Any:
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def find_weights(graph: fx.GraphModule, *, is_frozen: bool) -> Weights:
    """The placeholders of parameters and buffers."""
    metadata = _metadata()
    if metadata is None:
        return Weights()
    names = {node.name for node in graph.graph.find_nodes(op="placeholder")}
    # Backward graphs keep the names of the forward graph's inputs: primals_1 is the first.
    indices = metadata.static_input_indices
    fixed = {f"primals_{index + 1}" for index in indices} | {f"arg{index}_1" for index in indices}
    # Placeholders of effect tokens come before those of inputs, and indices count them.
    tokens = len(metadata.tokens)
    written = [index for index in indices if metadata.input_info[index - tokens].mutates_data]
    frozen = fixed - {f"arg{index}_1" for index in written} if is_frozen else set()
    return Weights(fixed & names, frozen & names)


def find_updated() -> Mapping[int, str]:
    """The results that AOTAutograd copies to inputs, which come first, and these inputs."""
    metadata = _metadata()
    if metadata is None or metadata.tokens:
        return {}
    # AOTAutograd names the placeholders of an inference graph so.
    return {
        result: f"arg{index}_1"
        for result, index in enumerate(metadata.mutated_inp_runtime_indices)
        if metadata.input_info[index].mutates_data
        and not metadata.input_info[index].mutates_metadata
    }


def find_mutated(count: int) -> set[int]:
    """The arguments that a graph writes to, of this many; negative ones are tensors of its own."""
    metadata = _metadata()
    infos = [] if metadata is None else metadata.input_info
    own = len(infos) - count
    return {index - own for index, info in enumerate(infos) if info.mutates_data}


def is_bare(count: int) -> bool:
    """Whether a graph for inference, with this many arguments, can be called as it is.

    That is so unless AOTAutograd passes it other tensors, writes to arguments, or makes views of
    arguments and results.
    """
    metadata = _metadata()
    return (
        metadata is not None
        and len(metadata.input_info) == count
        and not metadata.mutated_inp_runtime_indices
        and not metadata.num_intermediate_bases
        and not metadata.tokens
        and not metadata.num_graphsafe_rng_states
        and metadata.grad_enabled_mutation is None
        and all(info.output_type is OutputType.non_alias for info in metadata.output_info)
        and all(isinstance(meta, PlainTensorMeta) for meta in metadata.subclass_inp_meta)
        and not any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    )
