"""Find graphs that take less time in PyTorch than a call of compiled code.

A call of compiled code takes as long as some PyTorch ops on small tensors. Fusion saves calls of
ops, and reads and writes of what is between them; where both are few, a graph runs in PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from turbine.capture.sizes import count_elements
from turbine.dynamo import calibration
from turbine.dynamo.calibration import Example

KIND = "call of four small ops"
REASON = "a call of compiled code takes longer than these few small ops"
# What AOTAutograd does around a call takes as long as this many small ops.
_AROUND = 6
# What one core reads and writes in a second.
_BYTES = 1e10


def make_example() -> Example:
    """Ops whose time is that of their calls."""
    return Example(lambda x: ((x + 1) * 2).relu() - 1, (torch.rand(64),), {})


_EXAMPLE_OPS = 4


def is_small(graph: fx.Graph) -> bool:
    """Whether a graph that Dynamo traced takes less time in PyTorch than compiled."""
    ops = [node for node in graph.nodes if node.op.startswith("call")]
    between = [one for op in ops for one in op.all_input_nodes if one.op != "placeholder"]
    # An op in between is written once, and read by each user; compiled code does neither.
    saved = _count_bytes(between) + _count_bytes(set(between))
    seconds = calibration.measure_once(KIND, make_example)
    op = seconds.library / _EXAMPLE_OPS
    return len(ops) * op + saved / _BYTES < seconds.compiled + _AROUND * op


def _count_bytes(nodes: Iterable[fx.Node]) -> int:
    values = [value for node in nodes for value in tree_leaves(node.meta.get("example_value"))]
    tensors = [value for value in values if isinstance(value, Tensor)]
    return sum(count_elements(tensor) * tensor.element_size() for tensor in tensors)
