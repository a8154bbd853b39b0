"""Norms and softmax of rows: one kernel instead of several dispatches of IREE."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.sizes import hint
from turbine.library.nodes import have_equal_sizes, narrow_ends, only_user, restore_shape, to_rank
from turbine.target import Target

aten = torch.ops.aten

A, B, C, N = tkl.symbols("A B C N")
f32 = tkl.f32
T, U, V = tkl.types.T, tkl.types.U, tkl.types.V  # of rows, weights and biases


@tk.gen.kernel(B, A)
def layer_norm(
    x: tkl.InputBuffer[A, B, N, T],
    weight: tkl.InputBuffer[N, U],
    bias: tkl.InputBuffer[N, V],
    y: tkl.OutputBuffer[A, B, N, T],
    eps: f32,
) -> None:
    """Layer norm of each row."""
    place = tkl.program_id(1), tkl.program_id(0), 0
    row = _standardize(tkl.load(x, place, (None, None, N)).to(f32), N, eps)
    factor, shift = tkl.load(weight, (0,), (N,)).to(f32), tkl.load(bias, (0,), (N,)).to(f32)
    tkl.store(y, place, (row * factor + shift)[None, None])


def _standardize(x: Any, count: Any, eps: Any) -> Any:
    """The elements, of which there are `count`, with mean 0 and variance 1."""
    rough = x - tkl.sum(x) / count
    offset = tkl.sum(rough) / count  # of the mean, by its rounding
    variance = tkl.sum(rough * rough) / count - offset * offset
    return (rough - offset) * tkl.rsqrt(variance + eps)


def _group_norm(name: str, finish: Callable[[Any], Any]) -> tk.Kernel:
    """A kernel that normalizes groups of channels and computes a function of the result."""

    def group_norm(
        x: tkl.InputBuffer[A, B, C, N, f32],
        weight: tkl.InputBuffer[B, C, U],
        bias: tkl.InputBuffer[B, C, V],
        y: tkl.OutputBuffer[A, B, C, N, f32],
        eps: f32,
    ) -> None:
        image, group = tkl.program_id(1), tkl.program_id(0)
        place = image, group, 0, 0
        channels = _standardize(tkl.load(x, place, (None, None, C, N)), C * N, eps)
        factor, shift = (
            tkl.load(values, (group, 0), (None, C)).to(f32)[:, None] for values in (weight, bias)
        )
        tkl.store(y, place, finish(channels * factor + shift)[None, None])

    group_norm.__name__ = name
    return tk.gen.kernel(B, A)(group_norm)


group_norm = _group_norm("group_norm", lambda y: y)
group_norm_silu = _group_norm("group_norm_silu", lambda y: y * tkl.sigmoid(y))


@tk.gen.kernel(B, A)
def softmax(x: tkl.InputBuffer[A, B, N, T], y: tkl.OutputBuffer[A, B, N, T]) -> None:
    """The softmax of each row."""
    place = tkl.program_id(1), tkl.program_id(0), 0
    row = tkl.load(x, place, (None, None, N)).to(f32)
    numerator = tkl.exp(row - tkl.max(row))
    tkl.store(y, place, (numerator / tkl.sum(numerator))[None, None])


@tk.gen.kernel(B, A)
def log_softmax(x: tkl.InputBuffer[A, B, N, T], y: tkl.OutputBuffer[A, B, N, T]) -> None:
    """The logarithm of the softmax of each row."""
    place = tkl.program_id(1), tkl.program_id(0), 0
    row = tkl.load(x, place, (None, None, N)).to(f32)
    row = row - tkl.max(row)
    tkl.store(y, place, (row - tkl.log(tkl.sum(tkl.exp(row))))[None, None])


def _rms_norm(name: str, *, rounds: bool) -> tk.Kernel:
    """A kernel that divides rows by their root mean square, and may round before the weight."""

    def rms_norm(
        x: tkl.InputBuffer[A, B, N, T],
        weight: tkl.InputBuffer[N, U],
        y: tkl.OutputBuffer[A, B, N, T],
        eps: f32,
    ) -> None:
        place = tkl.program_id(1), tkl.program_id(0), 0
        given = tkl.load(x, place, (None, None, N))
        row = given.to(f32)
        row = row * tkl.rsqrt(tkl.sum(row * row) / N + eps)
        if rounds:
            row = row.to(given.dtype).to(f32)
        tkl.store(y, place, (row * tkl.load(weight, (0,), (N,)).to(f32))[None, None])

    rms_norm.__name__ = name
    return tk.gen.kernel(B, A)(rms_norm)


rms_norm = _rms_norm("rms_norm", rounds=False)
rounded_rms_norm = _rms_norm("rounded_rms_norm", rounds=True)

_WIDE = (torch.float32,)
ANY_WIDTH = (*_WIDE, torch.bfloat16, torch.float16)
# Shorter rows do not pay for a program.
_LEAST_COLUMNS = 32


@dataclass(frozen=True)
class LayerNorm:
    """A match: a layer norm, as capture/rules/normalization.py emits it."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None
    eps: float

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU: IREE needs six dispatches."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph, node = self.node.graph, self.node
        columns = self.x.meta["val"].shape[-1]
        weight = self.weight or emit(graph, aten.full.default, [columns], 1.0, beside=node)
        bias = self.bias or emit(graph, aten.full.default, [columns], 0.0, beside=node)
        rows = to_rank(self.x, 3, node)
        y = emit(graph, layer_norm.op.op, rows, weight, bias, self.eps, beside=node)
        return restore_shape(y, node)


@dataclass(frozen=True)
class GroupNorm:
    """A match: a group norm of x with the axes (N, groups, -1, -1), and maybe a SiLU."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None
    eps: float
    kernel: tk.Kernel = group_norm

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph, node = self.node.graph, self.node
        groups, channels, _ = self.x.meta["val"].shape[1:]
        sizes = [groups, channels]
        weight, bias = (
            emit(graph, aten.full.default, sizes, fill, beside=node)
            if values is None
            else emit(graph, aten.view.default, values, sizes, beside=node)
            for values, fill in ((self.weight, 1.0), (self.bias, 0.0))
        )
        y = emit(graph, self.kernel.op.op, self.x, weight, bias, self.eps, beside=node)
        return emit(graph, aten.view.default, y, [-1, *node.meta["val"].shape[1:]], beside=node)


@dataclass(frozen=True)
class RmsNorm:
    """A match: rows divided by their root mean square, and maybe multiplied by a weight."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node | None
    eps: float
    kernel: tk.Kernel = rms_norm

    def is_faster_on(self, target: Target) -> bool:
        """On every GPU."""
        return target.kind == "cuda"

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph, node = self.node.graph, self.node
        columns = self.x.meta["val"].shape[-1]
        weight = self.weight or emit(graph, aten.full.default, [columns], 1.0, beside=node)
        rows = to_rank(self.x, 3, node)
        y = emit(graph, self.kernel.op.op, rows, weight, self.eps, beside=node)
        return restore_shape(y, node)


@dataclass(frozen=True)
class Softmax:
    """A softmax along the last axis, or its logarithm."""

    node: fx.Node
    x: fx.Node
    kernel: tk.Kernel

    def is_faster_on(self, target: Target) -> bool:
        """On every CPU."""
        return True

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        rows = to_rank(self.x, 3, self.node)
        y = emit(self.node.graph, self.kernel.op.op, rows, beside=self.node)
        return restore_shape(y, self.node)


_SOFTMAXES = {aten._softmax.default: softmax, aten._log_softmax.default: log_softmax}


def find_softmaxes(region: Region, dtypes: Sequence[torch.dtype] = _WIDE) -> Iterator[Softmax]:
    """Find softmax and log-softmax along contiguous rows of certain dtypes."""
    for op, kernel in _SOFTMAXES.items():
        for node in region.graph.graph.find_nodes(op="call_function", target=op):
            x, axis, is_widened = node.args
            rank = x.meta["val"].ndim
            if not is_widened and rank and axis % rank == rank - 1 and _has_rows(x, dtypes):
                yield Softmax(node, x, kernel)


def find_layer_norms(region: Region) -> Iterator[LayerNorm]:
    """Find layer norms along the last axis."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        found = _match_layer_norm(node)
        if found is not None and _has_rows(found.x):
            yield found


def find_rms_norms(region: Region) -> Iterator[RmsNorm]:
    """Find RMS norms along the last axis, of PyTorch or written by hand, also of narrow floats."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        found = _match_rms_norm(node)
        if found is None or not _has_rows(found.x):
            continue
        ends = narrow_ends(found.x, found.node)
        if ends is not None:
            found = replace(found, x=ends[0], node=ends[1])
        yield found if found.weight is not None else _with_rounded_weight(found)


R = TypeVar("R", LayerNorm, Softmax)


def of_narrow_rows(find: Callable[[Region], Iterator[R]], region: Region) -> Iterator[R]:
    """Find matches, with the conversions around those of rows that are narrower than f32."""
    for match in find(region):
        ends = narrow_ends(match.x, match.node)
        yield match if ends is None else replace(match, x=ends[0], node=ends[1])


def find_group_norms(region: Region) -> Iterator[GroupNorm]:
    """Find group norms of images of static size."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        found = _match_scaled(node, aten.native_group_norm.default)
        if found is None:
            continue
        scaled, centered, eps = found
        last, weight, bias = _match_affine(scaled)
        x, mean = centered.args
        assert isinstance(x, fx.Node)
        assert isinstance(mean, fx.Node)
        images, groups, *rest = x.meta["val"].shape
        is_static = all(isinstance(size, int) for size in (groups, *rest))
        is_rows = mean.meta["val"].shape == (images, groups, 1, 1)
        is_f32 = x.meta["val"].dtype == torch.float32
        if is_static and is_rows and is_f32 and math.prod(rest) >= _LEAST_COLUMNS:
            silu = _match_silu(last)
            kernel = group_norm if silu is None else group_norm_silu
            yield GroupNorm(silu or last, x, weight, bias, eps, kernel)


def _match_affine(scaled: fx.Node) -> tuple[fx.Node, fx.Node | None, fx.Node | None]:
    """The end of a group norm, its weight and its bias."""
    op = aten.native_group_norm.default
    last = scaled
    while (user := only_user(last)) is not None and user.target is aten.view.default:
        last = user
    last, weight = _next(last, aten.mul.Tensor, op)
    last, bias = _next(last, _ADD, op)
    return last, weight, bias


def _match_silu(x: fx.Node) -> fx.Node | None:
    """The SiLU of a node that nothing else reads."""
    sigmoid = next((user for user in x.users if user.target is aten.sigmoid.default), None)
    product = None if sigmoid is None else only_user(sigmoid)
    if product is None or product.target is not aten.mul.Tensor:
        return None
    return product if {*product.args} == {x, sigmoid} and {*x.users} == {sigmoid, product} else None


def _match_scaled(rsqrt: fx.Node, op: Any) -> tuple[fx.Node, fx.Node, float] | None:
    """The product with the rsqrt of a norm, x minus its mean, and eps."""
    if not _is_of(rsqrt, op):
        return None
    scaled = _only_step(rsqrt, aten.mul.Tensor, op)
    variance = rsqrt.args[0]
    if scaled is None or not isinstance(variance, fx.Node) or variance.target is not _ADD:
        return None
    centered, eps = scaled.args[0], variance.args[1]
    if not isinstance(centered, fx.Node) or centered.target is not aten.sub.Tensor:
        return None
    assert isinstance(eps, float)
    return scaled, centered, eps


def _match_layer_norm(rsqrt: fx.Node) -> LayerNorm | None:
    """Match the layer norm around an rsqrt."""
    found = _match_scaled(rsqrt, aten.native_layer_norm.default)
    if found is None:
        return None
    scaled, centered, eps = found
    op = aten.native_layer_norm.default
    last, weight = _next(scaled, aten.mul.Tensor, op)
    last, bias = _next(last, _ADD, op)
    columns = centered.meta["val"].shape[-1]
    # A layer norm along several axes has a mean of lower rank.
    mean = rsqrt.meta["val"].shape
    fits = [mean == (*centered.meta["val"].shape[:-1], 1)]
    fits += [p.meta["val"].shape == (columns,) for p in (weight, bias) if p is not None]
    x = centered.args[0]
    assert isinstance(x, fx.Node)
    return LayerNorm(last, x, weight, bias, eps) if all(fits) else None


def _match_rms_norm(rsqrt: fx.Node) -> RmsNorm | None:
    """Match `x * rsqrt(sum(x * x) / N + eps) * weight`."""
    total, eps = _number_operand(rsqrt.args[0], (aten.add.Tensor, aten.add.Scalar))
    total, count = _number_operand(total, (aten.div.Tensor, aten.div.Scalar))
    scaled = only_user(rsqrt)
    if eps is None or count is None or scaled is None or scaled.target is not aten.mul.Tensor:
        return None
    x = scaled.args[0] if scaled.args[1] is rsqrt else scaled.args[1]
    if not isinstance(x, fx.Node) or x is rsqrt or x.meta["val"].dim() == 0:
        return None
    shape = x.meta["val"].shape
    rows = [*shape[:-1], 1]
    if count != shape[-1] or not have_equal_sizes(rsqrt.meta["val"].shape, rows):
        return None
    squares = _summed_rows(total, shape)
    if squares is None or not _is_square(squares, x):
        return None
    last, weight = _multiply_row(scaled)
    return RmsNorm(last, x, weight, eps)


def _number_operand(node: Any, targets: Sequence[Any]) -> tuple[Any, float | None]:
    """The operands of an op on a tensor and a number."""
    if not isinstance(node, fx.Node) or node.target not in targets or node.kwargs:
        return None, None
    x, number = node.args
    return (x, number) if isinstance(number, float | int) else (None, None)


def _is_square(node: fx.Node, x: fx.Node) -> bool:
    power = node.target is aten.pow.Tensor_Scalar and node.args == (x, 2)
    return power or (node.target is aten.mul.Tensor and node.args == (x, x))


def _summed_rows(node: Any, shape: Sequence[Any]) -> fx.Node | None:
    """The tensor of a shape whose rows are summed, maybe in stages or as f64."""
    count = math.prod(map(hint, shape[:-1]))
    while isinstance(node, fx.Node):
        value = node.meta["val"]
        if value.dtype not in (torch.float32, torch.float64):
            return None
        if node.target not in (aten.view.default, aten._to_copy.default, aten.sum.dim_IntList):
            return node if have_equal_sizes(value.shape, shape) else None
        source: Any = node.args[0]
        sizes = source.meta["val"].shape
        if node.target is aten.sum.dim_IntList and not _keeps_rows(node.args[1], sizes, count):
            return None
        node = source
    return None


def _keeps_rows(axes: Any, sizes: Sequence[Any], count: int) -> bool:
    """Whether only axes behind those of the rows are reduced."""
    first = min(axis % len(sizes) for axis in axes)
    dynamic = sum(not isinstance(size, int) for size in sizes)
    is_last = [*axes] in ([-1], [len(sizes) - 1])
    return is_last if dynamic else math.prod(sizes[:first]) % count == 0


def _multiply_row(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The product of a node with a row that is all that reads it, and the row, if there is one."""
    user = only_user(node)
    if user is None or user.target is not aten.mul.Tensor:
        return node, None
    row = user.args[1] if user.args[0] is node else user.args[0]
    shape, dtype = node.meta["val"].shape, node.meta["val"].dtype
    if not isinstance(row, fx.Node) or row.meta["val"].shape != shape[-1:]:
        return node, None
    return (user, row) if user.meta["val"].dtype == dtype else (node, None)


def _with_rounded_weight(norm: RmsNorm) -> RmsNorm:
    """The norm with the weight that its rounded result is multiplied by, if there is one."""
    last, weight = _multiply_row(norm.node)
    return (
        norm if weight is None else replace(norm, node=last, weight=weight, kernel=rounded_rms_norm)
    )


_ADD = aten.add.Tensor


def _next(node: fx.Node, target: Any, op: Any) -> tuple[fx.Node, fx.Node | None]:
    """The next op of the norm and its operand, or the node if there is none."""
    user = _only_step(node, target, op)
    if user is None or user.args[0] is not node or not isinstance(user.args[1], fx.Node):
        return node, None
    return user, user.args[1]


def _only_step(node: fx.Node, target: Any, op: Any) -> fx.Node | None:
    user = only_user(node)
    if user is None or user.target is not target:
        return None
    return user if _is_of(user, op) else None


def _is_of(node: fx.Node, op: Any) -> bool:
    """Whether a rule emitted the node for an op; copied graphs only have the op's name."""
    return str(node.meta.get("original_aten")) == str(op)


def _has_rows(x: fx.Node, dtypes: Sequence[torch.dtype] = _WIDE) -> bool:
    """Whether a kernel supports the rows: at most three axes, or static sizes."""
    value = x.meta["val"]
    if value.dtype not in dtypes or value.ndim == 0:
        return False
    *leading, columns = value.shape
    if not isinstance(columns, int) or columns < _LEAST_COLUMNS:
        return False
    return len(leading) <= 2 or all(isinstance(size, int) for size in leading)
