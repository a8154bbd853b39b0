"""Write new values of tensors to their own memory: the step of an optimizer as a kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx

import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.capture.updates import Update, find_updates, flatten
from turbine.kernel.call.kernel import Kernel
from turbine.library.fused import annotate

aten = torch.ops.aten
N, B = tkl.symbols("N B")
_DTYPES = {torch.float32: tkl.f32, torch.bool: tkl.bool}
# A formula without its graph: for each op its name and operands, which are places or numbers.
Step = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]


def is_known(node: fx.Node) -> bool:
    """Whether a kernel can compute an op."""
    value = node.meta.get("val")
    return node.target in _RULES and isinstance(value, torch.Tensor) and value.dtype in _DTYPES


def make_kernel(update: Update) -> Kernel:
    """The kernel of an update: it takes written tensors, tensors and numbers, each flat.

    Updates with the same formula have the same kernel.
    """
    places = {node: place for place, node in enumerate((*update.operands, *update.formula))}
    steps = tuple(_step(node, places) for node in update.formula)
    results = tuple(places[new] for new in update.written.values())
    numbers = tuple(node.meta["val"].dtype for node in update.numbers)
    key = len(update.written), len(update.tensors), numbers, steps, results
    if key not in _kernels:
        _kernels[key] = _write_kernel(*key)
    return _kernels[key]


_kernels: dict[Any, Kernel] = {}


def find(region: Region) -> list[Update]:
    """Find new values of state that kernels can compute in its own memory.

    It is large: IREE keeps equal small initial values of state once, until they are written anew.
    """
    inputs = {node.name: node for node in region.graph.graph.find_nodes(op="placeholder")}
    results = {inputs[name]: new for name, new in region.stores.items()}
    if not results:
        return []
    return find_updates(region.graph.graph, results, is_known, is_functional=True)


R = TypeVar("R", bound=Region)


def place(region: R) -> R:
    """Compute new values of state by kernels, after all that reads the old ones."""
    graph, stores = region.graph.graph, dict(region.stores)
    (output,) = graph.find_nodes(op="output")
    for update in find(region):
        kernel = make_kernel(update)
        first = next(iter(update.written)).meta["val"]
        with graph.inserting_before(output), first.fake_mode:
            flat = [flatten(node) for node in update.operands]
            results = emit(graph, kernel.op.core.op, *flat, beside=output)
            for place, old in enumerate(update.written):
                made, shape = results, [*old.meta["val"].shape]
                if len(update.written) > 1:
                    made = emit(graph, operator.getitem, results, place, beside=output)
                stores[old.name] = emit(graph, aten.view.default, made, shape, beside=output)
        new = {value: stores[old.name] for old, value in update.written.items()}
        output.args = (tuple(new.get(node, node) for node in output.args[0]),)
    graph.eliminate_dead_code()
    return replace(region, stores=stores)


class _Place(int):
    """An operand or an op by its place in the formula."""


def _step(node: fx.Node, places: dict[fx.Node, int]) -> Step:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: _Place(places[operand]))
    return str(node.target), args, tuple(sorted(kwargs.items()))


def _write_kernel(
    written: int,
    tensors: int,
    numbers: Sequence[torch.dtype],
    steps: Sequence[Step],
    results: Sequence[int],
) -> Kernel:
    def update(**given: Any) -> None:
        buffers = [*given.values()]
        start = tkl.program_id(0) * B
        values = [tkl.load(buffer, (start,), (B,)) for buffer in buffers[: written + tensors]]
        values += [tkl.load(buffer, (0,), (1,)) for buffer in buffers[written + tensors :]]
        for name, args, kwargs in steps:
            operands = [values[one] if isinstance(one, _Place) else one for one in args]
            values.append(_BY_NAME[name](*operands, **dict(kwargs)))
        for buffer, result in zip(buffers, results, strict=False):
            tkl.store(buffer, (start,), values[result])

    types = [tkl.InOutBuffer[N, tkl.f32]] * written
    types += [tkl.InputBuffer[N, tkl.f32]] * tensors
    types += [tkl.InputBuffer[1, _DTYPES[dtype]] for dtype in numbers]
    names = [f"x{index}" for index in range(len(types))]
    annotate(update, dict(zip(names, types, strict=True)))
    return Kernel(update, [N // B])


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x + (y if alpha == 1 else y * alpha)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


def _where(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, bool):
        return x if condition else y
    return tkl.where(condition, x, y)


_COMPARISONS = {
    aten.eq: operator.eq,
    aten.ne: operator.ne,
    aten.lt: operator.lt,
    aten.le: operator.le,
    aten.gt: operator.gt,
    aten.ge: operator.ge,
}
_RULES: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: operator.mul,
    aten.div.Tensor: operator.truediv,
    aten.neg.default: operator.neg,
    aten.abs.default: tkl.abs,
    aten.sqrt.default: tkl.sqrt,
    aten.rsqrt.default: tkl.rsqrt,
    aten.maximum.default: tkl.maximum,
    aten.minimum.default: tkl.minimum,
    aten.where.self: _where,
    aten.bitwise_or.Tensor: operator.or_,
    aten.bitwise_and.Tensor: operator.and_,
    aten.logical_or.default: tkl.logical_or,
    aten.logical_and.default: tkl.logical_and,
    aten.logical_not.default: tkl.logical_not,
    aten.full.default: lambda shape, number, **_: number,
    aten.scalar_tensor.default: lambda number, **_: number,
    aten.copy.default: lambda x, source: tkl.broadcast_to(source, (B,)),
    aten.clone.default: lambda x, memory_format=None: x,
    aten.alias.default: lambda x: x,
    **{packet.Tensor: rule for packet, rule in _COMPARISONS.items()},
    **{packet.Scalar: rule for packet, rule in _COMPARISONS.items()},
}
_BY_NAME = {str(op): rule for op, rule in _RULES.items()}
