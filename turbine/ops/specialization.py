"""Specialize an op for a call: arguments in, a key and a traced graph out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as torch_pytree

from turbine.capture import passes
from turbine.capture.decompositions import Table, current_tracing_decompositions
from turbine.capture.one_thread import traces
from turbine.capture.program import Weight
from turbine.ops.schema import Argument, Schema

# The axes of an argument whose sizes are static, or True for all; for a size, whether it is static.
Axes = Collection[int] | bool
# Static axes of arguments by name, or a function from the arguments of a call to these.
Static = Mapping[str, Axes] | Callable[[Sequence[Any]], Mapping[str, Axes]]
# PyTorch assumes that a dynamic size is at least this.
_LEAST_OPEN = 2


@dataclass(frozen=True)
class Leaf:
    """One value of a call; each element of a list is one."""

    value: Any
    argument: Argument
    static: Axes

    @property
    def is_passed(self) -> bool:
        """Whether it is an argument of compiled code; other values are part of the code."""
        return isinstance(self.value, torch.Tensor) or self.is_size

    @property
    def is_size(self) -> bool:
        """Whether it is a dynamic int."""
        is_int = self.argument.kind == "SymInt" and isinstance(self.value, int)
        return is_int and self.static is not True and self.value >= _LEAST_OPEN

    @property
    def fixed_axes(self) -> Collection[int]:
        """The axes of a tensor with static sizes."""
        rank = self.value.ndim
        if isinstance(self.static, bool):
            return range(rank) if self.static else ()
        return {axis % rank for axis in self.static if -rank <= axis < rank}


# Tensors that are constants of the code, and their versions when they were captured.
Captured = tuple[tuple[torch.Tensor, int], ...]


@dataclass(frozen=True)
class Traced:
    """The graph for calls with one key, and the conditions on their sizes."""

    graph: fx.GraphModule
    weights: dict[str, Weight]  # placeholders that are not arguments -> constants of the code
    tree: Any  # of results
    fixed: dict[int, Any]  # constant results, by position
    truths: frozenset[int]  # positions of bool results
    symbols: tuple[Any, ...]  # sympy symbol of each size; None for a static one
    conditions: tuple[Any, ...]
    captured: Captured = ()

    def serves(self, sizes: Sequence[int]) -> bool:
        """Whether the code is valid for a call with these sizes."""
        if not are_unchanged(self.captured):
            return False
        if not self.conditions:
            return True
        named = zip(self.symbols, sizes, strict=True)
        values = {symbol: size for symbol, size in named if symbol is not None}
        return all(bool(condition.xreplace(values)) for condition in self.conditions)


# For a function that PyTorch cannot trace: it serves all calls.
UNTRACED = Traced(fx.GraphModule({}, fx.Graph()), {}, None, {}, frozenset(), (), ())


def are_unchanged(captured: Captured) -> bool:
    """Whether captured tensors still have the values in the code."""
    return all(tensor._version == version for tensor, version in captured)


def leaves(schema: Schema, args: Sequence[Any], static: Static) -> list[Leaf]:
    """The values of a call in order, with lists flattened."""
    axes = static(args) if callable(static) else static
    return [
        Leaf(value, argument, axes.get(argument.name, False))
        for argument, given in zip(schema.arguments, args, strict=True)
        for value in (given if isinstance(given, (list, tuple)) else (given,))
    ]


def key_of(args: Sequence[Any], values: Sequence[Leaf]) -> Hashable:
    """A key that is equal for calls that may share code: dtypes, ranks, constants, equal sizes."""
    numbers: dict[int, int] = {}
    lengths = tuple(len(a) if isinstance(a, (list, tuple)) else -1 for a in args)
    return lengths, tuple(_key(leaf, numbers) for leaf in values)


def _key(leaf: Leaf, numbers: dict[int, int]) -> Hashable:
    if not leaf.is_passed:
        value = leaf.value
        # Equal is not enough: True == 1, 0.0 == -0.0, and nan differs from itself.
        return type(value), repr(value) if isinstance(value, float) else value
    if leaf.is_size:
        return _size_key(leaf.value, numbers)
    fixed = leaf.fixed_axes
    sizes = enumerate(leaf.value.shape)
    dims = [size if axis in fixed else _size_key(size, numbers) for axis, size in sizes]
    return leaf.value.dtype, tuple(dims)


def _size_key(size: int, numbers: dict[int, int]) -> Hashable:
    """The key of a size: PyTorch specializes 0 and 1, and gives equal sizes one symbol."""
    return size if size < _LEAST_OPEN else ("size", numbers.setdefault(size, len(numbers)))


def sizes_of(values: Sequence[Leaf]) -> list[int]:
    """Every size of a call in order, to check conditions."""
    return [
        size
        for leaf in values
        if leaf.is_passed
        for size in ([leaf.value] if leaf.is_size else leaf.value.shape)
    ]


def tensor_leaf(tensor: torch.Tensor, static: Axes) -> Leaf:
    """A leaf for a tensor argument of a function without a schema."""
    return Leaf(tensor, Argument("tensor", "Tensor", False, False, False, False, None), static)


@traces
def trace(function: Callable[..., Any], args: Sequence[Any], values: Sequence[Leaf]) -> Traced:
    """Trace a function of a list of arguments, for all calls with the key of this one."""
    return trace_here(function, args, values)


def trace_here(
    function: Callable[..., Any],
    args: Sequence[Any],
    values: Sequence[Leaf],
    table: Table | None = None,
) -> Traced:
    """Trace in a thread that holds the lock of tracing; `table` has the decompositions."""
    # These import Dynamo and sympy, which takes as long as importing torch.
    from torch._functorch.aot_autograd import aot_export_joint_simple
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shape_env = ShapeEnv()
    symbols: list[Any] = []
    passed_leaves = [leaf for leaf in values if leaf.is_passed]
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    inputs = [_symbolic(mode, leaf, symbols) for leaf in passed_leaves]
    found: dict[str, Any] = {}

    def flat(*passed: Any) -> list[Any]:
        passing = iter(passed)
        filled = iter([next(passing) if leaf.is_passed else leaf.value for leaf in values])
        results = function([_replace_leaves(argument, filled) for argument in args])
        given, found["tree"] = torch_pytree.tree_flatten(results)
        found["fixed"] = {i: v for i, v in enumerate(given) if not _is_computed(v)}
        found["truths"] = frozenset(i for i, v in enumerate(given) if isinstance(v, torch.SymBool))
        return [value for value in given if _is_computed(value)]

    graph: Any = aot_export_joint_simple(
        flat,
        tuple(inputs),
        trace_joint=False,
        decompositions=current_tracing_decompositions() if table is None else table,
    )
    passes.clean(graph)
    weights = _lift_constants(graph)
    conditions = tuple(guard.expr for guard in shape_env.guards)
    held = [weight.tensor for weight in weights.values() if not weight.tensor.is_inference()]
    captured = tuple((tensor, tensor._version) for tensor in held)
    return Traced(
        graph, weights, symbols=tuple(symbols), conditions=conditions, captured=captured, **found
    )


def _symbolic(mode: FakeTensorMode, leaf: Leaf, symbols: list[Any]) -> Any:
    """A symbolic int or fake tensor; the symbols of its sizes are appended to `symbols`."""
    if leaf.is_size:
        return _name_size(mode.shape_env, leaf.value, symbols)
    shape = []
    for axis, size in enumerate(leaf.value.shape):
        if axis in leaf.fixed_axes:
            symbols.append(None)
            shape.append(size)
        else:
            shape.append(_name_size(mode.shape_env, size, symbols))
    with mode:
        return torch.empty(shape, dtype=leaf.value.dtype)


def _name_size(shape_env: Any, size: int, symbols: list[Any]) -> Any:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(f"size_{len(symbols)}")
    symbol = shape_env.create_symbol(size, source=source, dynamic_dim=DimDynamic.DUCK)
    symbols.append(symbol if symbol.is_Symbol else None)
    return shape_env.create_symintnode(symbol, hint=size, source=source)


def _replace_leaves(argument: Any, leaves: Iterator[Any]) -> Any:
    """The argument with its leaves replaced."""
    if isinstance(argument, (list, tuple)):
        return [next(leaves) for _ in argument]
    return next(leaves)


def _is_computed(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def _lift_constants(graph: fx.GraphModule) -> dict[str, Weight]:
    """Replace constant tensors of the graph by placeholders."""
    weights = {}
    first = next(iter(graph.graph.nodes))
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        with graph.graph.inserting_before(first):
            place = graph.graph.placeholder(node.target)
        place.meta["val"] = node.meta["val"]
        weights[place.name] = Weight(node.target, graph.get_buffer(node.target), in_code=True)
        node.replace_all_uses_with(place)
        graph.graph.erase_node(node)
    return weights
