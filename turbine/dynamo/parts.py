"""One part of a graph: lowered and compiled in the background, called in place of its ops."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx

from turbine import config, errors
from turbine import target as targets
from turbine.capture import work
from turbine.capture.control_flow import with_bodies
from turbine.capture.partition import Part, is_compute
from turbine.capture.sizes import hint
from turbine.compiler import pipeline
from turbine.compiler.pipeline import Compiled, Pending
from turbine.dynamo import failure_cache
from turbine.dynamo.frozen_call import load_part
from turbine.dynamo.part_code import PartCode, Weights, lower_part
from turbine.dynamo.totals import add
from turbine.mlir import context as mlir_context
from turbine.progress import progress_on_terminal
from turbine.runtime import device, run_trace

log = logging.getLogger(__name__)

Call = Callable[[Sequence[Any]], Sequence[Any]]
# Threads pay off this much later between ops of PyTorch, whose own threads spin after each.
LATER = 20
# Makes a replacement for a part that does not compile.
Replace = Callable[[errors.TurbineError], Call]
# After this many calls that failed in compiled code but not in PyTorch, a part runs in PyTorch.
MAX_RESCUES = 3


class PartModule(torch.nn.Module):
    """A part, as a module of the graph around it. The first call waits for the compiler."""

    def __init__(self, part: Part, weights: Weights, replace: Replace, *, is_mixed: bool) -> None:
        super().__init__()
        self.eager = part.graph
        nodes = with_bodies(part.graph.graph.nodes)
        self.ops = Counter(str(node.target) for node in nodes if is_compute(node))
        self.mflop = work.mflop(part.graph.graph)
        self.megabytes = work.megabytes((*part.inputs, *part.results))
        self._target = targets.parse(config.current().target)
        self._load = work.load(part.graph.graph)
        self.driver = device.driver_for(self._target, self._load / (LATER if is_mixed else 1))
        self.compiled: Compiled | None = None
        self.code: PartCode | None = None
        self.kernels: Counter[str] = Counter()
        self._weights = weights
        self._replace = replace
        self._call: Call | None = None
        self._rescues = 0
        self._waiting = threading.RLock()
        self._pending: Pending | errors.TurbineError = self._begin()

    def __call__(self, *args: Any) -> Sequence[Any]:
        call = self._call or self.wait()
        try:
            return call(args)
        except (errors.RunError, errors.ArgumentError) as error:
            # PyTorch computes the results, or raises its own error.
            results: Sequence[Any] = self.eager(*args)
            self._count_rescue(error)
            return results

    def _count_rescue(self, error: errors.TurbineError) -> None:
        """Count a call that only PyTorch could run; after `MAX_RESCUES`, PyTorch runs them all."""
        add(rescued_calls=1)
        self._rescues += 1
        if self._rescues == MAX_RESCUES:
            log.warning("a part runs in PyTorch from now on: %s", error)
            self._call = lambda args: self.eager(*args)

    def wait(self) -> Call:
        """Wait for the compiler, and return what to call."""
        with self._waiting:
            if self._call is None:
                with progress_on_terminal(f"turbine is compiling {self.ops.total()} ops"):
                    self._call = self._finish()
        return self._call

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Call this instead for a while."""
        own, self._call = self._call, call
        try:
            yield
        finally:
            self._call = own

    def _begin(self) -> Pending | errors.TurbineError:
        try:
            return self._lower()
        except Exception as error:
            return _as_fault(error)

    def _lower(self) -> Pending | errors.TurbineError:
        try:
            self.code = lower_part(self.eager, self._target, self._weights, _location)
        except (errors.UnsupportedOp, errors.CompileError, errors.CustomOpError) as error:
            return error
        code, self.kernels = self.code.flat, self.code.kernels
        self._name = failure_cache.part_name(code.fingerprint, self.eager.graph)
        failure = failure_cache.part_failure(self._name)
        if failure is not None:
            return failure
        return pipeline.begin_ir(
            code.bytecode,
            self._target,
            fingerprint=code.fingerprint,
            name=f"a part of {self.ops.total()} ops",
        )

    def _finish(self) -> Call:
        if isinstance(self._pending, errors.TurbineError):
            return self._replace(self._pending)
        try:
            compiled = self._pending.result(self._measure)
            assert self.code is not None
            call = self._traced(
                load_part(compiled.data, self.driver, self.code, self._load), compiled
            )
        except errors.CompileError as error:
            if failure_cache.is_lasting(error):
                failure_cache.remember_part(self._name, error)
            return self._replace(error)
        except errors.TurbineError as error:  # code that IREE's runtime does not load
            return self._replace(error)
        except Exception as error:
            return self._replace(_as_fault(error))
        self.compiled = compiled
        add(parts=1, ops_compiled=self.ops.total(), cache_hits=compiled.cached)
        return call

    def _traced(self, call: Call, compiled: Compiled) -> Call:
        """The call, logged if there is a folder for traces."""
        assert self.code is not None
        text = partial(mlir_context.to_text, self.code.flat.module)
        return run_trace.traced(call, run_trace.kernel(self.code.label, text, compiled.data))

    def _measure(self, compiled: Compiled) -> float:
        """The seconds of one call with random arguments."""
        assert self.code is not None
        call = load_part(compiled.data, self.driver, self.code, self._load)
        placeholders = self.eager.graph.find_nodes(op="placeholder")
        args = [_make_random(node.meta["val"]) for node in placeholders]
        return pipeline.seconds_of(lambda: call(args))


def _as_fault(error: Exception) -> errors.TurbineError:
    """A fault of Turbine's own as an error; it is logged, and the part falls back to PyTorch."""
    is_users = isinstance(error, (errors.ConfigError, errors.UnknownTarget))
    if is_users or config.current().raise_faults:
        raise error
    log.warning("a part runs in PyTorch because of a fault in turbine", exc_info=error)
    return errors.TurbineError(f"{type(error).__name__}: {error}")


def _location(node: fx.Node) -> str:
    return f"%{node.name}"


def node_name_of(where: str | None) -> str | None:
    """The name of the node at a location in the compiler's messages."""
    return where[1:].partition(":")[0] if where is not None and where[:1] == "%" else None


def _make_random(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return hint(value)
    sizes = [hint(size) for size in value.shape]
    if value.dtype.is_floating_point and value.element_size() > 1:
        return torch.rand(sizes, dtype=value.dtype)
    return torch.zeros(sizes, dtype=value.dtype)
