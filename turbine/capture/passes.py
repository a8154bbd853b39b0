"""The passes over fx graphs, in order, for both exports and torch.compile.

`clean` runs after a graph is traced, `prepare` before it is lowered.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from turbine.capture import graph_passes
from turbine.capture.broadcast_formulas import mark_broadcast_formulas
from turbine.capture.constants import fold_uniform
from turbine.capture.control_flow import all_bodies
from turbine.capture.crossed_reads import mark_crossed_reads
from turbine.capture.index_checks import check_early, check_indices
from turbine.capture.joined_indices import join_indices
from turbine.capture.long_formulas import mark_long_formulas
from turbine.capture.ownership import isolate_writes
from turbine.capture.reshapes import rewrite_reshapes
from turbine.capture.rounding import keep_rounding, round_integers
from turbine.capture.single_batches import drop_single_batches
from turbine.capture.size_arithmetic import rewrite_size_arithmetic
from turbine.capture.small_integers import widen_small_integers
from turbine.capture.spread_rows import mark_spread_rows
from turbine.capture.staged_reductions import stage_reductions


def clean(graph_module: fx.GraphModule) -> None:
    """Fix sizes, fold constants, and drop guards, annotations and ops without effect."""
    for module in (graph_module, *all_bodies(graph_module)):
        _clean(module)


def _clean(graph_module: fx.GraphModule) -> None:
    graph_passes.fix_sizes(graph_module)
    graph_passes.fix_broadcasts(graph_module)
    graph_passes.drop_guards(graph_module)
    graph_passes.drop_whole_slices(graph_module)
    graph_passes.fill_empty(graph_module)
    graph_passes.fill_reductions_of_nothing(graph_module)
    graph_passes.convert_fill_values(graph_module)
    drop_single_batches(graph_module.graph)
    fold_uniform(graph_module.graph)
    round_integers(graph_module.graph)
    keep_rounding(graph_module.graph)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def prepare(graph_module: fx.GraphModule, inputs: Iterable[str]) -> None:
    """Check indices, rewrite ops that the compiler miscompiles, and limit what it fuses.

    `inputs` are the caller's.
    """
    _prepare(graph_module.graph, inputs)
    for body in all_bodies(graph_module):
        # Control flow passes values on as they are: any may be the caller's.
        _prepare(body.graph, [node.name for node in body.graph.find_nodes(op="placeholder")])


def _prepare(graph: fx.Graph, inputs: Iterable[str]) -> None:
    widen_small_integers(graph)
    check_indices(graph)
    fold_uniform(graph, reads=True)
    check_early(graph)
    stage_reductions(graph)
    join_indices(graph)
    rewrite_reshapes(graph)
    isolate_writes(graph, inputs)
    rewrite_size_arithmetic(graph)
    mark_crossed_reads(graph)
    mark_spread_rows(graph)
    mark_long_formulas(graph)
    mark_broadcast_formulas(graph)
