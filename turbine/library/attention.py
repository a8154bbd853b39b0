"""Flash attention: blocks of keys with a running maximum and a running sum."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.rounding import widened_from
from turbine.capture.sizes import sizes_of
from turbine.library.heads import AXES, B, Layout, Source, sources_of
from turbine.library.nodes import (
    convert,
    have_equal_sizes,
    is_conversion,
    only_user,
    restore_shape,
    to_rank,
)
from turbine.target import Target

aten = torch.ops.aten

H, S, T, D = tkl.symbols("H S T D")  # heads, queries, keys, head size
E = tkl.sym.E  # head size of values
HK, HV = tkl.symbols("HK HV")  # heads that are stored, where they are repeated
PQ, PK, PV = tkl.symbols("PQ PK PV")  # parts of tensors that hold operands
U, V = tkl.types.U, tkl.types.V  # of the operands, and of a bias
MB, MH = tkl.symbols("MB MH")  # batch and heads of a mask: 1, or those of the scores
BM, BN = tkl.symbols("BM BN")
f32 = tkl.f32


@dataclass(frozen=True)
class Layouts:
    """Those of the operands and of the result, and whether a mask has one row for all queries."""

    q: Layout = Layout()
    k: Layout = Layout()
    v: Layout = Layout()
    y: Layout = Layout()
    has_mask_row: bool = False


def _apply_mask(scores: Any, mask: Any) -> Any:
    """Add a bias, in the base of exp2, or hide scores."""
    if mask.dtype == tkl.bool:
        return tkl.where(mask, -math.inf, scores)
    return scores + mask.to(f32) * math.log2(math.e)


def _attend(
    layouts: Layouts,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    y: Any,
    scale: Any,
    if_hidden: Any,
    is_causal: bool = False,
) -> None:
    row, head, batch = tkl.program_id(0) * BM, tkl.program_id(1), tkl.program_id(2)
    queries = tkl.load(q, layouts.q.place(batch, head, row), layouts.q.rows(BM, D))
    start = tkl.full((BM,), -math.inf, f32), tkl.zeros((BM,), f32), tkl.zeros((BM, E), f32)

    last = tkl.minimum(row + BM, T) if is_causal else T  # keys after the query are masked

    @tkl.for_loop(0, last // BN, init_args=[*start])
    def blocks(j: Any, largest: Any, total: Any, sums: Any) -> Any:
        keys = tkl.load(k, layouts.k.place(batch, head, j * BN), layouts.k.rows(BN, D))
        values = tkl.load(v, layouts.v.place(batch, head, j * BN), layouts.v.rows(BN, E))
        scores = tkl.dot(queries, tkl.transpose(keys, (1, 0)))
        scores = scores * (scale * math.log2(math.e))  # for exp2
        if mask is not None:
            first, count = (0, 1) if layouts.has_mask_row else (row, BM)
            place = tkl.minimum(batch, MB - 1), tkl.minimum(head, MH - 1), first, j * BN
            scores = _apply_mask(scores, tkl.load(mask, place, (None, None, count, BN)))
        if is_causal:
            query, key = row + tkl.arange(BM), j * BN + tkl.arange(BN)
            scores = tkl.where(query[:, None] >= key[None, :], scores, -math.inf)
        new = tkl.maximum(largest, tkl.max(scores, axis=1))
        origin = tkl.where(new == -math.inf, 0.0, new)  # for rows whose keys are all masked so far
        weights, shrink = tkl.exp2(scores - origin[:, None]), tkl.exp2(largest - origin)
        total = total * shrink + tkl.sum(weights, axis=1)
        return new, total, tkl.dot(weights.to(values.dtype), values, sums * shrink[:, None])

    _, total, sums = blocks
    divisor = tkl.where(total == 0.0, if_hidden, total)
    place, heads = layouts.y.place(batch, head, row), sums / divisor[:, None]
    tkl.store(y, place, layouts.y.spread(heads))


def _attend_alone(
    layouts: Layouts,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    y: Any,
    scale: Any,
    if_hidden: Any,
    is_causal: bool = False,
) -> None:
    """One query: keys and values are read once, so they are not worth a matmul's blocks."""
    head, row, batch = tkl.program_id(0), tkl.program_id(1), tkl.program_id(2)
    query = tkl.load(q, layouts.q.place(batch, head, row), layouts.q.rows(None, D))
    keys = tkl.load(k, layouts.k.place(batch, head, 0), layouts.k.rows(T, D))
    values = tkl.load(v, layouts.v.place(batch, head, 0), layouts.v.rows(T, E))
    products = keys.to(f32) * query.to(f32)[None, :]
    scores = tkl.sum(products, axis=1) * (scale * math.log2(math.e))
    if mask is not None:
        first = 0 if layouts.has_mask_row else row
        place = tkl.minimum(batch, MB - 1), tkl.minimum(head, MH - 1), first, 0
        scores = _apply_mask(scores, tkl.load(mask, place, (None, None, None, T)))
    if is_causal:
        scores = tkl.where(tkl.arange(T) <= row, scores, -math.inf)
    largest = tkl.max(scores)
    weights = tkl.exp2(scores - tkl.where(largest == -math.inf, 0.0, largest))
    total = tkl.sum(weights)
    divisor = tkl.where(total == 0.0, if_hidden, total)
    result = tkl.dot(weights[None, :], values.to(f32)) / divisor
    tkl.store(y, layouts.y.place(batch, head, row), result)


@dataclass(frozen=True)
class Kernels:
    """The kernels of a way to attend, for each kind of mask."""

    plain: Any
    causal: Any
    biased: Any
    masked: Any


@cache
def kernels(layouts: Layouts, *, is_alone: bool = False) -> Kernels:
    """The kernels for blocks of queries, or for one query each, of tensors in these layouts."""
    attend = partial(_attend_alone if is_alone else _attend, layouts)
    grid = (H, S, B) if is_alone else (S // BM, H, B)
    Queries = tkl.InputBuffer[*layouts.q.shape(H, S, D, PQ), U]
    key_heads, value_heads = (
        H if layout.repeats == 1 else stored
        for layout, stored in ((layouts.k, HK), (layouts.v, HV))
    )
    Keys = tkl.InputBuffer[*layouts.k.shape(key_heads, T, D, PK), U]
    Values = tkl.InputBuffer[*layouts.v.shape(value_heads, T, E, PV), U]
    Result = tkl.OutputBuffer[*layouts.y.shape(H, S, E, None), U]
    mask_rows = 1 if layouts.has_mask_row else S

    @tk.gen.kernel(*grid)
    def attention(q: Queries, k: Keys, v: Values, y: Result, scale: f32, if_hidden: f32) -> None:
        """softmax(scale * q @ k.T) @ v"""
        attend(q, k, v, None, y, scale, if_hidden)

    @tk.gen.kernel(*grid)
    def causal_attention(
        q: Queries, k: Keys, v: Values, y: Result, scale: f32, if_hidden: f32
    ) -> None:
        """Attention with a causal mask."""
        attend(q, k, v, None, y, scale, if_hidden, is_causal=True)

    @tk.gen.kernel(*grid)
    def biased_attention(
        q: Queries,
        k: Keys,
        v: Values,
        bias: tkl.InputBuffer[MB, MH, mask_rows, T, V],
        y: Result,
        scale: f32,
        if_hidden: f32,
    ) -> None:
        """Attention with a bias that is added to the scores."""
        attend(q, k, v, bias, y, scale, if_hidden)

    @tk.gen.kernel(*grid)
    def masked_attention(
        q: Queries,
        k: Keys,
        v: Values,
        hidden: tkl.InputBuffer[MB, MH, mask_rows, T, tkl.bool],
        y: Result,
        scale: f32,
        if_hidden: f32,
    ) -> None:
        """Attention with a boolean mask, True for hidden keys."""
        attend(q, k, v, hidden, y, scale, if_hidden)

    return Kernels(attention, causal_attention, biased_attention, masked_attention)


# As many queries are computed one by one.
FEW_QUERIES = 3
_MOST_FEATURES = 256
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Attention:
    """A match: two matmuls around a softmax."""

    node: fx.Node  # the second matmul, with the rank of the scores
    query: fx.Node
    key: fx.Node  # transposed
    value: fx.Node
    mask: fx.Node | None  # added, or True for keys that are hidden
    scale: float
    if_hidden: float  # divisor of rows without keys: 0 gives nan, 1 gives 0

    @property
    def is_supported(self) -> bool:
        """Whether the kernels support the operands."""
        q, k, v = (node.meta["val"] for node in (self.query, self.key, self.value))
        if q.dtype not in _DTYPES or not q.dtype == k.dtype == v.dtype:
            return False
        sizes = q.shape[-1], v.shape[-1]
        return all(isinstance(size, int) and size <= _MOST_FEATURES for size in sizes)

    @property
    def is_alone(self) -> bool:
        """Whether there are few queries."""
        queries = self.query.meta["val"].shape[-2]
        return isinstance(queries, int) and queries <= FEW_QUERIES

    def is_faster_on(self, target: Target) -> bool:
        """On every GPU and CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph = self.node.graph
        q, k, v = (to_rank(one, 4, self.node) for one in (self.query, self.key, self.value))
        # Of two transposes nothing is left.
        k = emit(graph, aten.permute.default, k, [0, 1, 3, 2], beside=self.node)
        queries, keys, values = (
            _source(q, target, may_repeat=False),
            _source(k, target),
            _source(v, target, may_scale=False),
        )
        order = _result_order(self.node)
        y = Layout("".join(AXES[axis] for axis in order))
        layouts = Layouts(queries.layout, keys.layout, values.layout, y)
        operands = [source.write(self.node) for source in (queries, keys, values)]
        if target.kind == "cpu":
            operands = [convert(operand, torch.float32, self.node) for operand in operands]
        numbers = self.scale * queries.factor * keys.factor, self.if_hidden
        if self.mask is not None and not _is_causal(self.mask):
            mask = to_rank(self.mask, 4, self.node)
            has_row = target.kind == "cuda" and _has_mask_row(mask, k)
            layouts = replace(layouts, has_mask_row=has_row)
            operands.append(mask if has_row else _expand_mask(self.node, mask, q, k))
        found = kernels(layouts, is_alone=self.is_alone)
        if self.mask is None or _is_causal(self.mask):
            kernel = found.plain if self.mask is None else found.causal
        else:
            kernel = found.biased if _is_bias(self.mask) else found.masked
        result = emit(graph, kernel.op.op, *operands, *numbers, beside=self.node)
        result = convert(result, self.node.meta["val"].dtype, self.node)
        if y.axes != AXES:
            back = [order.index(axis) for axis in range(len(order))]
            result = emit(graph, aten.permute.default, result, back, beside=self.node)
        return restore_shape(result, self.node)


def _result_order(node: fx.Node) -> list[int]:
    """The order of axes in which all users read the result, if columns stay the last."""
    orders = [_order_of_user(user) for user in node.users]
    is_one = bool(orders) and all(order == orders[0] for order in orders)
    return orders[0] if is_one and orders[0][-1:] == [3] else [*range(4)]


def _order_of_user(user: fx.Node | None) -> list[int]:
    """The order in which a node permutes the axes of its operand, and all that follows it."""
    order = [*range(4)]
    while user is not None and user.target in (aten.permute.default, aten.clone.default):
        if user.target is aten.permute.default:
            axes: Any = user.args[1]
            order = [order[axis] for axis in axes]
        user = only_user(user)
    return order


def _source(
    operand: fx.Node, target: Target, *, may_scale: bool = True, may_repeat: bool = True
) -> Source:
    """The nearest to where an operand comes from."""

    def suits(source: Source) -> bool:
        layout = source.layout
        if target.kind == "cpu" and (layout.axes not in _AXES_ON_CPUS or layout.repeats > 1):
            return False
        return (may_scale or source.factor == 1.0) and (may_repeat or layout.repeats == 1)

    return [one for one in sources_of(operand) if suits(one)][-1]


# Where a block of rows is not far apart.
_AXES_ON_CPUS = ("BHSD", "BSHD", "BSPHD")


def find(region: Region) -> Iterator[Attention]:
    """Find attention, of PyTorch or written by hand."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten._softmax.default):
        found = _match(node)
        if found is not None and found.is_supported:
            yield found


@dataclass(frozen=True)
class _Scores:
    """The operand of a softmax: a matmul, scaled and masked."""

    matmul: fx.Node
    scale: float = 1.0
    mask: fx.Node | None = None


def _match(softmax: fx.Node) -> Attention | None:
    scores, axis, is_widened = softmax.args
    assert isinstance(scores, fx.Node)
    rank = scores.meta["val"].ndim
    is_f32 = scores.meta["val"].dtype == torch.float32
    if is_widened or not is_f32 or rank not in (3, 4) or axis not in (-1, rank - 1):
        return None
    found = _match_scores(scores)
    weights = _match_zeroed_rows(softmax, scores)
    if found is None or (found.mask is not None and found.mask.meta["val"].ndim > rank):
        return None
    chosen = weights or softmax
    narrowed = only_user(chosen)
    left = _last_view(narrowed if is_conversion(narrowed) else chosen)
    product = only_user(left)
    if product is None or product.target is not aten.bmm.default or product.args[0] is not left:
        return None
    leading = scores.meta["val"].shape[:-2]
    factors = *found.matmul.args, product.args[1]
    operands = [
        one for factor in factors if (one := _base_with_leading(factor, leading)) is not None
    ]
    result = _last_view(product)
    if len(operands) < len(factors) or not _has_leading(result, leading):
        return None
    query, key, value = operands
    if_hidden = 0.0 if weights is None else 1.0
    return Attention(result, query, key, value, found.mask, found.scale, if_hidden)


def _match_scores(node: fx.Node) -> _Scores | None:
    """Match a matmul that is scaled first and masked last."""
    if node.target is aten.add.Tensor and not node.kwargs:
        for matmul, bias in (node.args, node.args[::-1]):
            if isinstance(matmul, fx.Node) and isinstance(bias, fx.Node) and _is_bias(bias):
                found = _match_scaled(matmul)
                if found is not None and _has_same_shape(matmul, node):
                    return replace(found, mask=bias)
        return None
    if node.target is aten.where.self:
        hidden, filler, rest = node.args
        assert isinstance(hidden, fx.Node)
        assert isinstance(rest, fx.Node)
        found = _match_scaled(rest)
        if found is None or not _is_number(filler, -math.inf) or not _has_same_shape(rest, node):
            return None
        return replace(found, mask=hidden)
    return _match_scaled(node)


def _match_scaled(node: Any) -> _Scores | None:
    scale = 1.0
    if node.target in (aten.mul.Tensor, aten.div.Tensor) and isinstance(node.args[1], float | int):
        factor = float(node.args[1])
        scale = factor if node.target is aten.mul.Tensor else 1.0 / factor if factor else math.nan
        node = node.args[0]
    node = _view_base(node)
    matmul = _view_base(widened_from(node) or node)
    if matmul.target is not aten.bmm.default or math.isnan(scale):
        return None
    return _Scores(matmul, scale)


def _match_zeroed_rows(softmax: fx.Node, scores: fx.Node) -> fx.Node | None:
    """The `where` that zeroes rows without keys, as capture/rules/attention.py emits it."""
    user = only_user(softmax)
    if user is None or user.target is not aten.where.self or user.args[2] is not softmax:
        return None
    is_all_masked, zero, _ = user.args
    assert isinstance(is_all_masked, fx.Node)
    if not _is_number(zero, 0.0) or is_all_masked.target is not aten.all.dim:
        return None
    is_hidden = is_all_masked.args[0]
    assert isinstance(is_hidden, fx.Node)
    if is_hidden.target is not aten.eq.Scalar or is_hidden.args != (scores, -math.inf):
        return None
    return user if is_all_masked.args[1:] == (-1, True) else None


# Views of the leading axes: matmuls have one, scores have two.


def _view_base(node: fx.Node) -> fx.Node:
    """The base of a view."""
    while _is_leading_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _last_view(node: fx.Node) -> fx.Node:
    """The last view of a node, if each has one user."""
    user = only_user(node)
    while user is not None and _is_leading_view(user):
        node, user = user, only_user(user)
    return node


def _base_with_leading(node: Any, leading: Any) -> fx.Node | None:
    """The nearest base of a view that has these leading axes."""
    while not _has_leading(node, leading):
        if not _is_leading_view(node):
            return None
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def _is_leading_view(node: fx.Node) -> bool:
    if node.target not in (aten.view.default, aten.expand.default):
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta["val"].shape, node.meta["val"].shape
    if node.target is aten.expand.default:
        return have_equal_sizes(before, after)
    return have_equal_sizes(before[-2:], after[-2:])


def _has_leading(node: fx.Node, leading: Any) -> bool:
    return have_equal_sizes(node.meta["val"].shape[:-2], leading)


def _has_same_shape(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes have one shape: a mask may have more axes than the scores."""
    return have_equal_sizes(one.meta["val"].shape, other.meta["val"].shape)


def _is_bias(node: fx.Node) -> bool:
    return node.meta["val"].dtype in _DTYPES


def _is_causal(mask: fx.Node) -> bool:
    """Whether a mask is causal, as `torch.ones(S, T).tril()` is decomposed."""
    if mask.target is not aten.bitwise_not.default:
        return False
    (both,) = mask.args
    if not isinstance(both, fx.Node) or both.target is not aten.logical_and.default:
        return False
    is_lower, ones = both.args
    if not isinstance(ones, fx.Node) or ones.target is not aten.full.default or not ones.args[1]:
        return False
    if not isinstance(is_lower, fx.Node) or is_lower.target is not aten.le.Scalar:
        return False
    difference, limit = is_lower.args
    if limit != 0 or not isinstance(difference, fx.Node) or difference.kwargs:
        return False
    if difference.target is not aten.sub.Tensor or difference.meta["val"].ndim != 2:
        return False
    column, row = difference.args
    return _is_arange(column, -2) and _is_arange(row, -1)


def _is_arange(node: Any, added_axis: int) -> bool:
    """Whether a node is an arange from 0 with an axis added."""
    if node.target is not aten.unsqueeze.default or node.args[1] != added_axis:
        return False
    count = node.args[0]
    is_range = count.target is aten.arange.start_step and count.args[0] == 0
    return is_range and len(count.args) == 2


def _is_number(node: Any, number: float) -> bool:
    """Whether a node is a scalar tensor of this number."""
    is_scalar = isinstance(node, fx.Node) and node.target is aten.scalar_tensor.default
    return is_scalar and node.args[0] == number


def _has_mask_row(mask: fx.Node, key: fx.Node) -> bool:
    """Whether a mask has one row for all queries."""
    shape = mask.meta["val"].shape[2:]
    return have_equal_sizes(shape, (1, key.meta["val"].shape[2]))


def _expand_mask(place: fx.Node, mask: fx.Node, query: fx.Node, key: fx.Node) -> fx.Node:
    """Expand a mask to every query and every key."""
    graph = place.graph
    whole = query.meta["val"].shape[2], key.meta["val"].shape[2]
    if have_equal_sizes(mask.meta["val"].shape[2:], whole):
        return mask
    sizes = *sizes_of(graph, query, [2]), *sizes_of(graph, key, [2])
    shape = [-1, -1, *sizes]
    return emit(graph, aten.expand.default, mask, shape, beside=place)
