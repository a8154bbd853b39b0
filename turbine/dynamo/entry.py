"""The torch.compile backend: AOTAutograd splits forward from backward, `graphs` compiles each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from turbine import config, errors
from turbine.capture.decompositions import current_training_decompositions
from turbine.dynamo import onednn, records, recurrence, small_graphs
from turbine.dynamo import options as backend_options
from turbine.dynamo.graphs import Boxed, compile_graph, leave_to_pytorch
from turbine.dynamo.library import LibraryCalls
from turbine.dynamo.part_code import Weights

log = logging.getLogger(__name__)

# Without this Dynamo breaks the graph at nn.RNN, nn.GRU and nn.LSTM, silently. It reads the setting
# before it calls a backend, so it cannot be scoped to one compile.
torch._dynamo.config.allow_rnn = True


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo traced; what `torch.compile(model, backend="turbine")` calls.

    Args:
        graph: the graph.
        example_inputs: its inputs, as fake tensors.
        options: options of `turbine.config` for this function alone, `torch.compile(options=...)`;
            docs/torch_compile.md lists them.
        mode: "default", or "max-autotune" to measure strategies and keep the fastest.

    Returns:
        A function with the graph's inputs and results. Ops that cannot be compiled, or that
        PyTorch's library runs faster, run in PyTorch.

    Raises:
        ConfigError: for an unknown option, mode or value.

    >>> import torch
    >>> double = torch.compile(lambda x: 2 * x, backend="turbine")
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    settings = backend_options.check(options, mode)
    reason = recurrence.too_long(graph.graph)
    if reason is not None:
        return leave_to_pytorch(graph, records.new("eager"), reason)
    with config.override(**settings):
        if config.current().library_calls == "auto" and small_graphs.is_small(graph.graph):
            return leave_to_pytorch(graph, records.new("eager"), small_graphs.REASON)
        tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
        is_training = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
        has_weights = any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors)
        is_frozen = config.current().freezing and not is_training and has_weights
        choice = config.current().library_calls
        calls = LibraryCalls(choice, is_training=is_training, is_frozen=is_frozen)
        with onednn.switched_off():
            keeps_lstm = calls.keeps_lstm(graph.graph)
        if keeps_lstm and is_training:
            return leave_to_pytorch(graph, records.new("eager"), recurrence.FASTER)
    compiler = aot_autograd(
        fw_compiler=partial(_compile, "forward", settings, calls),
        bw_compiler=partial(_compile, "backward", settings, calls),
        inference_compiler=partial(_compile, "inference", settings, calls),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=calls.keep_whole(current_training_decompositions()),
    )
    try:
        tracing = nullcontext() if keeps_lstm else onednn.switched_off()
        with config.override(**settings), tracing:
            call: Callable[..., Any] = compiler(graph, example_inputs)
    except TorchDynamoException:
        raise  # control flow within PyTorch
    except Exception as error:
        # An error of Turbine's own has a message for users; others are logged with a traceback.
        is_known = isinstance(error, errors.TurbineError)
        if not is_known and config.current().raise_faults:
            raise
        log.log(
            logging.INFO if is_known else logging.WARNING,
            "a graph runs in PyTorch because it could not be traced: %s",
            error,
            exc_info=None if is_known else error,
        )
        reason = f"not traced: {type(error).__name__}: {error}".splitlines()[0]
        return leave_to_pytorch(graph, records.new("eager"), reason)
    return call


def _compile(
    kind: str,
    settings: dict[str, Any],
    calls: LibraryCalls,
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
) -> Boxed:
    weights = _weights(graph, is_frozen=calls.is_frozen and kind == "inference")
    updated = _updated() if kind == "inference" and not config.current().guard else {}
    return compile_graph(graph, records.new(kind), settings, calls, weights, updated)


def _updated() -> dict[int, str]:
    """The results that AOTAutograd copies to inputs, which come first, and these inputs."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return {}
    # AOTAutograd names the placeholders of an inference graph so.
    return {
        result: f"arg{index}_1"
        for result, index in enumerate(metadata.mutated_inp_runtime_indices)
        if metadata.input_info[index].mutates_data
        and not metadata.input_info[index].mutates_metadata
    }


def _weights(graph: fx.GraphModule, *, is_frozen: bool) -> Weights:
    """The placeholders of parameters and buffers."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return Weights()
    names = {node.name for node in graph.graph.find_nodes(op="placeholder")}
    # Backward graphs keep the names of the forward graph's inputs: primals_1 is the first.
    indices = metadata.static_input_indices
    fixed = {f"primals_{index + 1}" for index in indices} | {f"arg{index}_1" for index in indices}
    written = [index for index in indices if metadata.input_info[index].mutates_data]
    frozen = fixed - {f"arg{index}_1" for index in written} if is_frozen else set()
    return Weights(fixed & names, frozen & names)
