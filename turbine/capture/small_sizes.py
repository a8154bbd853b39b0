"""Allow small sizes that PyTorch excludes, where a trace at that size gives the same graph.

PyTorch assumes that every dynamic size is at least 2, and that every size computed from it is
neither 0 nor 1. Most programs do not depend on that, but a branch or a `squeeze` may. Guards do not
show it: a guard from a stride computation hides an equal one from a branch. So the model is traced
again at the size itself, and the graphs are compared.
"""

from __future__ import annotations

import ast
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.export import Dim
from torch.utils import _pytree as torch_pytree

from turbine import dims, dtypes, errors
from turbine.capture.export_noise import FAKE_TENSORS, mute_log
from turbine.signature import Input, Signature

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Trace:
    """A traced graph, the same graph decomposed, and the values of its weights."""

    traced: fx.Graph
    decomposed: fx.GraphModule
    weights: Mapping[str, Any] = field(default_factory=dict)  # by placeholder


# Traces and decomposes the model again, for other argument leaves.
Retrace = Callable[[Sequence[Any]], Trace]

# For empty tensors IREE may differ from PyTorch (the standard deviation of an empty column).
_LEAST = 1
_SEARCHED = 200
_MOST_SIZES = 6
_MOST_TRACES = 12


def has_default_ranges(dynamic_shapes: Any) -> bool:
    """Whether all ranges of sizes are PyTorch's: the user gave no Dim with a range."""
    leaves = torch_pytree.tree_leaves(dynamic_shapes)
    return any(leaf in (Dim.AUTO, Dim.DYNAMIC) for leaf in leaves) and not any(
        isinstance(leaf, Dim) for leaf in leaves
    )


def relax(general: Trace, signature: Signature, is_open: bool, retrace: Retrace) -> Signature:
    """The signature without conditions and minimum sizes that the program does not need."""
    refused = {name: _find_excluded(signature, name, is_open) for name in signature.symbols}
    usual = {name: _find_usual_size(signature, name) for name in signature.symbols}
    has_ints = any(spec.kind == "int" for spec in signature.inputs)
    if has_ints or not any(refused.values()) or None in usual.values():
        return signature

    traced: dict[str, set[int]] = {name: set() for name in refused}

    def is_valid(sizes: Mapping[str, int | None]) -> bool:
        known = {name: size for name, size in sizes.items() if size is not None}
        if not _is_possible(signature, known):
            return True
        for name, size in known.items():
            traced[name].add(size)
        return is_same(general, signature, known, retrace)

    alone = {
        name: [size for size in sizes if is_valid({**usual, name: size})]
        for name, sizes in refused.items()
    }
    together = _combinations(alone, usual)
    if len(together) > _MOST_TRACES:
        return signature
    wrong = [sizes for sizes in together if not is_valid(sizes)]
    right = {
        name: [n for n in sizes if n in traced[name] and all(other[name] != n for other in wrong)]
        for name, sizes in alone.items()
    }
    return _widen(signature, refused, right)


def drop_default_minimums(signature: Signature) -> Signature:
    """The signature with minimum sizes of 0 where PyTorch assumes 2."""
    symbols = {
        name: replace(limits, minimum=0 if limits.minimum <= _ASSUMED else limits.minimum)
        for name, limits in signature.symbols.items()
    }
    return replace(signature, symbols=symbols)


_ASSUMED = 2


def raise_minimums(signature: Signature, is_valid: Callable[[Sizes], bool]) -> Signature:
    """The signature with minimum sizes raised until the program is valid.

    A user's Dim allows 0 and 1, and PyTorch does not check whether the program does.
    """
    usual = {name: _find_usual_size(signature, name) for name in signature.symbols}
    known = {name: size for name, size in usual.items() if size is not None}
    symbols = dict(signature.symbols)
    if len(known) < len(usual) or any(spec.kind == "int" for spec in signature.inputs):
        return signature
    for name, limits in signature.symbols.items():
        for size in (1, 0):
            sizes = {**known, name: size}
            if not limits.holds(size) or not _is_possible(signature, sizes):
                continue
            if not is_valid(sizes):
                symbols[name] = replace(limits, minimum=size + 1)
                break
    ones = {name: 1 for name, limits in symbols.items() if limits.holds(1)}
    together = {**known, **ones}
    is_checked = len(ones) > 1 and _is_possible(signature, together)
    if is_checked and not is_valid(together):
        symbols |= {name: replace(symbols[name], minimum=2) for name in ones}
    return replace(signature, symbols=symbols)


def resize_examples(signature: Signature, examples: Sequence[Any], sizes: Sizes) -> list[Any]:
    """Example arguments resized by repeating their values.

    All-zero examples are replaced: they would hide a branch that scales its argument.
    """
    pairs = zip(signature.inputs, examples, strict=True)
    return [_resize(spec, example, sizes) for spec, example in pairs]


def _resize(spec: Input, example: Any, sizes: Sizes) -> Any:
    if spec.kind != "tensor" or not isinstance(example, torch.Tensor):
        return example
    resized = example.detach()
    if _is_zero(resized):
        # Alternate ones and zeros, which are valid indices too.
        alternating = (torch.arange(resized.numel()) + 1) % 2
        resized = alternating.to(resized.dtype).reshape(resized.shape)
    for axis, dim in enumerate(spec.shape):
        size = dims.evaluate(dim, sizes) or 0
        if not resized.shape[axis]:
            resized = resized.new_zeros([*resized.shape[:axis], 1, *resized.shape[axis + 1 :]])
        resized = resized.index_select(axis, torch.arange(size) % resized.shape[axis])
    return resized


def _is_zero(x: torch.Tensor) -> bool:
    has_values = x.device.type == "cpu" and not isinstance(x, FakeTensor)
    return has_values and not x.is_complex() and not x.to(torch.float64).any()


def _is_possible(signature: Signature, sizes: Sizes) -> bool:
    """Whether the conditions on several symbols allow these sizes."""
    joint = [c for c in signature.conditions if len(set(dims.names(c))) > 1]
    return all(_holds(c, sizes) for c in joint)


def _find_excluded(signature: Signature, name: str, is_open: bool) -> list[int]:
    """The small sizes excluded only by a symbol's minimum or by conditions on small sizes."""
    about_small, minimum = _small_size_conditions(signature, name), signature.symbols[name].minimum
    alone = [c for c in signature.conditions if set(dims.names(c)) == {name}]
    least = min(_LEAST, minimum) if is_open else minimum
    found = [
        size
        for size in range(least, _SEARCHED)
        if (size < minimum or not all(_holds(c, {name: size}) for c in about_small))
        and all(_holds(c, {name: size}) for c in alone if c not in about_small)
    ]
    return found if len(found) <= _MOST_SIZES else []


def _small_size_conditions(signature: Signature, name: str) -> list[str]:
    """Conditions on one symbol that exclude only small sizes, such as those that PyTorch adds."""
    alone = [c for c in signature.conditions if set(dims.names(c)) == {name}]
    return [c for c in alone if is_about_small_sizes(c, name)]


def is_about_small_sizes(condition: str, name: str) -> bool:
    """Whether a condition is like `size != 1`, for a size that grows with the symbol."""
    compared = ast.parse(dims.readable(condition, {}), mode="eval").body
    if not isinstance(compared, ast.Compare) or len(compared.ops) != 1:
        return False
    left, operator, right = compared.left, compared.ops[0], compared.comparators[0]
    if isinstance(left, ast.Constant):
        left, operator, right = right, _MIRRORED.get(type(operator), operator), left
    # With one use of the symbol and these operators, the size is monotonic in the symbol.
    places = [node.id for node in ast.walk(left) if isinstance(node, ast.Name)]
    is_simple = places == [name] and all(isinstance(node, _SIMPLE) for node in ast.walk(left))
    is_bound = isinstance(right, ast.Constant) and right.value in (0, 1, 2)
    if not is_simple or not is_bound or not isinstance(operator, ast.NotEq | ast.Gt | ast.GtE):
        return False
    near, far = (dims.evaluate(ast.unparse(left), {name: n}) for n in (_SEARCHED, 2**40))
    return near is not None and far is not None and 2 < near <= far


_MIRRORED: dict[type, ast.cmpop] = {ast.Lt: ast.Gt(), ast.LtE: ast.GtE()}
_SIMPLE = (
    *(ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.USub),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv),
)


def _holds(condition: str, sizes: Sizes) -> bool:
    try:
        return dims.holds(condition, sizes)
    except ArithmeticError:
        return False


def _combinations(
    candidates: Mapping[str, Sequence[int]], usual: Mapping[str, int | None]
) -> list[dict[str, int | None]]:
    """Combinations of candidate sizes for two or more symbols, with usual sizes for the rest."""
    choices = [[*sizes, usual[name]] for name, sizes in candidates.items()]
    found = [dict(zip(candidates, sizes, strict=True)) for sizes in itertools.product(*choices)]
    return [sizes for sizes in found if sum(sizes[name] != usual[name] for name in candidates) > 1]


def _find_usual_size(signature: Signature, name: str) -> int | None:
    """A size of at least _USUAL that the signature allows, if one is found."""
    alone = [c for c in signature.conditions if set(dims.names(c)) == {name}]
    limits = signature.symbols[name]
    sizes = range(max(limits.minimum, _USUAL), _SEARCHED)
    allowed = (n for n in sizes if all(_holds(c, {name: n}) for c in alone))
    return next((size for size in allowed if limits.holds(size)), None)


_USUAL = 5


def _widen(
    signature: Signature, refused: Mapping[str, Sequence[int]], right: Mapping[str, Sequence[int]]
) -> Signature:
    symbols = dict(signature.symbols)
    dropped = set()
    for name, sizes in right.items():
        if not refused[name]:
            continue
        least = symbols[name].minimum
        while least - 1 in sizes:
            least -= 1
        symbols[name] = replace(symbols[name], minimum=least)
        wrong = [size for size in refused[name] if size >= least and size not in sizes]
        for condition in _small_size_conditions(signature, name):
            needed = any(not _holds(condition, {name: size}) for size in wrong)
            dropped |= set() if needed else {condition}
    kept = tuple(c for c in signature.conditions if c not in dropped)
    return replace(signature, symbols=symbols, conditions=kept)


def is_same(general: Trace, signature: Signature, sizes: Sizes, retrace: Retrace) -> bool:
    """Whether a trace at some sizes equals the general one with these sizes substituted.

    PyTorch decomposes some ops, such as matmuls, by their sizes. If only the decomposed graphs
    differ, their results are compared.
    """
    try:
        with suppress_warnings():
            special = retrace([_example(spec, sizes) for spec in signature.inputs])
    except errors.ExportError:
        return False
    if _Comparison(sizes).are_same(general.decomposed.graph, special.decomposed.graph):
        return True
    is_same = _Comparison(sizes).are_same(general.traced, special.traced)
    return is_same and _have_same_results(general, special)


def _have_same_results(general: Trace, special: Trace) -> bool:
    """Whether the graphs return the same results for random arguments."""
    generator = torch.Generator().manual_seed(0)
    arguments = [
        _random(node, generator)
        for node in special.decomposed.graph.nodes
        if node.op == "placeholder" and node.name not in special.weights
    ]
    try:
        results = [_run(trace, arguments) for trace in (special, general)]
        torch.testing.assert_close(*results, equal_nan=True)
    except Exception:  # in doubt, the size is excluded
        return False
    return True


def _random(node: fx.Node, generator: torch.Generator) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    drawn = torch.rand(value.shape, generator=generator)
    return (drawn if value.dtype.is_floating_point or value.is_complex() else drawn * 2).to(
        value.dtype
    )


def _run(trace: Trace, arguments: Sequence[Any]) -> Any:
    given = iter(arguments)
    placeholders = [node for node in trace.decomposed.graph.nodes if node.op == "placeholder"]
    values = [
        trace.weights[node.name] if node.name in trace.weights else next(given)
        for node in placeholders
    ]
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return fx.Interpreter(trace.decomposed).run(*values)


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress PyTorch's warnings and logs about sizes that the user did not ask for."""
    with mute_log(FAKE_TENSORS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _example(spec: Input, sizes: Sizes) -> Any:
    if spec.kind != "tensor":
        return spec.value
    shape = [dims.evaluate(dim, sizes) or 0 for dim in spec.shape]
    return torch.zeros(shape, dtype=dtypes.from_torch_name(spec.dtype).torch)


class _Comparison:
    """Compares two graphs node by node, where symbols of the first are numbers in the second.

    Reshapes and copies, which keep the order of elements, are not compared: PyTorch uses different
    ones where an axis has size 1. The shapes of their results are compared.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.counterparts: dict[fx.Node, fx.Node] = {}

    def are_same(self, general: fx.Graph, special: fx.Graph) -> bool:
        """Whether the nodes that compute are the same, in the same order."""
        left, right = (
            [node for node in graph.nodes if self._computes(node)] for graph in (general, special)
        )
        return len(left) == len(right) and all(
            self._node(one, two) for one, two in zip(left, right, strict=True)
        )

    def _node(self, one: fx.Node, two: fx.Node) -> bool:
        self.counterparts[one] = two
        if one.op != two.op or (one.op == "call_function" and one.target != two.target):
            return False
        given = [torch_pytree.tree_flatten((_arguments(node), node.kwargs)) for node in (one, two)]
        (ours, our_spec), (theirs, their_spec) = given
        same = our_spec == their_spec and all(map(self._argument, ours, theirs))
        return same and (one.op == "output" or self._type(one) == self._type(two))

    def _argument(self, ours: Any, theirs: Any) -> bool:
        if not isinstance(ours, fx.Node):
            return type(ours) is type(theirs) and repr(ours) == repr(theirs)
        value = ours.meta.get("val")
        if isinstance(value, torch.SymInt):
            return bool(self._size(value) == theirs)
        return (
            isinstance(theirs, fx.Node)
            and self.counterparts.get(self._source(ours)) is self._source(theirs)
            and self._type(ours) == self._type(theirs)
        )

    def _type(self, node: fx.Node) -> Any:
        values = torch_pytree.tree_leaves(node.meta.get("val"))
        return [
            (value.dtype, self._shape(value)) for value in values if isinstance(value, torch.Tensor)
        ]

    def _shape(self, value: torch.Tensor) -> list[int | None]:
        return [self._size(size) for size in value.shape]

    def _size(self, size: int | torch.SymInt) -> int | None:
        return size if isinstance(size, int) else dims.evaluate(str(size), self.sizes)

    def _computes(self, node: fx.Node) -> bool:
        """Whether a node is neither a size, nor a check of one, nor a reshape."""
        is_size = isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | torch.SymFloat)
        return not is_size and node.target not in _CHECKS and self._source(node) is node

    def _source(self, node: fx.Node) -> fx.Node:
        """The node behind reshapes and copies: it has the same elements in the same order."""
        while node.target in _RESHAPES or self._keeps_order(node):
            node = node.all_input_nodes[0]
        return node

    def _keeps_order(self, node: fx.Node) -> bool:
        if node.target is torch.ops.aten.slice.Tensor:
            _, _, start, end, step = _arguments(node)
            return (start, step) == (0, 1) and isinstance(end, int) and end >= _END
        if node.target is torch.ops.aten.expand.default:
            shapes = [self._shape(one.meta["val"]) for one in (node.all_input_nodes[0], node)]
            ours, theirs = ([size for size in shape if size != 1] for shape in shapes)
            return None not in ours and ours == theirs
        if node.target is torch.ops.aten.permute.default:
            shape = self._shape(node.all_input_nodes[0].meta["val"])
            order: Any = node.args[1]
            moved = [axis % len(shape) for axis in order]
            long = [axis for axis in moved if shape[axis] != 1]
            return long == sorted(long)
        return False


# Reshapes and copies in decomposed graphs.
_RESHAPES = (
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze.dims,
    torch.ops.aten.clone.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.contiguous.default,
)


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node; a slice has its defaults filled in."""
    if node.target is not torch.ops.aten.slice.Tensor:
        return node.args
    given: list[Any] = [*node.args, *_WHOLE[len(node.args) :]]
    source, axis, start, end, step = given
    return source, axis, 0 if start is None else start, _END if end is None else end, step


_END = 2**63 - 1
_WHOLE = (None, 0, None, None, 1)


_CHECKS = (
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
    torch.ops.aten._assert_tensor_metadata.default,
)
