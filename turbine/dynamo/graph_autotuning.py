"""Time a compiled graph and PyTorch when the graph is first called, and keep the faster.

What one op takes is estimated when a graph is compiled (`library`); what the whole takes beside
PyTorch's own threads and allocator, forward and backward, is only known when it runs.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_leaves

from turbine import config
from turbine.capture.declared_ops import SPEAKING
from turbine.dynamo import calibration
from turbine.dynamo.calibration import Seconds
from turbine.ops.aliasing import has_memory

log = logging.getLogger(__name__)

Function = Callable[..., Any]
# PyTorch has to be faster by this share: measurements vary.
SHARE = 0.97
# Calls of a turn, turns, and seconds after which there are no more.
_CALLS, _TURNS, _LONGEST = 3, 2, 2.0
# Copies of arguments that the graph writes to.
_MOST_BYTES = 1 << 29
# Ops of others may have effects that a trial would repeat.
_NAMESPACES = {"aten", "prims", "tk"}


def can_benchmark(graph: fx.GraphModule) -> bool:
    """Whether a graph may be called for a trial: it has no effects but on its arguments."""
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    modules = [node for node in graph.graph.nodes if node.op == "call_module"]
    return not modules and all(map(_is_repeatable, targets))


def _is_repeatable(target: Any) -> bool:
    if isinstance(target, HigherOrderOperator):
        return False
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        packet = target if isinstance(target, OpOverloadPacket) else target.overloadpacket
        name = packet._qualified_op_name
        return name.partition("::")[0] in _NAMESPACES and name not in SPEAKING
    return True


class AutotunedGraph:
    """Calls a compiled graph, or PyTorch if it is faster.

    `mutated` are indices of the arguments that the graph writes to, and negative numbers for
    tensors of its own, `settings` the options that it was compiled with. When PyTorch is faster,
    `use_pytorch` gets the times, and returns what to call instead of `compiled`.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        compiled: Function,
        mutated: AbstractSet[int],
        settings: Mapping[str, Any],
        use_pytorch: Callable[[Seconds], Function],
    ) -> None:
        self._call = compiled
        self._mutated = mutated
        self._settings = settings
        # Until the first call, which decides.
        self._pending: tuple[fx.GraphModule, Callable[[Seconds], Function]] | None = (
            graph,
            use_pytorch,
        )
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """The results of the graph."""
        if self._pending is not None:
            with self._lock:
                pending, self._pending = self._pending, None
            if pending is not None and _can_repeat(args):
                with config.override(**self._settings):
                    self._decide(*pending, args)
        return self._call(*args)

    def _decide(
        self, graph: fx.GraphModule, use_pytorch: Callable[[Seconds], Function], args: Sequence[Any]
    ) -> None:
        writes_own = any(index < 0 for index in self._mutated)
        kept = [*graph.parameters(), *graph.buffers()] if writes_own else []
        copied = [*kept, *(args[index] for index in self._mutated if index >= 0)]
        if sum(tensor.nbytes for tensor in copied) > _MOST_BYTES:
            return
        kind = f"{calibration.GRAPH}{_digest(graph, args)}"
        seconds = calibration.recall(kind)
        if seconds is None:
            trials = [self._call, graph.forward]
            with _restored(kept):
                seconds = calibration.keep(kind, _measure(trials, args, self._mutated))
        if seconds.library < SHARE * seconds.compiled:
            self._call = use_pytorch(seconds)


def _digest(graph: fx.GraphModule, args: Sequence[Any]) -> str:
    """A name for a graph, the types of its arguments, and what its code depends on."""
    types = [
        (a.dtype, tuple(a.shape), a.stride(), a.requires_grad) if isinstance(a, Tensor) else a
        for a in args
    ]
    casts = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
    modes = torch.is_grad_enabled(), casts, config.current().freezing
    gpus = [torch.cuda.get_device_name(gpu) for gpu in _gpus_of(args)]
    return hashlib.sha256(repr((graph.code, types, modes, gpus)).encode()).hexdigest()[:16]


def _gpus_of(args: Sequence[Any]) -> list[torch.device]:
    """The GPUs that tensors are on."""
    return list(dict.fromkeys(a.device for a in args if isinstance(a, Tensor) and a.is_cuda))


def _can_repeat(args: Sequence[Any]) -> bool:
    """Whether a call can be repeated without a trace."""
    tensors = [argument for argument in args if isinstance(argument, Tensor)]
    return (
        all(has_memory(tensor) for tensor in tensors)
        and not (_gpus_of(tensors) and torch.cuda.is_current_stream_capturing())
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.maybe_current_level() is None
        and _top_saved_tensors_default_hooks(True) is None
    )


@contextmanager
def _restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Give tensors the values back that they have now."""
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)


def _measure(trials: Sequence[Function], args: Sequence[Any], mutated: AbstractSet[int]) -> Seconds:
    """The least seconds of a call, compiled and in PyTorch."""
    gpus = _gpus_of(args)
    with torch.random.fork_rng(devices=gpus):
        try:
            compiled, library = (_Trial(trial, args, mutated) for trial in trials)
            compiled()  # waits for the compiler
            return Seconds(1.0, *_compare(compiled, library, gpus))
        except Exception as error:  # the call itself raises it, if it is the user's
            log.info("a graph cannot be timed: %s", error)
            return Seconds(1.0, inf, inf)


def _compare(
    compiled: Callable[[], None], library: Callable[[], None], gpus: Sequence[torch.device]
) -> tuple[float, float]:
    """The least seconds of either; a long call is not repeated often."""
    started = time.perf_counter()
    best = {call: _seconds_of(call, gpus) for call in (compiled, library)}
    for _ in range(_TURNS):
        for call in best:
            # In a row: PyTorch's threads spin after a call, which slows the other down.
            for _ in range(_CALLS):
                if time.perf_counter() - started < _LONGEST:
                    best[call] = min(best[call], _seconds_of(call, gpus))
    return best[compiled], best[library]


def _seconds_of(call: Callable[[], None], gpus: Sequence[torch.device]) -> float:
    """The seconds of a call, or of several in a row on GPUs, for which PyTorch does not wait."""
    count = _CALLS_ON_GPU if gpus else 1
    _wait(gpus)
    started = time.perf_counter()
    for _ in range(count):
        call()
    _wait(gpus)
    return (time.perf_counter() - started) / count


_CALLS_ON_GPU = 3


def _wait(gpus: Sequence[torch.device]) -> None:
    for gpu in gpus:
        torch.cuda.synchronize(gpu)


class _Trial:
    """A call, and the gradients of its results, that leaves arguments as they are."""

    def __init__(self, function: Function, args: Sequence[Any], mutated: AbstractSet[int]) -> None:
        self._function = function
        self._args = [_stand_in(a, index in mutated) for index, a in enumerate(args)]
        tensors = [argument for argument in self._args if isinstance(argument, Tensor)]
        self._wanted = [one for one in tensors if torch.is_grad_enabled() and one.requires_grad]

    def __call__(self) -> None:
        """Call the function."""
        results = tree_leaves(self._function(*self._args))
        found = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
        if found and self._wanted:
            ones = [torch.ones_like(one) for one in found]
            torch.autograd.grad(found, self._wanted, ones, allow_unused=True)


def _stand_in(argument: Any, is_mutated: bool) -> Any:
    """An argument with the same values, outside of the user's autograd graph."""
    if not isinstance(argument, Tensor):
        return argument
    apart = argument.detach()
    if is_mutated:
        apart = apart.clone()
    return apart.requires_grad_(argument.requires_grad)
