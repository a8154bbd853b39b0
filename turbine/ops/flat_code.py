"""Lower a graph to a module with one function of flat arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial

from torch import fx

from turbine.capture.flat_call import flatten
from turbine.capture.program import Region, Weight
from turbine.dump import dump
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import lower
from turbine.mlir import context as mlir_context
from turbine.mlir import elementwise
from turbine.mlir.ir import Module
from turbine.signature import Slot
from turbine.target import Target

_SHOWN_ELEMENTS = 50


@dataclass(frozen=True)
class FlatCode:
    """The module of a graph, and the slots of its function."""

    module: Module
    inputs: list[Slot]
    results: list[Slot]
    graph: fx.GraphModule  # whose nodes the locations of the module name

    @cached_property
    def fingerprint(self) -> str:
        """A digest that is equal for modules that compile to the same code."""
        return mlir_context.fingerprint(self.module)

    @cached_property
    def bytecode(self) -> bytes:
        """The module as bytecode."""
        return mlir_context.to_bytecode(self.module)


def lower_graph(
    name: str,
    eager: fx.GraphModule,
    resolve: Callable[[], Target],
    locate: Callable[[fx.Node], str],
    *,
    weights: Mapping[str, Weight] | None = None,
    fixed: AbstractSet[str] = frozenset(),
) -> FlatCode:
    """Lower a copy of a graph.

    Placeholders in `weights` are constants or parameters of the code. The memory of `fixed` ones
    stays in place between calls.
    """
    weights = dict(weights or {})
    graph, inputs, results = flatten(eager, fixed, weights.keys())
    *_, output = graph.graph.nodes
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    passed = [name for name in names if name not in weights]
    region = Region(graph, tuple(passed), tuple(output.args[0]), weights)
    module = lower(region, TargetQuery(resolve), locate=locate).module
    mlir_context.verify(module)
    elementwise.use_formulas(module)
    text = partial(mlir_context.to_text, module, large_elements_limit=_SHOWN_ELEMENTS)
    dump(name, {"captured.py": partial(_code, graph), "lowered.mlir": text})
    slots = [slot for slot, name in zip(inputs, names, strict=True) if name in passed]
    return FlatCode(module, slots, results, graph)


def _code(graph: fx.GraphModule) -> str:
    return str(graph.print_readable(print_output=False))
