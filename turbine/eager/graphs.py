"""Write a program as a graph of PyTorch ops."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from turbine.eager.foreach import elements
from turbine.eager.layouts import Layout, NotRecordable
from turbine.eager.sizes import Size
from turbine.eager.storage import Ref
from turbine.eager.trace_tree import Number, Op, Program

aten = torch.ops.aten


def graph_of(
    program: Program,
    ops: Sequence[Op],
    layouts: Sequence[Layout],
    varying: Sequence[int],
    written: Mapping[int, int],
) -> fx.GraphModule:
    """The graph of a program, given its ops, in which ints may be sizes, and layouts of its inputs.

    The last input has the numbers that vary, which are given by their indices. The others are
    constants. Results in `written` are copied to an input.
    """
    graph = fx.Graph()
    inputs = [_input(graph, number, layout) for number, layout in enumerate(layouts)]
    values: list[Any] = []
    for op in ops:
        for one in elements(op):
            values += _Call(graph, one, inputs, values, program.numbers, varying).results()
    for index, number in written.items():
        graph.call_function(aten.copy_.default, (inputs[number], values[index]))
    graph.output(tuple(values[index] for index in program.outputs if index not in written))
    return fx.GraphModule({}, graph)


def _input(graph: fx.Graph, number: int, layout: Layout) -> fx.Node:
    node = graph.placeholder(f"input_{number}")
    node.meta["example_value"] = layout.make("meta")
    return node


class _Call:
    """One op of a program, on its way to the graph."""

    def __init__(
        self,
        graph: fx.Graph,
        op: Op,
        inputs: Sequence[fx.Node],
        values: Sequence[Any],
        numbers: Sequence[float],
        varying: Sequence[int],
    ) -> None:
        self.graph = graph
        self.op = op
        self.inputs = inputs
        self.values = values
        self.numbers = numbers
        self.varying = varying

    def results(self) -> list[Any]:
        """The nodes of the results."""
        args = [self._argument(one) for one in self.op.args]
        kwargs = {name: self._argument(one) for name, one in self.op.kwargs.items()}
        target = self.op.target
        if any(map(self._varies, (*self.op.args, *self.op.kwargs.values()))):
            return [_WITH_NUMBERS[target](self._add, *args, **kwargs)]
        call = self._add(target, *args, **kwargs)
        call.meta["example_value"] = [one and one.make("meta") for one in self.op.results]
        returns = [str(one.type) for one in target._schema.returns]
        if returns == ["Tensor"]:
            return [call]
        if len(returns) > 1 and set(returns) != {"Tensor"}:
            raise NotRecordable(f"{target} returns a list among other results")
        return [self._add(operator.getitem, call, place) for place in range(len(self.op.results))]

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            index = argument.index
            return self.values[index] if index >= 0 else self.inputs[~index]
        if isinstance(argument, Number) and not self._varies(argument):
            return self.numbers[argument.index]
        if isinstance(argument, Number):
            place = self.varying.index(argument.index)
            number = self._add(aten.select.int, self.inputs[-1], 0, place)
            (layout,) = self.op.results
            assert layout is not None
            return self._add(aten._to_copy.default, number, dtype=layout.dtype)
        if isinstance(argument, Size):
            return self._size(argument)
        if isinstance(argument, list):
            return [self._argument(one) for one in argument]
        return argument

    def _size(self, size: Size) -> fx.Node:
        one, *others = [
            self._add(aten.sym_size.int, self.inputs[axis.input], axis.axis) for axis in size.axes
        ]
        for other in others:
            one = self._add(operator.mul, one, other)
        if size.factor != 1:
            one = self._add(operator.mul, one, size.factor)
        return self._add(operator.add, one, size.offset) if size.offset else one

    def _varies(self, argument: Any) -> bool:
        return isinstance(argument, Number) and argument.index in self.varying

    def _add(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        if self.op.where is not None:
            file, _, line = self.op.where.rpartition(":")
            node.stack_trace = f'File "{file}", line {line}, in {self.op.target}'
        return node


def _add_scaled(add: Any, x: Any, y: Any, alpha: Any = None, sign: Any = aten.add.Tensor) -> Any:
    return add(sign, x, y if alpha is None else add(aten.mul.Tensor, y, alpha))


def _subtract_scaled(add: Any, x: Any, y: Any, alpha: Any = None) -> Any:
    return _add_scaled(add, x, y, alpha, aten.sub.Tensor)


def _subtract_from(add: Any, x: Any, number: Any, alpha: Any = None) -> Any:
    return _subtract_scaled(add, number, x, alpha)


def _add_product(add: Any, x: Any, y: Any, z: Any, value: Any = None) -> Any:
    return add(aten.add.Tensor, x, add(aten.mul.Tensor, add(aten.mul.Tensor, y, value), z))


def _add_quotient(add: Any, x: Any, y: Any, z: Any, value: Any = None) -> Any:
    return add(aten.add.Tensor, x, add(aten.div.Tensor, add(aten.mul.Tensor, y, value), z))


# How ops with numbers (trace.TAKES_NUMBERS) are written if those are tensors without axes.
_WITH_NUMBERS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: _add_scaled,
    aten.sub.Tensor: _subtract_scaled,
    aten.rsub.Scalar: _subtract_from,
    aten.mul.Tensor: lambda add, x, y: add(aten.mul.Tensor, x, y),
    aten.div.Tensor: lambda add, x, y: add(aten.div.Tensor, x, y),
    aten.addcmul.default: _add_product,
    aten.addcdiv.default: _add_quotient,
    aten.lerp.Scalar: lambda add, x, end, weight: add(aten.lerp.Tensor, x, end, weight),
}
