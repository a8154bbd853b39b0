"""Call an op on CPU tensors: the first call of a kind compiles, later ones find the code."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

from turbine import config, errors
from turbine import target as targets
from turbine.capture import work
from turbine.capture.effects import draws
from turbine.capture.flat_call import flatten
from turbine.capture.program import Region
from turbine.compiler import host, pipeline
from turbine.dump import dump
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import DEFAULT_NAME, lower
from turbine.mlir import context as mlir_context
from turbine.mlir.ir import Module
from turbine.ops import ir_builder, specialization
from turbine.ops.repeat_call import Repeat
from turbine.ops.schema import Schema
from turbine.ops.specialization import Leaf, Static, Traced
from turbine.runtime import device, run_trace
from turbine.runtime.executable import Executable, align_code
from turbine.runtime.tensor_call import TensorCall
from turbine.signature import Slot

log = logging.getLogger(__name__)
Function = Callable[..., Any]


class Untraceable(errors.CustomOpError):
    """PyTorch cannot trace a function, or the function fails."""


@dataclass(frozen=True)
class Kernel:
    """Code for the calls that its trace serves, compiled or, where that failed, in PyTorch."""

    traced: Traced
    call: TensorCall | Function
    label: Path | None = None  # what calls are logged under, if they are

    def __call__(self, args: Sequence[Any], values: Sequence[Leaf]) -> Any:
        """The results, nested as the op gives them."""
        if not isinstance(self.call, TensorCall):
            return self.call(*args)
        passed = [leaf.value for leaf in values if leaf.is_passed]
        started = time.perf_counter()
        computed = iter(self.call(passed))
        if self.label is not None:
            run_trace.call(self.label, passed, 1e3 * (time.perf_counter() - started))
        fixed, places = self.traced.fixed, range(self.traced.tree.num_leaves)
        leaves = [fixed[place] if place in fixed else next(computed) for place in places]
        for place in self.traced.truths:
            leaves[place] = bool(leaves[place])
        return torch_pytree.tree_unflatten(leaves, self.traced.tree)

    @property
    def repeatable(self) -> TensorCall | None:
        """The compiled code, if its results are all that a call is about."""
        if not isinstance(self.call, TensorCall) or self.traced.fixed or self.label is not None:
            return None
        return self.call


@dataclass
class Launcher:
    """The kernels of one op. `instead` is what to call where nothing compiles, if there is."""

    schema: Schema
    op: Any
    static: Static
    instead: Function | None = None
    kernels: dict[Hashable, list[Kernel]] = field(default_factory=dict)
    repeat: Repeat | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the op."""
        repeat = self.repeat
        if repeat is not None:
            result = repeat(args, keywords)
            if result is not None:
                return result
        return self._general(args, keywords)

    def lower(self, args: Sequence[Any]) -> Module:
        """The IR that a call compiles."""
        values = specialization.leaves(self.schema, args, self.static)
        return self._lower(self._trace(args, values))[0]

    def _general(self, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        args = self.schema.filled(given, keywords)
        values = specialization.leaves(self.schema, args, self.static)
        key = specialization.key_of(args, values)
        sizes = specialization.sizes_of(values)
        kernel = self._find(key, sizes)
        if kernel is None:
            with self.lock:
                kernel = self._find(key, sizes) or self._make(key, args, values)
        results = kernel(args, values)
        if kernel.repeatable is not None:
            captured = kernel.traced.captured
            self.repeat = Repeat.of(self.schema, kernel.repeatable, captured, given, keywords)
        return results

    def _find(self, key: Hashable, sizes: Sequence[int]) -> Kernel | None:
        for kernel in self.kernels.get(key, ()):
            if kernel.traced.serves(sizes):
                return kernel
        return None

    def _make(self, key: Hashable, args: Sequence[Any], values: Sequence[Leaf]) -> Kernel:
        try:
            kernel = self._kernel(self._trace(args, values))
        except Untraceable as error:
            kernel = self._run_untraced(args, error)
        if self.instead is None:
            self._check_sizes(args, kernel(args, values))
        self.kernels.setdefault(key, []).append(kernel)
        return kernel

    def _trace(self, args: Sequence[Any], values: Sequence[Leaf]) -> Traced:
        name = self.schema.qualified
        try:
            called = partial(self.schema.call, self.op)
            return specialization.trace(called, args, values)
        except errors.TurbineError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".strip()
            raise Untraceable(f"{name}: tracing it failed: {reason}") from error

    def _run_untraced(self, args: Sequence[Any], error: Untraceable) -> Kernel:
        """A kernel in PyTorch, if the function runs there; else its own error is raised."""
        name = self.schema.qualified
        try:
            with torch.random.fork_rng([]):
                self._call_function(args)
        except errors.TurbineError:
            raise
        except Exception as own:
            reason = f"{type(own).__name__}: {own}".strip()
            raise errors.CustomOpError(
                f"{name}: its function raised {reason}", where=ir_builder.user_line_of(own)
            ) from own
        if self.instead is None:
            raise error
        first, *_ = error.fact.removeprefix(f"{name}: ").splitlines()
        return self._in_pytorch(specialization.UNTRACED, first)

    def _call_function(self, args: Sequence[Any]) -> Any:
        """What the function gives in PyTorch; a shape rule is given tensors without data."""
        if self.instead is not None:
            return self.instead(*args)
        return self.schema.call(self.op, _without_data(args))

    def _kernel(self, traced: Traced) -> Kernel:
        if self.instead is None:
            return self._compile(traced)
        drawing = [str(n.target) for n in traced.graph.graph.nodes if draws(n.target)]
        if drawing:
            return self._in_pytorch(traced, f"{drawing[0]} draws random numbers")
        try:
            return self._compile(traced)
        except (errors.CompileError, errors.UnsupportedOp) as error:
            return self._in_pytorch(traced, str(error))

    def _in_pytorch(self, traced: Traced, reason: str) -> Kernel:
        assert self.instead is not None
        log.warning("%s runs in PyTorch: %s", self.schema.qualified, reason)
        return Kernel(traced, self.instead)

    def _compile(self, traced: Traced) -> Kernel:
        module, inputs, results = self._lower(traced)
        target = targets.parse(config.current().target)
        compiled = pipeline.compile_ir(
            mlir_context.to_bytecode(module), target, fingerprint=mlir_context.fingerprint(module)
        )
        text = partial(mlir_context.to_text, module)
        label = run_trace.kernel(self.schema.qualified.replace("::", "."), text, compiled.data)
        driver = device.driver_for(target, work.mflop(traced.graph.graph))
        entry = Executable(align_code(compiled.data), driver, list).entry(DEFAULT_NAME)
        return Kernel(traced, TensorCall(entry, inputs, results), label)

    def _lower(self, traced: Traced) -> tuple[Module, list[Slot], list[Slot]]:
        graph, inputs, results = flatten(traced.graph)
        nodes = list(graph.graph.nodes)
        names = [node.name for node in nodes if node.op == "placeholder"]
        passed = [name for name in names if name not in traced.weights]
        region = Region(graph, tuple(passed), tuple(nodes[-1].args[0]), traced.weights)
        target = TargetQuery(host.default_target)
        module = lower(region, target, locate=lambda node: self.schema.qualified).module
        mlir_context.verify(module)
        text = partial(mlir_context.to_text, module)
        dump(self.schema.name, {"lowered.mlir": text})
        slots = [slot for slot, name in zip(inputs, names, strict=True) if name in passed]
        return module, slots, results

    def _check_sizes(self, args: Sequence[Any], results: Any) -> None:
        """Compare the first results with the shape rule: later ones have the same code."""
        declared = torch_pytree.tree_leaves(self._call_function(args))
        for said, given in zip(declared, torch_pytree.tree_leaves(results), strict=True):
            if isinstance(given, torch.Tensor) and said.shape != given.shape:
                raise errors.CustomOpError(
                    f"{self.schema.qualified}: its emission gave a tensor of {list(given.shape)}, "
                    f"its shape rule says {list(said.shape)}"
                )


def _without_data(args: Sequence[Any]) -> list[Any]:
    meta: list[Any] = torch_pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), list(args))
    return meta
