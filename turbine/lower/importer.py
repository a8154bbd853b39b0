"""Lower a captured program to MLIR: an fx graph in, a module in the torch dialect out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from iree.compiler.extras.fx_importer import ContextCache, FxImporter, GraphNodeImporter
from torch import fx

from turbine import dtypes, errors
from turbine.capture.program import Program, Weight
from turbine.lower.weights import WeightBuilder, builtin_type, check_place
from turbine.mlir import context as mlir_context
from turbine.mlir import function, torch_values
from turbine.mlir.ir import InsertionPoint, Location, Module, Type, Value


@dataclass(frozen=True)
class Lowered:
    """A module, and the weights it expects to find in an archive."""

    module: Module
    external: tuple[Weight, ...]


def lower(
    program: Program,
    *,
    function_name: str = "main",
    module_name: str = "module",
    weights: str = "external",
) -> Lowered:
    """Lower one program as one function; `weights` is "external", "global" or "inline"."""
    place = check_place(weights)
    module = Module.create(Location.unknown(mlir_context.new_context()))
    with module.context, Location.unknown():
        function.set_module_name(module, module_name)
        walk = _Walk(program, module, place, function_name)
        walk.bind_placeholders()
        walk.import_body()
        walk.store_and_return()
    used = {w.name: w for w in program.weights.values() if w.name in walk.weights.defined}
    return Lowered(module, tuple(w for w in used.values() if walk.weights.is_external(w)))


class _Walk:
    """One pass over one graph; the node importer of IREE does the ops themselves."""

    def __init__(self, program: Program, module: Module, place: str, function_name: str) -> None:
        self.program = program
        self.weights = WeightBuilder(module, place)
        self.nodes = {node.name: node for node in program.graph.graph.nodes}
        self.importer = FxImporter(module=module)
        self.cache = self.importer._cc = _Types(module.context)
        self.location = _first_location(self.cache, self.nodes.values())
        inputs = [self.nodes[name] for name in program.inputs]
        self.block = function.define(
            module,
            function_name,
            [self.type_of(node) for node in inputs],
            [self.type_of(node) for node in program.results],
            self.location,
        )
        self.body = _Body(self.importer, module.context, self.cache, self.block)

    def type_of(self, node: fx.Node) -> Type:
        try:
            return self.cache.node_val_to_type(node)
        except (NotImplementedError, ValueError, KeyError) as error:
            raise _lowering_error(node, error) from error

    def bind_placeholders(self) -> None:
        for name, argument in zip(self.program.inputs, self.block.arguments, strict=True):
            self.body.bind_node_value(self.nodes[name], argument)
        for name, value in self.program.constants.items():
            if self.nodes[name].users:
                self.body.import_constant(self.location, self.nodes[name], value)
        for name, weight in self.program.weights.items():
            self._bind_weight(self.nodes[name], weight)

    def _bind_weight(self, node: fx.Node, weight: Weight) -> None:
        def on_use() -> Value:
            with InsertionPoint(self.block):
                value = self.weights.load(weight, self.location)
                return torch_values.from_builtin(value, self.type_of(node), self.location)

        self.body.bind_node_value(node, on_use)

    def import_body(self) -> None:
        for node in self.nodes.values():
            if node.op != "call_function":
                continue
            try:
                self.body.import_nodes([node], skip_placeholders_outputs=True)
            except (NotImplementedError, AssertionError, TypeError, KeyError, ValueError) as error:
                raise _lowering_error(node, error) from error

    def store_and_return(self) -> None:
        # Results are read before state is written: a result may be the old state itself.
        results = [self.body.resolve_node_value(node) for node in self.program.results]
        with InsertionPoint(self.block), self.location:
            for name, node in self.program.stores.items():
                weight = self.program.weights[name]
                new = self.body.resolve_node_value(node)
                value = torch_values.to_builtin(new, builtin_type(weight), self.location)
                self.weights.store(weight, value, self.location)
            function.return_values(results, self.location)


class _Body(GraphNodeImporter):
    """IREE's op importer, which drops assertions, with assertions that hold at run time."""

    def _import_torch_op_overload(
        self, loc: Location, node: fx.Node, concrete_target: Any = None
    ) -> None:
        if node.target is not torch.ops.aten._assert_async.msg:
            super()._import_torch_op_overload(loc, node, concrete_target)
            return
        condition, message = node.args
        assert isinstance(condition, fx.Node)
        where = user_line(node)
        text = f"{message} at {where}" if where is not None else str(message)
        torch_values.check(self.resolve_node_value(condition), text, loc)


class _Types(ContextCache):
    """IREE's type cache with our dtype table in place of its own, which lacks uint16 and uint64."""

    def dtype_to_type(self, dtype: torch.dtype) -> Type:
        return Type.parse(dtypes.of_torch(dtype).torch_mlir, self._c)


def _first_location(cache: Any, nodes: Any) -> Location:
    for node in nodes:
        location = cache.get_node_location(node)
        if location is not None:
            return location
    return Location.unknown()


def _lowering_error(node: fx.Node, error: Exception) -> errors.UnsupportedOp:
    return errors.UnsupportedOp(
        f"cannot lower {node.target} ({node.name}): {error}",
        where=user_line(node),
        hint="give it a decomposition with turbine.aot.extend_aot_decompositions",
    )


def user_line(node: fx.Node) -> str | None:
    """The line of the user's own code that made a node."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    return errors.user_place([f"{file}:{line}" for file, line in reversed(frames)])
