"""Capture a PyTorch model: a module and example arguments in, a functional fx program out."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
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
from torch.utils import _pytree as torch_pytree

from turbine import dims, dtypes, errors, pytree
from turbine.capture import dim_names, graph_passes, small_sizes, trees
from turbine.capture.constants import fold_uniform
from turbine.capture.crossed_reads import mark_crossed_reads
from turbine.capture.declared_ops import Expanding
from turbine.capture.decompositions import current_aot_decompositions
from turbine.capture.effect_tokens import drop_tokens
from turbine.capture.export_errors import export_error
from turbine.capture.graph_checks import check_graph, check_strides
from turbine.capture.index_checks import check_early, check_indices
from turbine.capture.joined_indices import join_indices
from turbine.capture.one_thread import traces
from turbine.capture.ownership import isolate_writes
from turbine.capture.program_check import agrees, can_compare
from turbine.capture.reshapes import rewrite_reshapes
from turbine.capture.size_arithmetic import rewrite_size_arithmetic
from turbine.capture.small_integers import widen_small_integers
from turbine.capture.training_mode import warn_of_training_mode
from turbine.capture.traits import DeviceAffinity, DeviceTensorTrait, ExternalTensorTrait
from turbine.signature import Input, Output, Range, Signature

# Where arguments are taken, by their places among those passed.
Devices = Mapping[int, DeviceAffinity]


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant of the model. A mutable one is written by the program."""

    name: str
    tensor: torch.Tensor
    mutable: bool = False
    external: ExternalTensorTrait | None = None  # where it is to be found, if a user has said so
    in_code: bool = False  # its value is part of the code, wherever others are
    uninitialized: bool = False  # it has no value before the program writes one
    noinline: bool = False  # its value is not to be put in the place of what reads it
    device: DeviceAffinity | None = None  # where it is held, if a user has said so
    open_axes: tuple[int, ...] = ()  # along these it may get any size; it starts without elements

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its sizes; None is one that varies."""
        sizes = enumerate(self.tensor.shape)
        return tuple(None if axis in self.open_axes else size for axis, size in sizes)


@dataclass(frozen=True)
class Region:
    """A functional ATen graph and what its placeholders and results stand for."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]  # placeholders passed at every call, in order
    results: tuple[fx.Node, ...]  # values returned, mutated inputs last
    weights: Mapping[str, Weight] = field(default_factory=dict)  # placeholder -> value bound to it
    stores: Mapping[str, fx.Node] = field(default_factory=dict)  # weight -> its value afterwards
    constants: Mapping[str, Any] = field(default_factory=dict)  # placeholder -> fixed value
    devices: Devices = field(default_factory=dict)  # of inputs, by their places


@dataclass(frozen=True, kw_only=True)
class Program(Region):
    """A whole exported model: its graph, and how a user calls it."""

    signature: Signature
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # the example arguments

    def text(self) -> str:
        """The graph as readable code."""
        return str(self.graph.print_readable(print_output=False))


@traces
def capture(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    arg_device: Devices | None = None,
    least_sizes: bool = True,
) -> Program:
    """Export, decompose and clean a model; `arg_device` says where arguments are taken.

    Without `least_sizes`, those that PyTorch assumes are nobody's: the least that are right are
    found from 0 on.
    """
    if isinstance(model, ExportedProgram):
        exported = model
    else:
        exported = export_program(model, args, kwargs or {}, dynamic_shapes, strict)
        warn_of_training_mode(model, exported)
    check_strides(exported.graph)
    decomposed = _decompose(exported)
    general = _trace(exported, decomposed)
    graph_passes.run(decomposed.graph_module)
    check_graph(decomposed.graph)
    program = _program(decomposed, _parameter_names(model, exported))
    for branch in _branches(decomposed.graph_module):
        graph_passes.run(branch)
        check_graph(branch.graph)
        _prepare(branch.graph, [node.name for node in branch.graph.find_nodes(op="placeholder")])
    _prepare(program.graph.graph, program.inputs)

    is_open = small_sizes.are_open(dynamic_shapes)
    sizes = _SmallSizes(model, exported, general, program, strict)
    signature = sizes.settled(is_open, least_sizes)
    named = dim_names.with_user_names(signature, dynamic_shapes)
    devices = check_devices(arg_device, len(program.inputs))
    return replace(program, signature=named, devices=devices)


def _branches(module: fx.GraphModule) -> list[fx.GraphModule]:
    """The graphs that operators of control flow choose from."""
    return [
        one for one in module.modules() if isinstance(one, fx.GraphModule) and one is not module
    ]


def _prepare(graph: fx.Graph, inputs: Sequence[str]) -> None:
    """Check indices, and rewrite what the compiler gets wrong."""
    widen_small_integers(graph)
    check_indices(graph)
    fold_uniform(graph, reads=True)
    check_early(graph)
    join_indices(graph)
    rewrite_reshapes(graph)
    isolate_writes(graph, inputs)
    rewrite_size_arithmetic(graph)
    mark_crossed_reads(graph)


@dataclass(frozen=True)
class _SmallSizes:
    """Asks of small sizes, which PyTorch leaves out of a trace, whether the program is right."""

    model: torch.nn.Module | ExportedProgram
    exported: ExportedProgram
    general: small_sizes.Trace
    program: Program
    strict: bool

    def settled(self, is_open: bool, least_sizes: bool) -> Signature:
        """The signature with the sizes at which the program is right."""
        signature = self.program.signature
        if signature.conditions or (is_open and least_sizes):
            signature = small_sizes.allow(self.general, signature, is_open, self._retrace)
        if not least_sizes:
            signature = small_sizes.from_zero(signature)
        if not is_open or not least_sizes:
            signature = small_sizes.confirm(signature, self._is_right)
        return signature

    def _is_right(self, sizes: small_sizes.Sizes) -> bool:
        """By numbers, which is quick, or where they do not tell by another trace."""
        program, model = self.program, self.model
        if isinstance(model, ExportedProgram) or not can_compare(program):
            return small_sizes.is_same(self.general, program.signature, sizes, self._retrace)
        examples = torch_pytree.tree_leaves(self.exported.example_inputs)
        leaves = small_sizes.resize_examples(program.signature, examples, sizes)
        with small_sizes.quietly():
            return agrees(program, model, leaves, *self._arguments(leaves))

    def _retrace(self, leaves: Sequence[Any]) -> small_sizes.Trace:
        model = self.model
        module = model.module() if isinstance(model, ExportedProgram) else model
        args, kwargs = self._arguments(leaves)
        special = export_program(module, args, kwargs, None, self.strict)
        return _trace(special, _decompose(special))

    def _arguments(self, leaves: Sequence[Any]) -> Any:
        return torch_pytree.tree_unflatten(leaves, self.exported.call_spec.in_spec)


def _trace(exported: ExportedProgram, decomposed: ExportedProgram) -> small_sizes.Trace:
    """A trace that stays as it is when the decomposed graph is worked on."""
    held = {**decomposed.constants, **decomposed.state_dict}
    specs = decomposed.graph_signature.input_specs
    weights = {spec.arg.name: held.get(spec.target) for spec in specs if spec.target is not None}
    graph = fx.GraphModule(decomposed.graph_module, copy.deepcopy(decomposed.graph))
    return small_sizes.Trace(exported.graph, graph, weights)


def check_devices(devices: Devices | None, count: int) -> Devices:
    """The devices of arguments, or an error that names one that is not an argument."""
    wrong = [place for place in devices or {} if place not in range(count)]
    if wrong:
        raise errors.ExportError(
            f"arg_device places argument {wrong[0]}, but there are {count}",
            hint="arguments are counted from 0, as leaves of nested ones",
        )
    return devices or {}


@traces
def export_program(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    strict: bool,
    name: str | None = None,
) -> ExportedProgram:
    """Export a model with PyTorch; errors speak of it by its class, or by `name`."""
    if not isinstance(model, torch.nn.Module):
        raise errors.ExportError(
            f"cannot export a {type(model).__name__}",
            hint="pass an nn.Module or a torch.export.ExportedProgram",
        )
    if not isinstance(args, tuple):
        raise errors.ExportError(
            f"args is a {type(args).__name__}, expected a tuple", hint="write args=(x,)"
        )
    args, kwargs = _without_repeats((args, kwargs))
    try:
        # The error that follows says what the log would.
        with Expanding(), small_sizes.without_log():
            return torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict
            )
    except Exception as error:
        raise export_error(name or type(model).__name__, error) from error


def _without_repeats(arguments: Any) -> Any:
    """Give each tensor argument an identity of its own.

    torch.export takes one tensor in two places for one input, and the program then ignores what
    a caller passes in the second place.
    """
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return torch_pytree.tree_map(own, arguments)


def _decompose(exported: ExportedProgram) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            # torch 2.13 warns of its own use of a class it deprecated.
            warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
            decomposed: ExportedProgram = exported.run_decompositions(current_aot_decompositions())
            drop_tokens(decomposed)
            return decomposed
    except Exception as error:
        raise errors.ExportError(
            f"decomposing the graph failed: {type(error).__name__}: {str(error).strip()}",
            hint="a decomposition given to extend_aot_decompositions may be at fault",
        ) from error


def _parameter_names(
    model: torch.nn.Module | ExportedProgram, exported: ExportedProgram
) -> tuple[str, ...]:
    """What a caller may call the positional arguments."""
    arguments = trees.arguments(exported.call_spec.in_spec).children
    if isinstance(model, ExportedProgram):
        return _placeholder_names(exported, arguments)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    declared = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in declared if parameter.kind in positional]
    return (*names, *(f"arg{i}" for i in range(len(names), len(arguments))))


def _placeholder_names(
    exported: ExportedProgram, arguments: Sequence[pytree.Tree]
) -> tuple[str, ...]:
    """PyTorch calls the input of an argument that is one leaf as the function does."""
    specs = exported.graph_signature.input_specs
    inputs = iter([spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT])
    names = []
    for index, tree in enumerate(arguments):
        leaves = [next(inputs) for _ in pytree.paths(tree, "")]
        names.append(leaves[0] if tree == pytree.LEAF else f"arg{index}")
    return tuple(names)


def _program(exported: ExportedProgram, parameters: tuple[str, ...]) -> Program:
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
        weights=_weights(exported, stores),
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
    """State to store, inputs to write back, and values to return."""
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
            raise errors.ExportError(f"a result of kind {spec.kind} is not supported")
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
        hint="pass tensors, ints, floats, bools, strings, None or nests of these",
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


# How PyTorch names ints and floats that it cannot know before the program runs.
_DATA_DEPENDENT = ("u", "zuf")


def _is_data_dependent(value: torch.SymInt) -> bool:
    return any(str(s).startswith(_DATA_DEPENDENT) for s in value.node.expr.free_symbols)


def _tensor_type(value: torch.Tensor, name: str) -> tuple[str, tuple[int | str, ...]]:
    if value.layout != torch.strided:
        raise errors.ExportError(f"{name} has layout {value.layout}, expected a strided tensor")
    shape = tuple(d if isinstance(d, int) else str(d) for d in value.shape)
    return dtypes.of_torch(value.dtype).name, shape


def _symbols(exported: ExportedProgram) -> dict[str, Range]:
    return {
        str(symbol): Range(int(limits.lower), _upper_bound(limits.upper))
        for symbol, limits in exported.range_constraints.items()
        if symbol.is_Symbol and not str(symbol).startswith(_DATA_DEPENDENT)
    }


def _conditions(exported: ExportedProgram, nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    """What the trace took for granted of sizes, beyond their ranges."""
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


def _weights(exported: ExportedProgram, stores: Mapping[str, fx.Node]) -> dict[str, Weight]:
    """Bind each lifted placeholder to its tensor; tied weights share one Weight."""
    unique: dict[tuple[Any, ...], Weight] = {}
    bound = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT or not isinstance(spec.arg, TensorArgument):
            continue
        name = str(spec.target)
        tensor = exported.state_dict.get(name, exported.constants.get(name))
        if not isinstance(tensor, torch.Tensor):
            raise errors.ExportError(f"no value for {name}, an input of kind {spec.kind}")
        mutable = spec.arg.name in stores
        external = ExternalTensorTrait.get(tensor)
        key = (id(spec),) if mutable else (external, *identity(tensor))
        device = DeviceTensorTrait.get(tensor)
        weight = Weight(name, tensor.detach(), mutable, external, device=device)
        bound[spec.arg.name] = unique.setdefault(key, weight)
    return bound


def bind_weights(program: Program, weights: Mapping[str, Weight]) -> Program:
    """The program with weights in the place of some of its inputs, unless it writes them."""
    specs = program.signature.inputs
    bound = {
        place: weights[spec.name]
        for place, spec in zip(program.inputs, specs, strict=True)
        if spec.name in weights and not spec.mutated
    }
    left = [place not in bound for place in program.inputs]
    return replace(
        program,
        inputs=tuple(compress(program.inputs, left)),
        weights={**program.weights, **bound},
        signature=replace(program.signature, inputs=tuple(compress(specs, left))),
    )


def share_weights(programs: Mapping[str, Program]) -> dict[str, Program]:
    """Let programs of one root module hold one Weight for one tensor, and state by its name."""
    written = {
        program.weights[place].name for program in programs.values() for place in program.stores
    }
    shared: dict[tuple[Any, ...], Weight] = {}
    taken: dict[str, Weight] = {}

    def unified(entry: str, weight: Weight) -> Weight:
        key = (weight.name,) if weight.name in written else identity(weight.tensor)
        if key not in shared:
            # Constants that PyTorch lifts have one name in every program.
            name = weight.name if weight.name not in taken else f"{entry}.{weight.name}"
            shared[key] = replace(weight, name=name, mutable=weight.name in written)
            taken[name] = shared[key]
        return shared[key]

    return {
        entry: replace(
            program, weights={place: unified(entry, w) for place, w in program.weights.items()}
        )
        for entry, program in programs.items()
    }


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements in the same memory."""
    if not tensor.numel():
        return (id(tensor),)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
