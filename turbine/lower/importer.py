"""Lower a captured graph to MLIR: fx in, a module in the torch dialect out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from iree.compiler.extras.fx_importer import (
    ContextCache,
    FxImporter,
    RangeConstraint,
)
from torch import fx

from turbine import config, dtypes, errors
from turbine.capture.program import Devices, Region, Weight
from turbine.lower.body import Body, user_line
from turbine.lower.emission import TargetQuery
from turbine.lower.weights import (
    Number,
    WeightBuilder,
    builtin_type,
    check_addresses,
    check_place,
    constant_type,
)
from turbine.mlir import context as mlir_context
from turbine.mlir import devices, function, result_storage, torch_values
from turbine.mlir.ir import Block, InsertionPoint, Location, Module, Type, Value
from turbine.signature import state_functions
from turbine.target import Target

# Returns the location of a node for the compiler's messages.
Locate = Callable[[fx.Node], str]


@dataclass(frozen=True)
class Lowered:
    """A module, its external weights, and its state."""

    module: Module
    external: tuple[Weight, ...]
    state: tuple[Weight | Number, ...] = ()
    target: Target | None = None  # None if the IR is the same for every target


DEFAULT_NAME = "main"


def lower(region: Region, target: TargetQuery, *, locate: Locate | None = None) -> Lowered:
    """Lower one graph as the only function."""
    return lower_all({DEFAULT_NAME: region}, target, locate=locate)


def lower_all(
    regions: Mapping[str, Region],
    target: TargetQuery,
    *,
    module_name: str = "module",
    weights: str = "external",
    locate: Locate | None = None,
    shape_expressions: bool = False,
) -> Lowered:
    """Lower graphs as functions of one module, which share weights and state by name.

    `weights` is "external", "global" or "inline". Locations are lines of the user's code, or the
    results of `locate`. `target` is for emissions that depend on the target. With
    `shape_expressions`, the IR has the size expressions of dynamic sizes.
    """
    place = check_place(weights)
    module = Module.create(Location.unknown(mlir_context.new_context()))
    with module.context, Location.unknown():
        function.set_module_name(module, module_name)
        builder = WeightBuilder(module, place)
        for name, region in regions.items():
            define_function(
                builder, name, region, target, locate=locate, shape_expressions=shape_expressions
            )
        return finish(builder, target)


def define_function(
    builder: WeightBuilder,
    name: str,
    region: Region,
    target: TargetQuery,
    *,
    locate: Locate | None = None,
    visibility: str = "public",
    callable_inside: bool = False,
    shape_expressions: bool = False,
) -> FunctionTypes:
    """Lower one graph as a function of a module; returns its argument and result types.

    A function that is `callable_inside` has builtin types, for calls from the module.
    """
    walk = _Walk(region, builder, name, locate, target, visibility, callable_inside)
    if shape_expressions:
        walk.import_symbols()
    walk.bind_placeholders()
    walk.import_body()
    walk.store_and_return()
    if config.current().guard and visibility == "public" and not callable_inside:
        result_storage.take_storage(walk.block)
    return walk.input_types, walk.result_types


# The argument types and result types of a function.
FunctionTypes = tuple[list[Type], list[Type]]


def place_arguments(block: Block, where: Devices) -> None:
    """Set the devices of a function's arguments."""
    places = {at: devices.affinity(d.ordinal, d.queues) for at, d in where.items()}
    devices.place_arguments(block, places)


def finish(builder: WeightBuilder, target: TargetQuery) -> Lowered:
    """Define accessors of state, and list the external weights of the module."""
    kept = tuple(weight for weight in builder.defined.values() if weight.mutable)
    for index, value in enumerate(kept):
        _define_accessors(builder, index, value)
    weights = [w for w in builder.defined.values() if isinstance(w, Weight)]
    external = tuple(weight for weight in weights if builder.is_external(weight))
    check_addresses(external)
    return Lowered(builder.module, external, kept, target.answer)


def _define_accessors(builder: WeightBuilder, index: int, kept: Weight | Number) -> None:
    """Define the functions that read and set a value of the state."""
    getter, setter = state_functions(index)
    location = Location.unknown()
    of = _outer_type(kept)
    with InsertionPoint(function.define(builder.module, getter, [], [of], location)):
        value = builder.load_kept(kept, location)
        function.return_values([torch_values.convert(value, of, location)], location)
    block = function.define(builder.module, setter, [of], [], location)
    with InsertionPoint(block):
        new = torch_values.convert(block.arguments[0], constant_type(kept), location)
        builder.store_kept(kept, new, location)
        function.return_values([], location)


def _outer_type(kept: Weight | Number) -> Type:
    if isinstance(kept, Number):
        return constant_type(kept)
    row = dtypes.of_torch(kept.tensor.dtype)
    sizes = ",".join("?" if size is None else str(size) for size in kept.shape)
    return Type.parse(f"!torch.vtensor<[{sizes}],{row.torch_mlir}>")


# What says itself what is wrong, and where.
_CLEAR = (errors.ExportError, errors.ParameterError, errors.KernelError, errors.UnknownTarget)


class _Walk:
    """Lowers one graph; IREE's node importer does the ops."""

    def __init__(
        self,
        region: Region,
        weights: WeightBuilder,
        function_name: str,
        locate: Locate | None,
        target: TargetQuery,
        visibility: str,
        callable_inside: bool,
    ) -> None:
        self.region = region
        self.locate = locate
        self.weights = weights
        module = weights.module
        self.nodes = {node.name: node for node in region.graph.graph.nodes}
        self.importer = FxImporter(module=module)
        self.cache = self.importer._cc = _Types(module.context, locate)
        self.location = _first_location(self.cache, self.nodes.values())
        outside = torch_values.builtin_type if callable_inside else _same_type
        inputs = [self.nodes[name] for name in region.inputs]
        self.input_types = [outside(self.type_of(node)) for node in inputs]
        self.result_types = [outside(self.type_of(node)) for node in region.results]
        self.block = function.define(
            module,
            function_name,
            self.input_types,
            self.result_types,
            self.location,
            visibility=visibility,
        )
        place_arguments(self.block, region.devices)
        self.body = Body(self.importer, module.context, self.cache, self.block)
        self.body.query = target
        self.has_symbols = False

    def type_of(self, node: fx.Node) -> Type:
        try:
            return self.cache.node_val_to_type(node)
        except (NotImplementedError, ValueError, KeyError) as error:
            raise self.make_error(node, error) from error

    def make_error(self, node: fx.Node, error: Exception) -> errors.UnsupportedOp:
        where = user_line(node) if self.locate is None else self.locate(node)
        return errors.UnsupportedOp(
            f"cannot lower {node.target} ({node.name}): {error}",
            where=where,
            hint="give it a decomposition with turbine.aot.extend_aot_decompositions",
        )

    def import_symbols(self) -> None:
        """Define the symbols of dynamic sizes, which shapes are bound to afterwards."""
        self.has_symbols = True
        sizes = [size for node in self.nodes.values() for size in _dynamic_sizes(node)]
        ranges = {str(s): _range(size, s) for size in sizes for s in size.node.expr.free_symbols}
        with InsertionPoint(self.block):
            self.body._import_shape_symbols_with_guards(self.location, dict(sorted(ranges.items())))

    def bind_shape(self, node: fx.Node) -> None:
        """Bind the sizes of a tensor to expressions, if the IR can represent them."""
        if not self.has_symbols or not _dynamic_sizes(node):
            return
        location = self.cache.get_node_location(node) or self.location
        with InsertionPoint(self.block), suppress(NotImplementedError):
            self.body._create_bind_symbolic_shape_ops(location, node)

    def bind_placeholders(self) -> None:
        for name, argument in zip(self.region.inputs, self.block.arguments, strict=True):
            of = self.type_of(self.nodes[name])
            with InsertionPoint(self.block):
                value = torch_values.convert(argument, of, self.location)
            self.body.bind_node_value(self.nodes[name], value)
            self.bind_shape(self.nodes[name])
        for name, value in self.region.constants.items():
            if self.nodes[name].users:
                self.body.import_constant(self.location, self.nodes[name], value)
        for name, weight in self.region.weights.items():
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
            self.cache.call = node
            try:
                self.body.import_nodes([node], skip_placeholders_outputs=True)
                self.bind_shape(node)
            except _CLEAR:
                raise
            except (NotImplementedError, AssertionError, TypeError, KeyError, ValueError) as error:
                raise self.make_error(node, error) from error

    def store_and_return(self) -> None:
        # Read results before state is written: a result may be the old state.
        results = [self.body.resolve_node_value(node) for node in self.region.results]
        with InsertionPoint(self.block), self.location:
            for name, node in self.region.stores.items():
                weight = self.region.weights[name]
                new = self.body.resolve_node_value(node)
                value = torch_values.to_builtin(new, builtin_type(weight), self.location)
                self.weights.store(weight, value, self.location)
            given = [
                torch_values.convert(value, of, self.location)
                for value, of in zip(results, self.result_types, strict=True)
            ]
            function.return_values(given, self.location)


def _dynamic_sizes(node: fx.Node) -> list[Any]:
    """The dynamic sizes of a node's tensor."""
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def _range(size: Any, symbol: Any) -> RangeConstraint:
    """The minimum and maximum of a symbol in a size, as PyTorch has them."""
    known = size.node.shape_env.var_to_range.get(symbol)
    limits = torch.iinfo(torch.int64)
    if known is None:
        return RangeConstraint(0, limits.max)
    upper = int(known.upper) if known.upper.is_Integer else limits.max
    return RangeConstraint(int(known.lower) if known.lower.is_Integer else 0, upper)


def _same_type(of: Type) -> Type:
    return of


class _Types(ContextCache):
    """IREE's type cache with our dtype table: IREE's lacks uint16 and uint64."""

    def __init__(self, context: Any, locate: Locate | None) -> None:
        super().__init__(context)
        self.locate = locate
        self.call: fx.Node | None = None  # whose ops, with those of its bodies, are imported

    def get_node_location(self, node: fx.Node) -> Location | None:
        if self.locate is None:
            return super().get_node_location(node)
        return Location.file(self.locate(self.call or node), 0, 0, context=self._c)

    def dtype_to_type(self, dtype: torch.dtype) -> Type:
        return Type.parse(dtypes.of_torch(dtype).torch_mlir, self._c)


def _first_location(cache: Any, nodes: Any) -> Location:
    for node in nodes:
        location = cache.get_node_location(node)
        if location is not None:
            return location
    return Location.unknown()
