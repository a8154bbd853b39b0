"""Lower a part of a graph, with kernels of the library in place of ops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from turbine.capture import convolutions, passes
from turbine.capture.decompositions import current_training_decompositions
from turbine.capture.nodes import copy_graph
from turbine.capture.program import Region, Weight
from turbine.capture.traits import SCOPE, ExternalTensorTrait
from turbine.compiler import host
from turbine.kernel.call.op_declaration import NAMESPACE
from turbine.library import place_kernels
from turbine.ops.flat_code import FlatCode, lower_graph
from turbine.target import Target

_CONVOLUTION = torch.ops.aten.convolution.default


@dataclass(frozen=True)
class Weights:
    """The placeholders of weights."""

    fixed: AbstractSet[str] = frozenset()  # their memory stays the same between calls
    frozen: AbstractSet[str] = frozenset()  # and so do their values: parameters of the code


@dataclass(frozen=True)
class PartCode:
    """The code of a part."""

    flat: FlatCode
    inputs: tuple[str, ...]  # placeholders, in order
    frozen: AbstractSet[str]  # those that are loaded with the code
    kernels: Counter[str]  # of the library, by name

    @property
    def label(self) -> str:
        """What traces and profiles call the part; parts with the same code share it."""
        return f"part.{self.flat.fingerprint[:8]}"

    def split(self, args: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """The frozen arguments by name, and those that are passed."""
        named = list(zip(self.inputs, args, strict=True))
        frozen = {name: argument for name, argument in named if name in self.frozen}
        return frozen, [argument for name, argument in named if name not in self.frozen]


def lower_part(
    graph: fx.GraphModule,
    target: Target,
    weights: Weights,
    locate: Callable[[fx.Node], str] = str,
) -> PartCode:
    """Lower a part for a target."""
    # AOTAutograd compiles in a mode where constants of kernels would be fake tensors.
    with unset_fake_temporarily():
        return _lower_part(graph, target, weights, locate)


def _lower_part(
    graph: fx.GraphModule, target: Target, weights: Weights, locate: Callable[[fx.Node], str]
) -> PartCode:
    places = graph.graph.find_nodes(op="placeholder")
    bound = {node.name: _weight(node) for node in places if node.name in weights.frozen}
    (output,) = graph.graph.find_nodes(op="output")
    names = tuple(node.name for node in places)
    passed = tuple(name for name in names if name not in bound)
    resolve = partial(host.resolve, target)
    regions = {"part": Region(graph, passed, tuple(output.args[0]), bound)}
    module = (place_kernels(regions, resolve) or regions)["part"].graph
    kernels = _count_kernels(module) - _count_kernels(graph)
    module = _expand_convolutions(module)
    flat = lower_graph("part", module, resolve, locate, weights=bound, fixed=weights.fixed)
    return PartCode(flat, names, bound.keys(), kernels)


def _weight(place: fx.Node) -> Weight:
    name = place.name
    return Weight(name, place.meta["val"], external=ExternalTensorTrait(SCOPE, name))


def _expand_convolutions(module: fx.GraphModule) -> fx.GraphModule:
    """A copy without the convolutions that no kernel computes; they become matmuls."""
    if not module.graph.find_nodes(op="call_function", target=_CONVOLUTION):
        return module
    copied, _ = copy_graph(module)
    convolutions.expand(copied, current_training_decompositions())
    passes.clean(copied)
    return copied


def _count_kernels(module: fx.GraphModule) -> Counter[str]:
    targets = [node.target for node in module.graph.nodes]
    ops = [one for one in targets if isinstance(one, torch._ops.OpOverload)]
    names = [op._opname for op in ops if op.namespace == NAMESPACE]
    # A number at the end makes the op of a kernel unique.
    return Counter(re.sub(r"_\d+$", "", name) for name in names)
