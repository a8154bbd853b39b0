"""Replace ops of graphs by kernels of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from torch import fx

from turbine import errors
from turbine.capture.index_checks import check_late
from turbine.capture.nodes import copy_graph
from turbine.capture.program import Region
from turbine.capture.rounding import keep_rounding
from turbine.library import (
    attention,
    convolution,
    convolution_as_matmul,
    few_rows,
    gpu_matmul,
    gpu_reductions,
    linear,
    matmul,
    narrow,
    pooling,
    product_sums,
    rows,
    scatter,
    update,
)
from turbine.target import Target


class Match(Protocol):
    """Ops that a kernel can replace."""

    @property
    def node(self) -> fx.Node:
        """The node whose value the kernel computes."""

    def is_faster_on(self, target: Target) -> bool:
        """Whether the kernel is faster than IREE's code on a target."""

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel before the node; return the result."""


# Attention first: it contains a softmax. Convolutions before pooling, which takes their layout.
# What no kernel takes as it is of 16-bit floats becomes matmuls, and those become matmuls of f32.
_OF_CPU = (
    attention.find,
    convolution.find,
    pooling.find,
    few_rows.find,
    linear.find,
    convolution_as_matmul.find,
    narrow.find,
    matmul.find,
    rows.find_layer_norms,
    rows.find_group_norms,
    rows.find_softmaxes,
    product_sums.find,
    scatter.find,
    scatter.find_rows,
)
_NARROW_NORMS = partial(rows.of_narrow_rows, rows.find_layer_norms)
_ALL_SOFTMAXES = partial(rows.find_softmaxes, dtypes=rows.ANY_WIDTH)
_NARROW_SOFTMAXES = partial(rows.of_narrow_rows, _ALL_SOFTMAXES)
FINDERS: dict[str, tuple[Callable[[Any], Iterator[Match]], ...]] = {
    "cpu": _OF_CPU,
    # Convolutions before the matmuls that they become.
    "cuda": (
        attention.find,
        convolution_as_matmul.find,
        gpu_matmul.find,
        gpu_reductions.find,
        _NARROW_NORMS,
        rows.find_rms_norms,
        _NARROW_SOFTMAXES,
    ),
}


R = TypeVar("R", bound=Region)


def place_kernels(
    regions: Mapping[str, R], find_target: Callable[[], Target]
) -> dict[str, R] | None:
    """Replace ops by kernels where these are faster; return None if nothing is replaced.

    `find_target` is called only if there is a match.
    """
    matches: list[Match] = [
        match
        for region in regions.values()
        for find in {one for finders in FINDERS.values() for one in finders}
        for match in find(region)
    ]
    has_updates = any(update.find(region) for region in regions.values())
    if not matches and not has_updates:
        return None
    target = find_target()
    if target.kind not in FINDERS or not runs_kernels(target):
        return None
    if not has_updates and not any(match.is_faster_on(target) for match in matches):
        return None
    return {name: _with_kernels(region, target) for name, region in regions.items()}


def runs_kernels(target: Target) -> bool:
    """Whether kernels can be compiled for a target."""
    if target.kind != "cuda":
        return True
    if (target.capability or 0) < _LEAST_CAPABILITY:
        return False
    if find_spec("triton") is None:
        errors.warn(
            "the program has no kernels of Turbine's library, since Triton is not installed, and "
            "is slow: pip install turbine[cuda]",
            errors.SlowCodeWarning,
        )
        return False
    return True


# Older GPUs lack instructions of these kernels.
_LEAST_CAPABILITY = 80


def _check_shape(found: fx.Node, expected: fx.Node) -> None:
    sizes = zip(found.meta["val"].shape, expected.meta["val"].shape, strict=True)
    static = [pair for pair in sizes if all(isinstance(size, int) for size in pair)]
    assert all(one == other for one, other in static), f"a kernel for {expected} gives {found}"


def _with_kernels(region: R, target: Target) -> R:
    module, own = copy_graph(region.graph)
    copied = replace(region, graph=module)
    replaced: dict[fx.Node, fx.Node] = {}
    for find in FINDERS[target.kind]:
        matches: list[Match] = [*find(copied)]
        places = {node: place for place, node in enumerate(module.graph.nodes)}
        # From the last to the first: the operands of a match are not replaced before it.
        for match in sorted(matches, key=lambda match: places[match.node], reverse=True):
            if match.is_faster_on(target):
                with module.graph.inserting_before(match.node), match.node.meta["val"].fake_mode:
                    replaced[match.node] = match.replace(target)
                _check_shape(replaced[match.node], match.node)
                match.node.replace_all_uses_with(replaced[match.node])
        module.graph.eliminate_dead_code()

    def copy_of(node: fx.Node) -> fx.Node:
        twin: fx.Node = own[node]
        return replaced.get(twin, twin)

    placed = replace(
        copied,
        results=tuple(copy_of(node) for node in region.results),
        stores={name: copy_of(node) for name, node in region.stores.items()},
    )
    placed = update.place(placed)
    if target.kind == "cuda" and not placed.stores:  # a failed call must not update state
        check_late(module.graph)
    keep_rounding(module.graph)
    module.recompile()
    return placed
