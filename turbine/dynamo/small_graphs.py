"""Find graphs that take less time in PyTorch than a call of compiled code.

A call of compiled code takes as long as some PyTorch ops on small tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_leaves

from turbine.capture.sizes import count_elements
from turbine.dynamo import calibration, recurrence
from turbine.dynamo.calibration import Example

KIND = "call of four small ops"
REASON = "a call of compiled code takes longer than these few small ops"
# What is done around a call takes as long as this many small ops.
_AROUND = 1
# Of all tensors of a graph whose time is that of calling its ops.
_MOST_BYTES = 1 << 16


def make_example() -> Example:
    """Ops whose time is that of their calls."""
    return Example(lambda x: ((x + 1) * 2).relu() - 1, (torch.rand(64),), {})


EXAMPLE_OPS = 4


def is_small(graph: fx.Graph) -> bool:
    """Whether a graph that Dynamo traced takes less time in PyTorch than compiled."""
    ops = [node for node in graph.nodes if node.op.startswith("call")]
    if any(map(_has_body, ops)) or sum(map(_count_bytes, graph.nodes)) > _MOST_BYTES:
        return False
    seconds = calibration.measure_once(KIND, make_example)
    op = seconds.library / EXAMPLE_OPS
    return len(ops) * op < seconds.compiled + _AROUND * op


def _has_body(node: fx.Node) -> bool:
    """Whether an op runs others: control flow, and recurrent layers."""
    return isinstance(node.target, HigherOrderOperator) or recurrence.is_layer(node)


def _count_bytes(node: fx.Node) -> int:
    values = tree_leaves(node.meta.get("example_value"))
    tensors = [value for value in values if isinstance(value, Tensor)]
    return sum(count_elements(tensor) * tensor.element_size() for tensor in tensors)
