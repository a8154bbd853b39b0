"""Evaluate the graph of one program of an interpreted kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from turbine import errors
from turbine.algebra import Expr, Symbol
from turbine.dtypes import Dtype
from turbine.kernel.backends.element_types import call_narrowed
from turbine.kernel.backends.interpret.memory import BITS, Memory
from turbine.kernel.lang.control_flow import Body, output_of
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.validity import Bound

# Called with each computed node and its value.
Watch = Callable[[fx.Node, Any], None]
# Computes a node from a frame.
Rule = Callable[["Frame", fx.Node], Any]


@dataclass
class Frame:
    """The values that one program has computed; `rules` evaluate ops that need the frame."""

    known: dict[Symbol, int]
    number: int
    ids: tuple[int, ...]
    rules: Mapping[Op, Rule]
    watch: Watch | None
    values: dict[fx.Node, Any] = field(default_factory=dict)

    def run(self, graph: fx.Graph) -> tuple[Any, ...]:
        """Evaluate every node of a region; return its results."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.values[node] = self._compute(node)
                if self.watch is not None:
                    self.watch(node, self.values[node])
        return tuple(self.values[node] for node in output_of(graph))

    def _compute(self, node: fx.Node) -> Any:
        op = node.target
        assert isinstance(op, Op)
        rule = self.rules.get(op)
        try:
            return rule(self, node) if rule is not None else self._call(node, op)
        except errors.TurbineError:
            raise
        except Exception as error:
            raise errors.KernelError(
                f"{op!r} failed: {error}", where=node.meta.get("line")
            ) from error

    def _call(self, node: fx.Node, op: Op) -> Any:
        args: Any = fx.node.map_arg(tuple(node.args), self.values.__getitem__)
        args = [self.evaluate(argument) for argument in args]
        keywords = {}
        if "within" in op.signature.parameters:
            operand: Any = node.args[0]
            shape = operand.meta["type"].shape if isinstance(operand, fx.Node) else operand
            keywords["within"] = self.within(node, shape)
        types = node.meta.get("types", node.meta.get("type"))
        return call_narrowed(op, args, keywords, types)

    def evaluate(self, argument: Any) -> Any:
        """Convert an argument of a node for torch: sizes to ints, dtypes to torch dtypes."""
        if isinstance(argument, Expr):
            return argument.evaluate(self.known)
        if isinstance(argument, Dtype):
            return argument.torch
        if isinstance(argument, Memory):
            return argument.tensor
        if isinstance(argument, (tuple, list)):
            return tuple(map(self.evaluate, argument))
        return argument

    def sizes(self, shape: Sequence[Expr]) -> tuple[int, ...]:
        """Evaluate a shape."""
        return tuple(size.evaluate(self.known) for size in shape)

    def within(self, node: fx.Node, shape: Sequence[Expr]) -> Tensor:
        """The valid lanes of a tile of this shape, as a node sees them."""
        return self.lanes(node.kwargs.get("bounds", ()), node.kwargs.get("masks", ()), shape)

    def lanes(self, bounds: Any, masks: Any, shape: Sequence[Expr]) -> Tensor:
        """The lanes that satisfy bounds and masks."""
        sizes = self.sizes(shape)
        valid = torch.ones(sizes, dtype=torch.bool)
        for bound in bounds:
            valid &= self._inside(bound, sizes)
        for mask in masks:
            valid &= self.values[mask]
        return valid

    def _inside(self, bound: Bound, sizes: Sequence[int]) -> Tensor:
        offset, limit = bound.offset.evaluate(self.known), bound.limit.evaluate(self.known)
        if bound.axis is None:
            return torch.tensor(0 <= offset < limit)
        places = torch.arange(sizes[bound.axis]) + offset
        inside = (places >= 0) & (places < limit)
        return inside.reshape([-1] + [1] * (len(sizes) - 1 - bound.axis))

    def run_region(
        self, body: Body, carried: Sequence[Any], captured: Sequence[fx.Node]
    ) -> tuple[Any, ...]:
        """Run a region with its carried values and captured nodes."""
        placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
        around = [self.values[node] for node in captured]
        for place, value in zip(placeholders, [*carried, *around], strict=True):
            self.values[place] = value
        return self.run(body.graph)

    def keep_masked(self, body: Body, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """Update carried values after an iteration; masked-off lanes keep the old values."""
        rows = zip(body.valid, before, after, output_of(body.graph), strict=True)
        return [
            _select(self.lanes(v.bounds, v.masks, node.meta["type"].shape), new, old)
            for v, old, new, node in rows
        ]


def _select(lanes: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Select the new values in these lanes, the old ones elsewhere."""
    bits = BITS.get(new.dtype)
    if bits is None:
        return torch.where(lanes, new, old)
    chosen = torch.where(lanes, new.contiguous().view(bits), old.contiguous().view(bits))
    return chosen.view(new.dtype)


def arguments_of(node: fx.Node) -> Any:
    """The arguments of a node, untyped."""
    return node.args


def with_conditions(node: fx.Node, values: Any) -> Any:
    """Pair each value with the bounds and masks of its lanes."""
    return zip(values, node.kwargs["bounds"], node.kwargs["masks"], strict=True)  # type: ignore[arg-type]
