"""The torch.compile backend: AOTAutograd splits forward from backward, `graphs` compiles each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)

from turbine import config, errors
from turbine.capture.control_flow import is_control_flow
from turbine.capture.decompositions import Table, current_training_decompositions
from turbine.capture.late_rules import decompose_late, early_rules
from turbine.dynamo import aot_facts, gpu_graphs, graph_autotuning, onednn, records, small_graphs
from turbine.dynamo import options as backend_options
from turbine.dynamo.calibration import Seconds
from turbine.dynamo.graph_autotuning import AutotunedGraph
from turbine.dynamo.graphs import Boxed, compile_graph, leave_to_pytorch
from turbine.dynamo.library import LibraryCalls
from turbine.dynamo.records import GraphRecord
from turbine.dynamo.recurrence import use_kernels

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
        mode: "default", or "max-autotune" to measure strategies and keep the fastest. PyTorch's
            other modes are like one of these.

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
    is_on_gpu = gpu_graphs.is_on_gpu(example_inputs, graph.graph)
    with config.override(**settings):
        choice = config.current().library_calls
        if is_on_gpu:
            return _compile_for_gpu(graph, example_inputs, settings, choice)
        if config.current().library_calls == "auto" and small_graphs.is_small(graph.graph):
            return leave_to_pytorch(graph, records.new("eager"), small_graphs.REASON)
        tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
        is_training = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
        has_weights = any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors)
        is_frozen = config.current().freezing and not is_training and has_weights
        calls = LibraryCalls(choice, is_training=is_training, is_frozen=is_frozen)
    made: dict[GraphRecord, Boxed] = {}
    table = current_training_decompositions()
    has_bodies = any(map(is_control_flow, graph.graph.nodes))
    late = table if has_bodies else {}
    compiler = aot_autograd(
        fw_compiler=partial(_compile, "forward", settings, calls, late, made),
        bw_compiler=partial(_compile, "backward", settings, calls, late, made),
        inference_compiler=partial(_compile, "inference", settings, calls, late, made),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=calls.keep_whole(early_rules(table) if has_bodies else table),
    )
    trace_layers = partial(_trace_layers, compiler)
    return _trace(graph, example_inputs, settings, choice, trace_layers, made)


def _trace_layers(
    compiler: Callable[..., Any], graph: fx.GraphModule, inputs: Sequence[Any]
) -> Any:
    """Compile a graph by AOTAutograd, with kernels in place of recurrent layers."""
    return compiler(use_kernels(graph), inputs)


def _compile_for_gpu(
    graph: fx.GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any], choice: str
) -> Callable[..., Any]:
    """Compile a graph on CUDA tensors; the backward pass reads what PyTorch's would."""
    made: dict[GraphRecord, Boxed] = {}
    compiler = aot_autograd(
        fw_compiler=partial(_compile_on_gpu, "forward", settings, choice, made),
        bw_compiler=partial(_compile_on_gpu, "backward", settings, choice, made),
        inference_compiler=partial(_compile_on_gpu, "inference", settings, choice, made),
        partition_fn=default_partition,
        decompositions={},
    )
    return _trace(graph, example_inputs, settings, choice, compiler, made)


def _trace(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: dict[str, Any],
    choice: str,
    compiler: Callable[..., Any],
    made: Mapping[GraphRecord, Boxed],
) -> Callable[..., Any]:
    """Compile a graph; PyTorch runs it if it cannot be traced, or is faster there."""
    try:
        with config.override(**settings), onednn.switched_off():
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
    count = len(example_inputs)
    if [record.kind for record in made] == ["inference"] and aot_facts.is_bare(count):
        call = partial(_call_bare, *made.values())
    if choice != "auto" or not graph_autotuning.can_benchmark(graph):
        return call
    mutated = aot_facts.find_mutated(count)
    return AutotunedGraph(graph, call, mutated, settings, partial(_use_pytorch, graph, made.keys()))


def _call_bare(boxed: Boxed, *args: Any) -> Sequence[Any]:
    """Call a graph without what AOTAutograd does around it."""
    return boxed([*args])


def _use_pytorch(
    graph: fx.GraphModule, made: Collection[GraphRecord], seconds: Seconds
) -> Callable[..., Any]:
    """Run a graph in PyTorch, which is faster."""
    for record in made:
        record.is_dropped = True
    compiled, library = 1e3 * seconds.compiled, 1e3 * seconds.library
    reason = f"PyTorch runs the graph faster: in {library:.3g} ms, compiled in {compiled:.3g} ms"
    return leave_to_pytorch(graph, records.new("eager"), reason, is_chosen=True)


def _compile_on_gpu(
    kind: str,
    settings: dict[str, Any],
    choice: str,
    made: dict[GraphRecord, Boxed],
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
) -> Boxed:
    record = records.new(kind)
    with config.override(**settings):
        made[record] = gpu_graphs.compile_graph(graph, record, choice)
    return made[record]


def _compile(
    kind: str,
    settings: dict[str, Any],
    calls: LibraryCalls,
    late: Table,
    made: dict[GraphRecord, Boxed],
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
) -> Boxed:
    decompose_late(graph, late)
    is_inference = kind == "inference"
    weights = aot_facts.find_weights(graph, is_frozen=calls.is_frozen and is_inference)
    can_update = is_inference and not config.current().guard
    updated = aot_facts.find_updated() if can_update else {}
    record = records.new(kind)
    made[record] = compile_graph(graph, record, settings, calls, weights, updated)
    return made[record]
