"""Put kernels of the library in place of ops: programs and a target in, programs out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from turbine.capture.program import Program
from turbine.library.linear import linear
from turbine.target import Target

aten = torch.ops.aten

# Where kernels are faster than what IREE makes of the ops, by the bytes of a vector register.
_FASTER_ON = {64}
# A panel's columns, in vectors: with eight rows they fill the registers.
_PANEL_VECTORS = 3
_FLOAT_BYTES = 4
# A product with fewer columns, or of shorter rows, is not worth a kernel.
_LEAST_COLUMNS, _LEAST_DEPTH = 32, 32


def place_kernels(
    programs: Mapping[str, Program], find_target: Callable[[], Target]
) -> dict[str, Program] | None:
    """The programs with kernels in place of what they are faster than; None if there is nothing.

    The target is only asked for where a program has something to replace.
    """
    found = {name: _products(program) for name, program in programs.items()}
    if not any(found.values()):
        return None
    target = find_target()
    if target.kind != "cpu" or target.vector_bytes not in _FASTER_ON:
        return None
    width = _PANEL_VECTORS * target.vector_bytes // _FLOAT_BYTES
    return {name: _with_kernels(program, width) for name, program in programs.items()}


@dataclass(frozen=True)
class _Product:
    """A node that is x @ weight + bias, with a weight that is the same in every call."""

    node: fx.Node

    @property
    def operands(self) -> tuple[fx.Node, fx.Node]:
        """x and the weight."""
        x, weight = self.node.args[-2:]
        assert isinstance(x, fx.Node)
        assert isinstance(weight, fx.Node)
        return x, weight

    @property
    def bias(self) -> fx.Node | None:
        """What is added, if anything is."""
        first = self.node.args[0]
        assert isinstance(first, fx.Node)
        return first if len(self.node.args) > len(self.operands) else None


def _with_kernels(program: Program, width: int) -> Program:
    graph = program.graph.graph
    module = fx.GraphModule(program.graph, copy.deepcopy(graph))
    own = dict(zip(graph.nodes, module.graph.nodes, strict=True))
    for node, twin in own.items():
        twin.name = node.name  # by which inputs and weights are known
    copied = replace(program, graph=module)
    replaced = {product.node: _replace(product, width) for product in _products(copied)}
    module.graph.eliminate_dead_code()
    module.recompile()

    def moved(node: fx.Node) -> fx.Node:
        twin: fx.Node = own[node]
        return replaced.get(twin, twin)

    return replace(
        copied,
        results=tuple(moved(node) for node in program.results),
        stores={name: moved(node) for name, node in program.stores.items()},
    )


def _products(program: Program) -> list[_Product]:
    constant = _constant_nodes(program)
    targets = (aten.mm.default, aten.addmm.default)
    nodes = [node for node in program.graph.graph.nodes if node.target in targets]
    products = [_Product(node) for node in nodes if not node.kwargs]  # addmm may scale its operands
    return [p for p in products if p.operands[1] in constant and _is_worth_it(p)]


def _constant_nodes(program: Program) -> set[fx.Node]:
    """What is computed from weights alone, once when an artifact is loaded."""
    fixed = {name for name, weight in program.weights.items() if not weight.mutable}
    constant: set[fx.Node] = set()
    for node in program.graph.graph.nodes:
        if node.op == "placeholder":
            is_constant = node.name in fixed
        else:
            inputs = node.all_input_nodes
            is_constant = bool(inputs) and all(one in constant for one in inputs)
        if is_constant:
            constant.add(node)
    return constant


def _is_worth_it(product: _Product) -> bool:
    x, weight = (operand.meta["val"] for operand in product.operands)
    if x.dtype != torch.float32:
        return False
    if product.bias is not None and product.bias.meta["val"].shape != weight.shape[1:]:
        return False
    depth, columns = weight.shape
    return bool(columns >= _LEAST_COLUMNS and depth >= _LEAST_DEPTH)


def _replace(product: _Product, width: int) -> fx.Node:
    node, (x, weight) = product.node, product.operands
    depth, columns = weight.meta["val"].shape
    panels = -(-columns // width)
    with node.graph.inserting_before(node):
        padded = _call(node, aten.constant_pad_nd.default, weight, [0, panels * width - columns])
        split = _call(node, aten.view.default, padded, [depth, panels, width])
        turned = _call(node, aten.permute.default, split, [1, 0, 2])
        packed = _call(node, aten.clone.default, turned, memory_format=torch.contiguous_format)
        bias = product.bias or _call(node, aten.full.default, [columns], 0.0)
        result = _call(node, linear.op.op, x, packed, bias)
    node.replace_all_uses_with(result)
    return result


# What the tracer writes down of the user's code.
_PLACE = ("stack_trace", "nn_module_stack")


def _call(place: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A call with the value that it has while tracing, and the place of the op it stands for."""
    node = place.graph.call_function(target, args, kwargs)
    values = fx.map_arg((args, kwargs), lambda one: one.meta["val"])
    with place.meta["val"].fake_mode:
        node.meta["val"] = target(*values[0], **values[1])
    node.meta |= {key: place.meta[key] for key in _PLACE if key in place.meta}
    return node
