"""One program of an interpreted kernel: computes the nodes of a graph with torch."""

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

# Called with each node that was computed, and its value.
Watch = Callable[[fx.Node, Any], None]
# Computes a node from a frame.
Rule = Callable[["Frame", fx.Node], Any]


@dataclass
class Frame:
    """The values that one program has computed; `rules` are for ops that need the whole frame."""

    known: dict[Symbol, int]
    number: int
    ids: tuple[int, ...]
    rules: Mapping[Op, Rule]
    watch: Watch | None
    values: dict[fx.Node, Any] = field(default_factory=dict)

    def run(self, graph: fx.Graph) -> tuple[Any, ...]:
        """Compute every node of a region; returns its results."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.values[node] = self._compute(node)
                if self.watch is not None:
                    self.watch(node, self.values[node])
        return tuple(self.values[node] for node in output_of(graph))

    def _compute(self, node: fx.Node) -> Any:
        made = node.target
        assert isinstance(made, Op)
        rule = self.rules.get(made)
        try:
            return rule(self, node) if rule is not None else self._evaluate(node, made)
        except errors.TurbineError:
            raise
        except Exception as error:
            raise errors.KernelError(
                f"{made!r} failed: {error}", where=node.meta.get("line")
            ) from error

    def _evaluate(self, node: fx.Node, made: Op) -> Any:
        args: Any = fx.node.map_arg(tuple(node.args), self.values.__getitem__)
        args = [self.plain(argument) for argument in args]
        keywords = {}
        if "within" in made.signature.parameters:
            operand: Any = node.args[0]
            shape = operand.meta["type"].shape if isinstance(operand, fx.Node) else operand
            keywords["within"] = self.within(node, shape)
        types = node.meta.get("types", node.meta.get("type"))
        return call_narrowed(made, args, keywords, types)

    def plain(self, argument: Any) -> Any:
        """An argument for the meaning of an op: numbers for sizes, dtypes of torch."""
        if isinstance(argument, Expr):
            return argument.evaluate(self.known)
        if isinstance(argument, Dtype):
            return argument.torch
        if isinstance(argument, Memory):
            return argument.tensor
        if isinstance(argument, (tuple, list)):
            return tuple(map(self.plain, argument))
        return argument

    def sizes(self, shape: Sequence[Expr]) -> tuple[int, ...]:
        """A shape as numbers."""
        return tuple(size.evaluate(self.known) for size in shape)

    def within(self, node: fx.Node, shape: Sequence[Expr]) -> Tensor:
        """The lanes of a tile of this shape that a node computes."""
        return self.lanes(node.kwargs.get("bounds", ()), node.kwargs.get("masks", ()), shape)

    def lanes(self, bounds: Any, masks: Any, shape: Sequence[Expr]) -> Tensor:
        """The lanes that are within bounds and masks."""
        sizes = self.sizes(shape)
        taking = torch.ones(sizes, dtype=torch.bool)
        for bound in bounds:
            taking &= self._inside(bound, sizes)
        for mask in masks:
            taking &= self.values[mask]
        return taking

    def _inside(self, bound: Bound, sizes: Sequence[int]) -> Tensor:
        offset, limit = bound.offset.evaluate(self.known), bound.limit.evaluate(self.known)
        if bound.axis is None:
            return torch.tensor(0 <= offset < limit)
        places = torch.arange(sizes[bound.axis]) + offset
        inside = (places >= 0) & (places < limit)
        return inside.reshape([-1] + [1] * (len(sizes) - 1 - bound.axis))

    def within_region(
        self, body: Body, carried: Sequence[Any], captured: Sequence[fx.Node]
    ) -> tuple[Any, ...]:
        """Run a region with its carried values and captured nodes."""
        placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
        around = [self.values[node] for node in captured]
        for place, value in zip(placeholders, [*carried, *around], strict=True):
            self.values[place] = value
        return self.run(body.graph)

    def keep_masked(self, body: Body, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """The carried values after an iteration: masked-off lanes keep the old values."""
        rows = zip(body.valid, before, after, output_of(body.graph), strict=True)
        return [
            _select(self.lanes(v.bounds, v.masks, node.meta["type"].shape), new, old)
            for v, old, new, node in rows
        ]


def _select(lanes: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new values in these lanes, the old ones in others."""
    bits = BITS.get(new.dtype)
    if bits is None:
        return torch.where(lanes, new, old)
    chosen = torch.where(lanes, new.contiguous().view(bits), old.contiguous().view(bits))
    return chosen.view(new.dtype)


def arguments_of(node: fx.Node) -> Any:
    """The arguments of a node, without a type."""
    return node.args


def with_conditions(node: fx.Node, values: Any) -> Any:
    """Values, each with the bounds and masks of its lanes."""
    return zip(values, node.kwargs["bounds"], node.kwargs["masks"], strict=True)  # type: ignore[arg-type]
