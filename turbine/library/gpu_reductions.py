"""Checks on GPUs: whether all elements of a tensor hold, for which IREE's code has one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.nodes import emit
from turbine.capture.program import Region
from turbine.target import Target

aten = torch.ops.aten

N, BN = tkl.sym.N, tkl.sym.BN


@tk.gen.kernel(1, blocks={BN: 4096})
def all_hold(x: tkl.InputBuffer[N, tkl.bool], y: tkl.OutputBuffer[1, tkl.bool]) -> None:
    """Whether all elements are true."""

    @tkl.for_loop(0, N // BN, init_args=[tkl.full((BN,), 1, tkl.i32)])
    def blocks(k: Any, least: Any) -> Any:
        return tkl.minimum(least, tkl.load(x, (k * BN,), (BN,)).to(tkl.i32))

    tkl.store(y, (0,), (tkl.min(blocks[0]) > 0)[None])


@dataclass(frozen=True)
class All:
    """A match: a reduction of a tensor of bools to one."""

    node: fx.Node

    def is_faster_on(self, target: Target) -> bool:
        """On every GPU."""
        return target.kind == "cuda"

    def replace(self, target: Target) -> fx.Node:
        """Call the kernel; return the result."""
        graph, (x,) = self.node.graph, self.node.all_input_nodes
        flat = emit(graph, aten.view.default, x, [-1], beside=self.node)
        result = emit(graph, all_hold.op.op, flat, beside=self.node)
        return emit(graph, aten.view.default, result, [], beside=self.node)


def find(region: Region) -> Iterator[All]:
    """Find reductions of bools to one, as checks of indices have them."""
    for node in region.graph.graph.find_nodes(op="call_function", target=aten.all.default):
        value = node.all_input_nodes[0].meta["val"]
        if value.dtype == torch.bool and value.dim() > 0:
            yield All(node)
