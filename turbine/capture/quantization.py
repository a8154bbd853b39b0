"""Quantize the weights of matmuls: a program in, one with grouped products and a report out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, fx

from turbine import errors, packed_weights
from turbine.capture import grouped_product
from turbine.capture.grouped_product import GROUPED_PRODUCT, GROUPED_ROWS, Packed
from turbine.capture.nodes import source_of
from turbine.capture.program import Program, Weight
from turbine.capture.reshapes import rewrite_reshapes
from turbine.capture.traits import ExternalTensorTrait
from turbine.packed_weights import PARTS, Kept, Layer, QuantizationReport

aten = torch.ops.aten


class Quantizer:
    """Replaces matmuls with weights by matmuls with packed weights, in several programs.

    A weight that several programs use is packed once. `include` and `exclude` are patterns for the
    names of layers or of their weights.
    """

    def __init__(
        self, bits: int, group_size: int, include: Sequence[str], exclude: Sequence[str]
    ) -> None:
        packed_weights.check(bits, group_size, errors.ConfigError)
        _check_patterns(include, exclude)
        self.include = include
        self.exclude = exclude
        self.packing = _Packing(bits, group_size)
        self.found: list[_Product] = []
        self.chosen: list[_Product] = []
        self.before: dict[str, Weight] = {}
        self.after: dict[str, Weight] = {}

    def __call__(self, program: Program) -> Program:
        """A copy of the program with packed weights."""
        self.before |= _used_weights(program)
        copied = _copy(program)
        found = _products(copied)
        chosen = [p for p in found if _matches(p, self.include) and not _matches(p, self.exclude)]
        self.found += found
        self.chosen += chosen
        packed = _rewrite(copied, self.packing, chosen)
        self.after |= _used_weights(packed)
        return packed

    def see(self, weights: Iterable[Weight]) -> None:
        """Count weights that are used outside of programs too."""
        for weight in weights:
            if weight.name not in self.after:
                self.before[weight.name] = self.after[weight.name] = weight

    @property
    def packed_names(self) -> set[str]:
        """The names of the weights that were packed."""
        return {name for name, _ in self.packing.packed}

    def report(self) -> QuantizationReport:
        """The report on every weight; raises if a pattern matches no layer."""
        self._check_names()
        before, after = _bytes(self.before), _bytes(self.after)
        return QuantizationReport(tuple(self.packing.layers), self._kept(), before, after)

    def _check_names(self) -> None:
        names = sorted({name for product in self.found for name in product.names})
        for pattern in (*self.include, *self.exclude):
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
                raise errors.ConfigError(
                    errors.unknown("layer to quantize", pattern, names),
                    hint="patterns are as in file names: *.gate, layers.[0-3].*",
                )

    def _kept(self) -> tuple[Kept, ...]:
        """The weights that are not packed, largest first, and the reasons."""
        in_products = {p.weight.name for p in self.found}
        in_chosen = {p.weight.name for p in self.chosen}
        old = [w for name, w in self.after.items() if name in self.before]
        return tuple(
            Kept(w.name, w.tensor.nbytes, _why_kept(w.name, in_products, in_chosen))
            for w in sorted(old, key=lambda w: -w.tensor.nbytes)
        )


def _products(program: Program) -> list[_Product]:
    nodes = program.graph.graph.nodes
    return [product for node in nodes if (product := _product(program, node)) is not None]


def _rewrite(program: Program, packing: _Packing, chosen: Sequence[_Product]) -> Program:
    rewrite = _Rewrite(program, packing)
    # A weight as it is goes first: gradients are computed with what it is rounded to.
    for product in sorted(chosen, key=lambda product: product.views != _AS_IT_IS):
        if product.views != _AS_IT_IS and rewrite.is_bound(product.weight):
            rewrite.unpack_for(product)
        else:
            rewrite.replace_product(product)
    for node in list(program.graph.graph.nodes):
        rewrite.replace_lookup(node)
    return rewrite.finish()


@dataclass(frozen=True, eq=False)
class _Product:
    """A matmul with a weight, or a view of a weight, as one operand."""

    node: fx.Node
    weight: Weight
    matrix: Tensor  # the weight's values, [outputs, columns]
    views: tuple[Any, ...]  # the views between weight and matrix
    other: fx.Node
    is_left: bool  # the weight is the left operand

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layer: its weight, the module that holds it, and the module that uses it."""
        path = self.weight.name.removesuffix(".weight")
        stack = self.node.meta.get("nn_module_stack") or {}
        user = [str(entry[0]) for entry in stack.values()][-1:]
        return tuple(dict.fromkeys((path, self.weight.name, *user)))


# The positions of the two matrices among the arguments.
_PRODUCTS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
}
# Views and copies: their result is still the weight.
_VIEWS = {
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.squeeze.dim,
    aten.expand.default,
    aten.clone.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.alias.default,
}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def _product(program: Program, node: fx.Node) -> _Product | None:
    places = _PRODUCTS.get(node.target) if node.op == "call_function" else None
    if places is None:
        return None
    left, right = (node.args[place] for place in places)
    for operand, other, is_left in ((right, left, False), (left, right, True)):
        assert isinstance(operand, fx.Node)
        assert isinstance(other, fx.Node)
        seen = _weight_behind(program, operand)
        if seen is None:
            continue
        placeholder, matrix, views = seen
        matrix = matrix if is_left else matrix.transpose(-1, -2)
        if not matrix.numel() or (matrix.dim() == 3 and len(matrix) != 1):
            return None  # empty, or a batch of matrices
        matrix = matrix[0] if matrix.dim() == 3 else matrix
        weight = program.weights[placeholder.name]
        key = _AS_IT_IS if _is_same(matrix, weight.tensor) else (*views, is_left)
        return _Product(node, weight, matrix, key, other, is_left)
    return None


# The views if the matrix is the weight as it is.
_AS_IT_IS: tuple[Any, ...] = ()


def _is_same(matrix: Tensor, tensor: Tensor) -> bool:
    same_place = matrix.data_ptr() == tensor.data_ptr() and matrix.stride() == tensor.stride()
    return same_place and matrix.shape == tensor.shape


def _weight_behind(
    program: Program, node: fx.Node
) -> tuple[fx.Node, Tensor, tuple[Any, ...]] | None:
    """The placeholder that a node is a view of, and that view of its values."""
    if node.op == "placeholder":
        weight = program.weights.get(node.name)
        if weight is None or weight.mutable or weight.tensor.dtype not in _FLOATS:
            return None
        return node, weight.tensor, ()
    if node.target not in _VIEWS:
        return None
    source = _weight_behind(program, node.all_input_nodes[0])
    if source is None:
        return None
    placeholder, values, views = source
    if _repeats(node, values):
        return placeholder, values.reshape(1, *values.shape[-2:]), views
    if len(node.all_input_nodes) != 1:
        return None
    target: Any = node.target
    rest = node.args[1:]
    return placeholder, target(values, *rest, **node.kwargs), (*views, target, str(rest))


def _repeats(node: fx.Node, values: Tensor) -> bool:
    """Whether a node expands one matrix along a batch."""
    if node.target not in (aten.expand.default, aten.view.default) or values.dim() < 2:
        return False
    shape = node.meta["val"].shape
    is_one = all(size == 1 for size in values.shape[:-2])
    return is_one and len(shape) > 2 and tuple(shape[-2:]) == tuple(values.shape[-2:])


def _matches(product: _Product, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in product.names for pattern in patterns)


def _check_patterns(include: Sequence[str], exclude: Sequence[str]) -> None:
    if isinstance(include, str) or isinstance(exclude, str):
        raise errors.ConfigError(
            "include and exclude are each a list of patterns, not a string",
            hint='write a list, include=["layers.*"]',
        )


def _copy(program: Program) -> Program:
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    output: Any = graph.graph_copy(program.graph.graph, copied)
    graph.output(output)
    for old, new in copied.items():
        # Inputs and weights are found by their placeholders' names, which fx may change.
        new.name = old.name
    return replace(
        program,
        graph=fx.GraphModule(program.graph, graph),
        results=tuple(copied[node] for node in program.results),
        stores={name: copied[node] for name, node in program.stores.items()},
        weights=dict(program.weights),
    )


@dataclass
class _Packing:
    """The packed weights of all programs, packed on first use."""

    bits: int
    group_size: int
    layers: list[Layer] = field(default_factory=list)
    packed: dict[tuple[Any, ...], tuple[str, Packed]] = field(default_factory=dict)

    def pack(self, product: _Product) -> tuple[str, Packed]:
        """A name for the packed weight, and the weight."""
        key = (product.weight.name, product.views)
        if key not in self.packed:
            packed = grouped_product.pack(product.matrix, self.bits, self.group_size)
            self.layers.append(_layer(product, packed))
            name = product.weight.name
            count = sum(1 for other, _ in self.packed if other == name)
            self.packed[key] = f"{name}.{count}" if count else name, packed
        return self.packed[key]


@dataclass
class _Rewrite:
    """One program being rewritten."""

    program: Program
    packing: _Packing
    weights: dict[str, Weight] = field(default_factory=dict)  # placeholder -> new weight
    bound: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    replaced: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def replace_product(self, product: _Product) -> None:
        """Compute a matmul from the packed weight in float32, then convert to the old dtype."""
        if not bool(product.matrix.isfinite().all()):
            return
        node = product.node
        build = _Builder(self.program.graph.graph, node)
        # The result of one layer may be the input of another.
        other = self.replaced.get(product.other, product.other)
        x = build.transposed(other) if product.is_left else other
        flat = build.flat(build.cast(x, torch.float32))
        y = build.shaped_like(x, build(GROUPED_PRODUCT, flat, *self._bind(product)))
        y = build.transposed(y) if product.is_left else y
        if node.target is aten.addmm.default:
            y = _with_bias(build, node, y)
        self._replace(node, build.cast(y, node.meta["val"].dtype))

    def is_bound(self, weight: Weight) -> bool:
        """Whether a product with the weight as it is has been replaced."""
        return (weight.name, _AS_IT_IS) in self.bound

    def unpack_for(self, product: _Product) -> None:
        """Multiply with a view of the unpacked weight."""
        weight, node = product.weight, product.node
        build = _Builder(self.program.graph.graph, node)
        bound = self.bound[weight.name, _AS_IT_IS]
        with node.meta["val"].fake_mode:
            rows = build(aten.arange.default, weight.tensor.shape[0], dtype=torch.int64)
        whole = build.cast(build(GROUPED_ROWS, rows, *bound), weight.tensor.dtype)
        operand = node.args[_PRODUCTS[node.target][0 if product.is_left else 1]]
        assert isinstance(operand, fx.Node)
        node.replace_input_with(operand, _same_view(build, operand, whole))

    def replace_lookup(self, node: fx.Node) -> None:
        """Look rows up in the packed form of a weight that a matmul uses too."""
        find = _LOOKUPS.get(node.target) if node.op == "call_function" else None
        indices = find(*node.args) if find is not None else None
        if indices is None or indices.meta["val"].dtype not in (torch.int32, torch.int64):
            return
        table: Any = node.args[0]
        weight = self.program.weights.get(table.name)
        bound = self.bound.get((weight.name, _AS_IT_IS)) if weight is not None else None
        if bound is not None:
            build = _Builder(self.program.graph.graph, node)
            rows = build(GROUPED_ROWS, build.cast(indices, torch.int64), *bound)
            self._replace(node, build.cast(rows, node.meta["val"].dtype))

    def _bind(self, product: _Product) -> tuple[Any, ...]:
        """The arguments for a packed weight, with placeholders for its tensors."""
        key = (product.weight.name, product.views)
        if key not in self.bound:
            stem, packed = self.packing.pack(product)
            values, scales, *numbers = packed.arguments
            named = zip(PARTS, (values, scales), strict=True)
            nodes = (self._placeholder(f"{stem}.{part}", of, product) for part, of in named)
            self.bound[key] = (*nodes, *numbers)
        return self.bound[key]

    def _placeholder(self, name: str, tensor: Tensor, product: _Product) -> fx.Node:
        graph = self.program.graph.graph
        with graph.inserting_before(next(iter(graph.nodes))):
            node = graph.placeholder(re.sub(r"\W", "_", f"q_{name}"))
        node.meta["val"] = product.node.meta["val"].fake_mode.from_tensor(
            tensor, static_shapes=True
        )
        of = product.weight
        self.weights[node.name] = Weight(name, tensor, external=_mark(of, name), device=of.device)
        return node

    def _replace(self, node: fx.Node, by: fx.Node) -> None:
        node.replace_all_uses_with(by)
        self.replaced[node] = by
        self.program.graph.graph.erase_node(node)

    def finish(self) -> Program:
        """The program without dead nodes and unused weights."""
        graph = self.program.graph.graph
        graph.eliminate_dead_code()
        rewrite_reshapes(graph)
        weights = {**self.program.weights, **self.weights}
        unused = {n.name: n for n in graph.nodes if n.op == "placeholder" and not n.users}
        for name in unused.keys() & (weights.keys() - self.program.stores.keys()):
            del weights[name]
            graph.erase_node(unused[name])
        self.program.graph.recompile()
        now = self.replaced
        return replace(
            self.program,
            weights=weights,
            results=tuple(now.get(node, node) for node in self.program.results),
            stores={name: now.get(node, node) for name, node in self.program.stores.items()},
        )


def _same_view(build: _Builder, operand: fx.Node, source: fx.Node) -> fx.Node:
    """The views of an operand, of another source than its placeholder."""
    if operand.op == "placeholder":
        return source
    behind = _same_view(build, operand.all_input_nodes[0], source)
    return build(operand.target, behind, *operand.args[1:], **operand.kwargs)


def _mark(weight: Weight, name: str) -> ExternalTensorTrait | None:
    """The external mark of a weight, for one of its packed tensors."""
    if weight.external is None:
        return None
    suffix = name.removeprefix(weight.name)
    return replace(weight.external, external_name=weight.external.external_name + suffix)


@dataclass(frozen=True)
class _Builder:
    """Adds nodes before another one, with its metadata of the user's code."""

    graph: fx.Graph
    before: fx.Node

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        values: Any = fx.map_arg(args, lambda argument: argument.meta["val"])
        node.meta = {**source_of(self.before), "val": target(*values, **kwargs)}
        return node

    def transposed(self, node: fx.Node) -> fx.Node:
        """The transpose of the last two axes."""
        *batch, rows, columns = range(node.meta["val"].dim())
        return self(aten.permute.default, node, [*batch, columns, rows])

    def flat(self, node: fx.Node) -> fx.Node:
        """The tensor with all axes but the last merged."""
        shape = node.meta["val"].shape
        return node if len(shape) == 2 else self(aten.reshape.default, node, [-1, shape[-1]])

    def shaped_like(self, node: fx.Node, flat: fx.Node) -> fx.Node:
        """The axes that `flat` merged, split again."""
        *sizes, _ = node.meta["val"].shape
        if len(sizes) == 1:
            return flat
        known = [
            size if isinstance(size, int) else self(aten.sym_size.int, node, axis)
            for axis, size in enumerate(sizes)
        ]
        return self(aten.reshape.default, flat, [*known, flat.meta["val"].shape[-1]])

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        if node.meta["val"].dtype == dtype:
            return node
        return self(aten._to_copy.default, node, dtype=dtype)


# The row indices of a lookup in the first argument; None if the op does more.
_LOOKUPS: dict[Any, Callable[..., fx.Node | None]] = {
    aten.embedding.default: lambda table, indices, *_: indices,
    aten.index_select.default: lambda table, axis, indices: indices if axis == 0 else None,
    aten.index.Tensor: lambda table, indices: indices[0] if len(indices) == 1 else None,
}


def _with_bias(build: _Builder, node: fx.Node, product: fx.Node) -> fx.Node:
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if alpha != 1:
        product = build(aten.mul.Tensor, product, alpha)
    if beta == 0:
        return product
    return build(aten.add.Tensor, product, node.args[0], alpha=beta)


def _layer(product: _Product, packed: Packed) -> Layer:
    exact = product.matrix.detach().float()
    error = packed.unpacked() - exact
    rms = exact.square().mean().sqrt().item()
    return Layer(
        product.weight.name,
        tuple(product.weight.tensor.shape),
        packed.bits,
        packed.values.shape[-1] * 8 // packed.bits,
        product.matrix.numel() * product.matrix.element_size(),
        packed.nbytes,
        error.abs().max().item(),
        error.square().mean().sqrt().item() / rms if rms > 0 else 0.0,
    )


def _why_kept(name: str, in_products: set[str], in_chosen: set[str]) -> str:
    if name in in_chosen:
        return "not finite, or also used outside of matmuls"
    return "excluded by include or exclude" if name in in_products else "not the weight of a matmul"


def _used_weights(program: Program) -> dict[str, Weight]:
    used = {node.name for node in program.graph.graph.nodes if node.users}
    return {w.name: w for place, w in program.weights.items() if place in used}


def _bytes(weights: Mapping[str, Weight]) -> int:
    return sum(weight.tensor.nbytes for weight in weights.values())
