"""Convolutions that capture leaves whole: windows as columns of a matrix, which is multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from turbine.capture import convolutions
from turbine.capture.convolutions import Convolution
from turbine.capture.nodes import inline
from turbine.capture.program import Region
from turbine.capture.rules.convolution import as_matmul, can_be_matmul
from turbine.capture.rules.shapes import constant_pad
from turbine.library.narrow import NARROW, widen
from turbine.library.nodes import convert
from turbine.target import Target

aten = torch.ops.aten


@dataclass(frozen=True)
class Match:
    """A whole convolution: of 16-bit floats, or of f32 that IREE's code suits on CPUs."""

    found: Convolution

    @property
    def node(self) -> fx.Node:
        """The node whose value is replaced."""
        return self.found.node

    def is_faster_on(self, target: Target) -> bool:
        """On every GPU; on CPUs for 16-bit floats, for which IREE's code has no vectors."""
        return target.kind == "cuda" or self.node.meta["val"].dtype in NARROW

    def replace(self, target: Target) -> fx.Node:
        """Write it as a matmul; return the result."""
        operands = [one for one in (self.found.x, self.found.weight, self.found.bias) if one]
        if target.kind == "cpu":  # rounded once, as PyTorch does
            operands = [widen(one, self.node) for one in operands]

        def call(*values: torch.Tensor) -> torch.Tensor:
            x, weight, *bias = values
            return as_matmul(x, weight, bias[0] if bias else None, *self._settings)

        result = inline(self.node, call, operands, {aten.constant_pad_nd.default: constant_pad})
        assert isinstance(result, fx.Node)
        return convert(result, self.node.meta["val"].dtype, self.node)

    @property
    def _settings(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        found = self.found
        return found.stride, found.padding, found.dilation, found.groups


def find(region: Region) -> Iterator[Match]:
    """Find convolutions that can be matmuls, and are not yet."""
    for found in convolutions.find(region.graph.graph):
        is_whole = found.node.target is aten.convolution.default
        x, weight = found.x.meta["val"], found.weight.meta["val"]
        if is_whole and can_be_matmul(x, weight, found.padding):
            yield Match(found)
