"""Call an op on tensors: compiles code for the first call, and finds it for later ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
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
from turbine.compiler import host, pipeline
from turbine.lower.importer import DEFAULT_NAME
from turbine.mlir import context as mlir_context
from turbine.mlir.ir import Module
from turbine.ops import ir_builder, specialization
from turbine.ops.code_cache import CodeCache
from turbine.ops.flat_code import FlatCode, lower_graph
from turbine.ops.repeat_call import Repeat
from turbine.ops.schema import Schema
from turbine.ops.specialization import Leaf, Static, Traced
from turbine.runtime import device, run_trace
from turbine.runtime.tensor_call import TensorCall
from turbine.target import Target

log = logging.getLogger(__name__)
Function = Callable[..., Any]


class Untraceable(errors.CustomOpError):
    """PyTorch cannot trace a function, or the function raises."""


@dataclass(frozen=True)
class CompiledOp:
    """Code for the calls that its trace serves: compiled, or a PyTorch function as fallback."""

    traced: Traced
    call: TensorCall | Function
    label: Path | None = None  # of calls in a trace, if tracing is on

    def serves(self, sizes: Sequence[int]) -> bool:
        """Whether the code is valid for a call with these sizes."""
        return self.traced.serves(sizes)

    def __call__(self, args: Sequence[Any], values: Sequence[Leaf]) -> Any:
        """The results, unflattened."""
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
        """The code for the CPU, if a call has neither constant results nor a trace."""
        if not isinstance(self.call, TensorCall) or self.traced.fixed or self.label is not None:
            return None
        return self.call if self.call.entry.is_on_host else None


@dataclass
class OpLauncher:
    """The kernels of one op. `instead` is the fallback if compiling fails.

    `choose_target` says what to compile for.
    """

    schema: Schema
    op: Any
    static: Static
    instead: Function | None = None
    choose_target: Callable[[], Target] = lambda: targets.parse(config.current().target)
    kernels: CodeCache[CompiledOp] = field(default_factory=CodeCache)
    repeat: Repeat | None = None

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the op."""
        repeat = self.repeat
        if repeat is not None:
            result = repeat(args, keywords)
            if result is not None:
                return result
        return self._call_general(args, keywords)

    def lower(self, args: Sequence[Any]) -> Module:
        """The IR for a call."""
        values = specialization.leaves(self.schema, args, self.static)
        return self._lower(self._trace(args, values)).module

    def _call_general(self, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        args = self.schema.filled(given, keywords)
        values = specialization.leaves(self.schema, args, self.static)
        key = specialization.key_of(args, values)
        sizes = specialization.sizes_of(values)
        kernel = self.kernels.get(key, sizes, partial(self._make, args, values))
        results = kernel(args, values)
        if kernel.repeatable is not None:
            captured = kernel.traced.captured
            self.repeat = Repeat.of(self.schema, kernel.repeatable, captured, given, keywords)
        return results

    def _make(self, args: Sequence[Any], values: Sequence[Leaf]) -> CompiledOp:
        try:
            kernel = self._kernel(self._trace(args, values))
        except Untraceable as error:
            kernel = self._run_untraced(args, error)
        if self.instead is None:
            self._check_sizes(args, kernel(args, values))
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

    def _run_untraced(self, args: Sequence[Any], error: Untraceable) -> CompiledOp:
        """A kernel in PyTorch, if the function runs there; else raises its error."""
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
        """The results of the function in PyTorch; a shape rule gets meta tensors."""
        if self.instead is not None:
            return self.instead(*args)
        return self.schema.call(self.op, _without_data(args))

    def _kernel(self, traced: Traced) -> CompiledOp:
        if self.instead is None:
            return self._compile(traced)
        drawing = [str(n.target) for n in traced.graph.graph.nodes if draws(n.target)]
        if drawing:
            return self._in_pytorch(traced, f"{drawing[0]} draws random numbers")
        try:
            return self._compile(traced)
        except (errors.CompileError, errors.UnsupportedOp) as error:
            return self._in_pytorch(traced, str(error))

    def _in_pytorch(self, traced: Traced, reason: str) -> CompiledOp:
        assert self.instead is not None
        log.warning("%s runs in PyTorch: %s", self.schema.qualified, reason)
        return CompiledOp(traced, self.instead)

    def _compile(self, traced: Traced) -> CompiledOp:
        code = self._lower(traced)
        target = self.choose_target()
        compiled = pipeline.compile_ir(
            code.bytecode, target, fingerprint=code.fingerprint, name=self.schema.qualified
        )
        text = partial(mlir_context.to_text, code.module)
        name = self.schema.qualified.replace("::", ".")
        label = run_trace.kernel(name, text, compiled.data)
        driver = device.driver_for(target, work.mflop(traced.graph.graph))
        call = TensorCall.load(
            compiled.data, driver, DEFAULT_NAME, code.inputs, code.results, label=name
        )
        return CompiledOp(traced, call, label)

    def _lower(self, traced: Traced) -> FlatCode:
        return lower_graph(
            self.schema.name,
            traced.graph,
            lambda: host.resolve(self.choose_target()),
            lambda node: self.schema.qualified,
            weights=traced.weights,
        )

    def _check_sizes(self, args: Sequence[Any], results: Any) -> None:
        """Compare the results of the first call with the shape rule."""
        declared = torch_pytree.tree_leaves(self._call_function(args))
        for said, given in zip(declared, torch_pytree.tree_leaves(results), strict=True):
            if isinstance(given, torch.Tensor) and said.shape != given.shape:
                raise errors.CustomOpError(
                    f"{self.schema.qualified}: its emission returned shape {list(given.shape)}, "
                    f"its shape rule says {list(said.shape)}",
                    hint="correct the decorated function, which is the shape rule, or the emission",
                )


def target_of_gpu() -> Target:
    """The GPU of CUDA tensors."""
    major, minor = torch.cuda.get_device_capability(0)
    return targets.parse(f"cuda:sm_{major}{minor}")


def _without_data(args: Sequence[Any]) -> list[Any]:
    meta: list[Any] = torch_pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), list(args))
    return meta
