"""Compile graphs on CUDA tensors: groups of ops become kernels, PyTorch runs the others.

Note [Kernels or PyTorch]
At the first call of a group its kernel is compiled and timed beside PyTorch's ops on the tensors of
that call, and the faster one stays. So a kernel never makes a graph slower.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import inf
from typing import Any

import torch
from torch import Tensor, fx

from turbine import config
from turbine.capture import work
from turbine.capture.partition import Part, attributes_of, is_compute, make_part
from turbine.dynamo.gpu_groups import Group, find_groups
from turbine.dynamo.graphs import Boxed, box, place_of
from turbine.dynamo.quick_ops import copy_strided, empty_on, use_quick_ops
from turbine.dynamo.records import GraphRecord, LeftOp
from turbine.dynamo.totals import add
from turbine.kernel.backends.triton.compilation import ALIGNMENT
from turbine.kernel.call.gpu_launcher import Launch
from turbine.library import fused, fusion_rules
from turbine.library.fused import FusedKernel

log = logging.getLogger(__name__)

REASON = "PyTorch's own op, on the GPU"
_WITHOUT_TRITON = "kernels need Triton: pip install turbine[cuda]"
# Calls that are timed together, and how often.
_CALLS, _TURNS = 8, 3


def is_on_gpu(example_inputs: Sequence[Any], graph: fx.Graph) -> bool:
    """Whether a graph that Dynamo traced has CUDA tensors."""
    values = [*example_inputs, *(node.meta.get("example_value") for node in graph.nodes)]
    return any(isinstance(value, Tensor) and value.is_cuda for value in values)


def compile_graph(graph: fx.GraphModule, record: GraphRecord, choice: str) -> Boxed:
    """Compile a graph of AOTAutograd to a callable that takes a list of arguments and clears it.

    `choice` is the option `library_calls`.
    """
    reason = REASON if find_spec("triton") is not None else _WITHOUT_TRITON
    is_left = choice == "always" or reason is _WITHOUT_TRITON
    fused_graph = graph if is_left else fuse(graph, record, choice == "never")
    parts = [part for part in record.parts if isinstance(part, FusedPart)]
    inside = {node.name for part in parts for node in _computing(part.eager.graph)}
    nodes = [node for node in graph.graph.nodes if is_compute(node) and node.name not in inside]
    record.left.extend(LeftOp(str(node.target), reason, place_of(node), True) for node in nodes)
    add(graphs=1, library_calls=len(nodes))
    use_quick_ops(fused_graph)
    return box(fused_graph)


def fuse(
    graph: fx.GraphModule, record: GraphRecord, is_forced: bool, device: str = "cuda"
) -> fx.GraphModule:
    """A graph with calls of kernels in place of groups of ops; the kernels are parts of a record.

    They are called without being timed if `is_forced`.
    """
    graph.graph.eliminate_dead_code()
    kernels: dict[fx.Node, FusedKernel] = {}
    groups = []
    for group in find_groups(graph.graph, device):
        try:
            kernel = fused.write_kernel(group.space, group.nodes, group.outputs())
        except Exception as error:  # of a rule that a dtype or a shape breaks
            if config.current().raise_faults:
                raise
            log.info("a group of ops runs in PyTorch: %s", error)
            continue
        groups.append(group)
        kernels[group.last_op] = kernel
    return _Rewrite(graph, groups, kernels, record, is_forced).run()


class _Rewrite:
    """Builds a graph in which kernels are called as soon as all that they read is there."""

    def __init__(
        self,
        whole: fx.GraphModule,
        groups: Sequence[Group],
        kernels: Mapping[fx.Node, FusedKernel],
        record: GraphRecord,
        is_forced: bool,
    ) -> None:
        self.whole = whole
        self.kernels = kernels
        self.record = record
        self.is_forced = is_forced
        self.group_of = {node: group for group in groups for node in group.nodes}
        self.place = {node: place for place, node in enumerate(whole.graph.nodes)}
        self.made = fx.Graph()
        self.parts: dict[str, FusedPart] = {}
        self.value: dict[fx.Node, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """The new graph."""
        for node in self.whole.graph.nodes:
            group = self.group_of.get(node)
            if group is None:
                self._of(node)
            elif node is group.last_op:
                # Here at the latest: an op that comes later may write what it reads.
                self._call(group)
        self.record.parts.extend(self.parts.values())
        made = fx.GraphModule({**attributes_of(self.whole), **self.parts}, self.made)
        made.graph.eliminate_dead_code()  # views that kernels read through
        made.recompile()
        return made

    def _of(self, node: fx.Node) -> fx.Node:
        """The node in the new graph."""
        if node not in self.value:
            group = self.group_of.get(node)
            if group is not None:
                self._call(group)
            else:
                for one in node.all_input_nodes:
                    self._of(one)
                self.value[node] = self.made.node_copy(node, self.value.__getitem__)
        return self.value[node]

    def _call(self, group: Group) -> None:
        kernel = self.kernels[group.last_op]
        if kernel.outputs[0] in self.value:
            return
        given = tuple(self._of(base) for base in kernel.inputs)
        part = FusedPart(self._cut_out(group, kernel), kernel, self.record, self.is_forced)
        name = f"kernel_{len(self.parts)}"
        self.parts[name] = part
        call = self.made.call_module(name, given)
        for place, node in enumerate(kernel.outputs):
            item = self.made.call_function(operator.getitem, (call, place))
            item.meta = dict(node.meta)
            self.value[node] = item

    def _cut_out(self, group: Group, kernel: FusedKernel) -> Part:
        """The ops of a group, with the views and constants that they read."""
        inner, pending = set(group.nodes), list(group.nodes)
        while pending:
            for one in pending.pop().all_input_nodes:
                if one not in inner and one not in kernel.inputs:
                    inner.add(one)
                    pending.append(one)
        ordered = sorted(inner, key=self.place.__getitem__)
        inputs = list(dict.fromkeys(kernel.inputs))
        return make_part(self.whole, ordered, inputs, kernel.outputs)


@dataclass(frozen=True)
class CompiledKernel:
    """How a kernel was compiled, for reports."""

    strategy: str
    seconds: float
    cached: bool = False


class FusedPart(torch.nn.Module):
    """A group of ops, as a module of the graph around it: a kernel, or PyTorch's ops.

    See Note [Kernels or PyTorch].
    """

    def __init__(
        self, part: Part, kernel: FusedKernel, record: GraphRecord, is_forced: bool
    ) -> None:
        super().__init__()
        self.eager = part.graph
        self.kernel = kernel
        self.ops = Counter(str(node.target) for node in _computing(part.graph.graph))
        self.mflop = work.mflop(part.graph.graph)
        self.megabytes = work.megabytes((*part.inputs, *part.results))
        self.kernels = Counter({kernel.kernel.__name__: 1})
        self.compiled: CompiledKernel | None = None
        self._record = record
        self._is_forced = is_forced
        # The eager graph takes a tensor that is read twice once.
        self._places = [kernel.inputs.index(one) for one in dict.fromkeys(kernel.inputs)]
        self._call: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None
        self._deciding = threading.Lock()

    def __call__(self, *bases: Tensor) -> Sequence[Tensor]:
        return (self._call or self._decide(bases))(bases)

    def wait(self) -> None:
        """Compile the kernel, if the graph has not been called yet."""
        if self._call is None:
            values = [node.meta["val"] for node in self.kernel.inputs]
            zeros = [
                torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device).zero_()
                for v in values
            ]
            self._decide(zeros)

    def _decide(self, bases: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Compile the kernel, and choose it if it is faster than PyTorch's ops."""
        with self._deciding:
            if self._call is None:
                self._call = self._choose(bases)
        return self._call

    def _choose(self, bases: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        started = time.perf_counter()
        call = KernelCall(self.kernel)
        try:
            call(bases)
        except Exception as error:
            if config.current().raise_faults:
                raise
            log.warning("a group of ops runs in PyTorch: its kernel fails", exc_info=error)
            return self._leave(f"its kernel fails: {error}".splitlines()[0], is_chosen=False)
        seconds = time.perf_counter() - started
        if not self._is_forced and not torch.cuda.is_current_stream_capturing():
            compiled, library = _compare(lambda: call(bases), lambda: self._run_eager(bases))
            if library < compiled:
                times = f"in {1e6 * library:.3g} us, in one kernel in {1e6 * compiled:.3g} us"
                return self._leave(f"PyTorch runs these ops faster: {times}", is_chosen=True)
        self.compiled = CompiledKernel("triton", seconds)
        add(parts=1, ops_compiled=self.ops.total())
        return call

    def _leave(
        self, reason: str, *, is_chosen: bool
    ) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Run the ops in PyTorch."""
        nodes = _computing(self.eager.graph)
        left = [LeftOp(str(node.target), reason, place_of(node), is_chosen) for node in nodes]
        self._record.left.extend(left)
        add(**{"library_calls" if is_chosen else "ops_in_pytorch": len(nodes)})
        return self._run_eager

    def _run_eager(self, bases: Sequence[Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = self.eager(*[bases[place] for place in self._places])
        return results


def _computing(graph: fx.Graph) -> list[fx.Node]:
    """The ops of a group, without views and constants."""
    return [node for node in graph.nodes if node.target in fusion_rules.RULES]


def _compare(kernel: Callable[[], object], library: Callable[[], object]) -> tuple[float, float]:
    """The least seconds of either: of a call, and of the GPU alone, which count the same."""
    best = dict.fromkeys((kernel, library), (inf, inf))
    for _ in range(_TURNS):
        for call, (whole, on_gpu) in best.items():
            best[call] = min(whole, _seconds_of(call)), min(on_gpu, _seconds_on_gpu(call))
    return sum(best[kernel]), sum(best[library])


def _seconds_of(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / _CALLS


def _seconds_on_gpu(call: Callable[[], object]) -> float:
    """The time between calls that were all launched before the first one began."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_HEAD_START)
    start.record()
    for _ in range(_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / _CALLS


# Cycles in which the calls of a turn are launched: about a millisecond.
_HEAD_START = 2_000_000


class KernelCall:
    """Calls the kernel of a group on the tensors that it reads, and makes its results.

    Code is bound once for each alignment of the tensors: dtypes, shapes and strides are those of
    the graph.
    """

    def __init__(self, fused_kernel: FusedKernel) -> None:
        self._fused = fused_kernel
        self._kernel = fused_kernel.kernel
        self._names = [f"x{n}" for n in range(len(fused_kernel.inputs))]
        values = [node.meta["val"] for node in fused_kernel.inputs]
        self._strides = [tuple(value.stride()) for value in values]
        pairs = zip(fused_kernel.regions, values, strict=True)
        self._offsets = [region.offset * value.element_size() for region, value in pairs]
        made = [node.meta["val"] for node in fused_kernel.outputs]
        self._results = [(tuple(v.shape), tuple(v.stride()), v.dtype) for v in made]
        self._device = made[0].device
        self._launches: dict[tuple[bool, ...], tuple[Launch, list[int], list[int]]] = {}

    def __call__(self, bases: Sequence[Tensor]) -> list[Tensor]:
        """The results."""
        if [base.stride() for base in bases] != self._strides:
            bases = self._restride(bases)
        pointers = [base.data_ptr() + o for base, o in zip(bases, self._offsets, strict=True)]
        aligned = tuple([not pointer % ALIGNMENT for pointer in pointers])
        bound = self._launches.get(aligned)
        if bound is None:
            bound = self._launches[aligned] = self._bind(bases)
        launch, places, outputs = bound
        values = launch.values.copy()
        for place, pointer in zip(places, pointers, strict=True):
            values[place] = pointer
        device = self._device
        results = [empty_on(device, *result) for result in self._results]
        for place, result in zip(outputs, results, strict=True):
            values[place] = result
        launch.start(values)
        return results

    def _bind(self, bases: Sequence[Tensor]) -> tuple[Launch, list[int], list[int]]:
        """A launch, and the places of tensors that it reads and writes among its arguments."""
        named = dict(zip(self._names, self._fused.views(bases), strict=True))
        resolve = partial(self._kernel.resolve_call, named, "cuda")
        _, launch = self._kernel.gpu.bind(named, self._device, resolve)
        place_of_name = {name: place for place, name in launch.tensors}
        made = [one.place for one in launch.new_tensors if one.kind == "output"]
        return launch, [place_of_name[name] for name in self._names], made

    def _restride(self, bases: Sequence[Tensor]) -> list[Tensor]:
        """Tensors with the strides of the graph, where an op has returned others."""
        return [
            base if base.stride() == strides else copy_strided(base, strides)
            for base, strides in zip(bases, self._strides, strict=True)
        ]
