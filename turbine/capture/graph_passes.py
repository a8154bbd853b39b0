"""Clean a captured graph in place: drop what only guards or annotates, then what is unused."""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten

# Checks that the exported signature (sizes, dtypes, ranges) makes again at every call.
_GUARDS = {
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


def run(graph_module: fx.GraphModule) -> None:
    """Run every pass, in order."""
    drop_guards(graph_module)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def drop_guards(graph_module: fx.GraphModule) -> None:
    """Erase assertion nodes."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and node.target in _GUARDS:
            graph_module.graph.erase_node(node)
