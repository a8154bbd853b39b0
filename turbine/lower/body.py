"""Import the nodes of a graph: IREE's op importer, with ops of our own, checks and control flow."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import torch
from iree.compiler.extras.fx_importer import GraphNodeImporter
from torch import fx

from turbine import errors
from turbine.capture.crossed_reads import UNFUSED
from turbine.capture.declared_ops import EMITTED
from turbine.lower import control_flow, emission
from turbine.lower.emission import TargetQuery
from turbine.mlir import flow, torch_values
from turbine.mlir.ir import Block, InsertionPoint, Location, Type, Value


class Body(GraphNodeImporter):
    """IREE's op importer, with emissions of custom ops, and with assertions, which it drops."""

    query: TargetQuery

    def _import_torch_op_overload(
        self, loc: Location, node: fx.Node, concrete_target: Any = None
    ) -> None:
        target: Any = node.target if concrete_target is None else concrete_target
        rule = EMITTED.get(target.name())
        if rule is not None:
            self._emit(rule, loc, node, target)
        elif target is torch.ops.aten._assert_async.msg:
            self._check(loc, node)
        else:
            super()._import_torch_op_overload(loc, node, concrete_target)
        self._separate_crossed(loc, node)

    def _separate_crossed(self, loc: Location, node: fx.Node) -> None:
        """Keep the compiler from fusing a value with an op that reads it at two indices."""
        if UNFUSED in node.meta:
            tensor = self._argument(node, loc)
            separate = flow.separate(tensor, loc)
            of = self.resolve_node_value(node).type
            self._v[(node, 0)] = torch_values.from_builtin(separate, of, loc)

    def _emit(self, rule: emission.Rule, loc: Location, node: fx.Node, target: Any) -> None:
        given = declared_arguments(node, target._schema)
        nested = _result_values(node, target._schema)
        declared = [self.result_type(value) for value in _in_line(nested)]
        with loc:
            results = [None if of is None else torch_values.builtin_type(of) for of in declared]
            arguments = [self._argument(value, loc) for value in given]
            module = self.fx_importer.module
            examples = list(fx.map_arg(given, lambda one: one.meta["val"]))
            made = rule(emission.Site(module, arguments, examples, results, loc, self.query))
        values = [made] if isinstance(made, Value) else list(made)
        if not isinstance(node.meta.get("val"), torch.Tensor):
            self._multi_result_nodes.add(node)
        pairs = zip(values, declared, strict=True)
        found = iter([None if of is None else torch_values.convert(v, of, loc) for v, of in pairs])
        for index, value in enumerate(nested):
            if isinstance(value, (tuple, list)):
                self._bind_list(node, index, list(islice(found, len(value))))
            else:
                self.bind_node_value(node, next(found), index)

    def _bind_list(self, node: fx.Node, index: int, values: list[Value | None]) -> None:
        """Bind a list among several results to its getitem nodes."""
        for user in node.users:
            if user.target is operator.getitem and user.args[1] == index:
                self._multi_result_nodes.add(user)
                for place, value in enumerate(values):
                    self.bind_node_value(user, value, place)

    def _import_getitem(self, loc: Location, node: fx.Node) -> None:
        if node not in self._multi_result_nodes:  # lists are bound already
            super()._import_getitem(loc, node)
            self._separate_crossed(loc, node)

    def _argument(self, value: Any, loc: Location) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._argument(one, loc) for one in value]
        if not isinstance(value, fx.Node):
            return value
        resolved = self.resolve_node_value(value)
        return torch_values.convert(resolved, torch_values.builtin_type(resolved.type), loc)

    def result_type(self, value: Any) -> Type | None:
        """The torch type of a tensor or a number."""
        if isinstance(value, torch.Tensor):
            return self._cc.get_vtensor_type(value.size(), value.dtype)
        return None if value is None else Type.parse(_NUMBERS[type(value)])

    def _import_hop(self, loc: Location, node: fx.Node, hop: Any) -> None:
        rule = control_flow.RULES.get(hop.name())
        if rule is None:
            super()._import_hop(loc, node, hop)
            return
        self._multi_result_nodes.add(node)
        for place, value in enumerate(rule(self, node, loc)):
            self.bind_node_value(node, value, place)

    def operand(self, value: Any, loc: Location) -> Value:
        """The value of an argument of a node."""
        return self._import_argument(loc, value)

    def import_graph(self, graph: fx.Node, values: Sequence[Value], block: Block) -> list[Value]:
        """The results of a graph that control flow runs, imported into a block."""
        owner = graph.graph.owning_module
        assert owner is not None
        module = owner.get_submodule(str(graph.target))
        assert isinstance(module, fx.GraphModule)
        body = Body(self.fx_importer, self._c, self._cc, block)
        body.query = self.query
        nodes = list(module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        for node, value in zip(inputs, values, strict=True):
            body.bind_node_value(node, value)
        body.import_nodes(nodes, skip_placeholders_outputs=True)
        results: Any = nodes[-1].args[0]
        listed = results if isinstance(results, (tuple, list)) else [results]
        with InsertionPoint(block):
            return [body.operand(result, Location.unknown()) for result in listed]

    def _check(self, loc: Location, node: fx.Node) -> None:
        condition, message = node.args
        assert isinstance(condition, fx.Node)
        where = user_line(node)
        text = f"{message} at {where}" if where is not None else str(message)
        torch_values.check(self.resolve_node_value(condition), text, loc)


_NUMBERS = {
    int: "!torch.int",
    torch.SymInt: "!torch.int",
    float: "!torch.float",
    torch.SymFloat: "!torch.float",
    bool: "!torch.bool",
    torch.SymBool: "!torch.bool",
}


def declared_arguments(node: fx.Node, schema: Any) -> list[Any]:
    """The arguments of a node in schema order, with defaults filled in."""
    named = dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | node.kwargs
    return [named.get(a.name, a.default_value) for a in schema.arguments]


def _result_values(node: fx.Node, schema: Any) -> list[Any]:
    """The results of a node; a list that is the only result is flattened."""
    if not schema.returns:
        return []
    value = node.meta["val"]
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _in_line(values: Sequence[Any]) -> list[Any]:
    """Values with lists flattened."""
    lists = [value if isinstance(value, (tuple, list)) else [value] for value in values]
    return list(chain.from_iterable(lists))


def user_line(node: fx.Node) -> str | None:
    """The line of the user's code that a node comes from."""
    return errors.line_of_trace(node.stack_trace)
