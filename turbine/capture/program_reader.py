"""Convert a decomposed ExportedProgram to a Program: arguments, results, sizes and weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)

from turbine import dims, dtypes, errors, pytree
from turbine.capture import trees
from turbine.capture.program import Program
from turbine.capture.weights import find_weights
from turbine.signature import Input, Output, Range, Signature


def read_program(exported: ExportedProgram, parameters: tuple[str, ...]) -> Program:
    """The program of an export; `parameters` are the names of positional arguments."""
    in_tree = trees.from_spec(exported.call_spec.in_spec)
    nodes = {node.name: node for node in exported.graph.nodes}
    specs = exported.graph_signature.input_specs
    user = [spec for spec in specs if spec.kind == InputKind.USER_INPUT]
    stores, mutated, results = _split_outputs(exported, nodes)
    outputs = [_output(spec.arg, nodes) for spec in _user_outputs(exported)]
    signature = Signature(
        inputs=tuple(
            _input(name, spec, nodes, mutated)
            for name, spec in zip(_leaf_names(in_tree, parameters), user, strict=True)
        ),
        outputs=tuple(outputs),
        in_tree=in_tree,
        out_tree=trees.from_spec(exported.call_spec.out_spec),
        symbols=_symbols(exported),
        parameters=parameters,
        conditions=_conditions(exported, nodes.values()),
    )
    passed = [s.arg.name for s in user if not isinstance(s.arg, ConstantArgument)]
    order = {spec.arg.name: i for i, spec in enumerate(user)}
    return Program(
        graph=exported.graph_module,
        signature=signature,
        inputs=tuple(passed),
        weights=find_weights(exported, stores),
        results=(*results, *(mutated[name] for name in sorted(mutated, key=order.__getitem__))),
        stores=stores,
        constants={s.arg.name: s.arg.value for s in user if isinstance(s.arg, ConstantArgument)},
        example=exported.example_inputs,
    )


def _leaf_names(in_tree: pytree.Tree, parameters: tuple[str, ...]) -> list[str]:
    positional, keywords = in_tree.children
    roots = [*parameters[: len(positional.children)], *map(str, keywords.keys)]
    children = (*positional.children, *keywords.children)
    return [p for root, tree in zip(roots, children, strict=True) for p in pytree.paths(tree, root)]


def _user_outputs(exported: ExportedProgram) -> list[Any]:
    specs = exported.graph_signature.output_specs
    return [spec for spec in specs if spec.kind == OutputKind.USER_OUTPUT]


def _split_outputs(
    exported: ExportedProgram, nodes: dict[str, fx.Node]
) -> tuple[dict[str, fx.Node], dict[str, fx.Node], list[fx.Node]]:
    """The state to store, the inputs to write back, and the values to return."""
    placeholders = {
        spec.target: spec.arg.name
        for spec in exported.graph_signature.input_specs
        if spec.kind in (InputKind.BUFFER, InputKind.PARAMETER)
    }
    stores, mutated, results = {}, {}, []
    for spec in exported.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            stores[placeholders[spec.target]] = nodes[spec.arg.name]
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            mutated[spec.target] = nodes[spec.arg.name]
        elif spec.kind == OutputKind.USER_OUTPUT:
            if _output(spec.arg, nodes).kind in ("tensor", "scalar"):
                results.append(nodes[spec.arg.name])
        else:
            raise errors.ExportError(
                f"a result of kind {spec.kind} is not supported",
                hint="return tensors, numbers and nests of them from the model",
            )
    return stores, mutated, results


def _input(
    name: str, spec: InputSpec, nodes: dict[str, fx.Node], mutated: Mapping[str, fx.Node]
) -> Input:
    if isinstance(spec.arg, ConstantArgument):
        return Input(name, "constant", value=spec.arg.value)
    value = nodes[spec.arg.name].meta["val"]
    if isinstance(spec.arg, SymIntArgument):
        return Input(name, "int", value=str(value))
    if isinstance(spec.arg, TensorArgument):
        dtype, shape = _tensor_type(value, name)
        return Input(name, "tensor", dtype, shape, mutated=spec.arg.name in mutated)
    raise errors.ExportError(
        f"argument {name} of kind {type(spec.arg).__name__} is not supported",
        hint="pass tensors, ints, floats, bools, strings, None or pytrees of these",
    )


def _output(argument: Any, nodes: dict[str, fx.Node]) -> Output:
    if isinstance(argument, ConstantArgument):
        return Output("constant", value=argument.value)
    value = nodes[argument.name].meta["val"]
    if isinstance(argument, TensorArgument):
        dtype, shape = _tensor_type(value, "a result")
        return Output("tensor", dtype, shape)
    if isinstance(value, torch.SymInt) and not _is_data_dependent(value):
        return Output("size", value=str(value))
    return Output(
        "scalar", dtype={torch.SymInt: "int64", torch.SymFloat: "float64"}.get(type(value), "bool")
    )


# How PyTorch names unbacked symbols: ints and floats that depend on data.
_DATA_DEPENDENT = ("u", "zuf")


def _is_data_dependent(value: torch.SymInt) -> bool:
    return any(str(s).startswith(_DATA_DEPENDENT) for s in value.node.expr.free_symbols)


def _tensor_type(value: torch.Tensor, name: str) -> tuple[str, tuple[int | str, ...]]:
    if value.layout != torch.strided:
        raise errors.ExportError(
            f"{name} has layout {value.layout}, expected a strided tensor",
            hint="convert it with to_dense(), or a nested tensor with to_padded_tensor(0)",
        )
    shape = tuple(d if isinstance(d, int) else str(d) for d in value.shape)
    return dtypes.of_torch(value.dtype).name, shape


def _symbols(exported: ExportedProgram) -> dict[str, Range]:
    return {
        str(symbol): Range(int(limits.lower), _upper_bound(limits.upper))
        for symbol, limits in exported.range_constraints.items()
        if symbol.is_Symbol and not str(symbol).startswith(_DATA_DEPENDENT)
    }


def _conditions(exported: ExportedProgram, nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    """The conditions on sizes that the trace assumed, besides their ranges."""
    values = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    tensors = [v for v in values if isinstance(v, FakeTensor)]
    shape_env = tensors[0].fake_mode.shape_env if tensors else None
    if shape_env is None:
        return ()
    known = {str(symbol) for symbol in exported.range_constraints}
    texts = dict.fromkeys(str(guard.expr) for guard in shape_env.guards)
    return tuple(t for t in texts if dims.is_condition(t) and set(dims.names(t)) <= known)


def _upper_bound(upper: Any) -> int | None:
    return int(upper) if upper.is_Integer and upper < 2**62 else None


def name_parameters(
    model: torch.nn.Module | ExportedProgram, exported: ExportedProgram
) -> tuple[str, ...]:
    """The names of the positional arguments."""
    arguments = trees.arguments(exported.call_spec.in_spec).children
    if isinstance(model, ExportedProgram):
        declared_names = _declared_names(exported)
        if len(declared_names) < len(arguments):
            return _placeholder_names(exported, arguments)
        return declared_names[: len(arguments)]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    declared = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in declared if parameter.kind in positional]
    return (*names, *(f"arg{i}" for i in range(len(names), len(arguments))))


def _declared_names(exported: ExportedProgram) -> tuple[str, ...]:
    """The names in the model's own signature, those of keywords last; none if they are unknown."""
    root = exported.module_call_graph[0].signature if exported.module_call_graph else None
    names = None if root is None else root.forward_arg_names
    return () if names is None else tuple(names)


def _placeholder_names(
    exported: ExportedProgram, arguments: Sequence[pytree.Tree]
) -> tuple[str, ...]:
    """The names of placeholders: an argument that is one leaf has its name in the function."""
    specs = exported.graph_signature.input_specs
    inputs = iter([spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT])
    names = []
    for index, tree in enumerate(arguments):
        leaves = [next(inputs) for _ in pytree.paths(tree, "")]
        names.append(leaves[0] if tree == pytree.LEAF else f"arg{index}")
    return tuple(names)
