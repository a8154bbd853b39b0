"""The ops that are decomposed before lowering, under the names of iree-turbine."""

from __future__ import annotations

from torch._decomp import decomposition_table

from turbine.capture.decompositions import current_aot_decompositions

DEFAULT_DECOMPOSITION_TABLE = current_aot_decompositions()
# A list stands for PyTorch's rules, so ops with rules of our own are not on it: adding this list
# to the table in force changes nothing.
DEFAULT_DECOMPOSITIONS = [
    op for op, rule in DEFAULT_DECOMPOSITION_TABLE.items() if decomposition_table.get(op) is rule
]
