"""`turbine.passes.ExpandCustomOps` with a root op."""

from __future__ import annotations

from collections.abc import Mapping

from turbine.mlir.ir import Module, Operation
from turbine.passes.expand_custom_ops import Emit, ExpandCustomOps
from turbine.peer.rewriter import Pass


class ExpandCustomOpsPass(Pass):
    """`turbine.passes.ExpandCustomOps` with a table of expansions."""

    def __init__(self, root_op: Module | Operation, reg: Mapping[str, Emit]) -> None:
        super().__init__(root_op)
        self.reg = reg

    def run(self) -> None:
        """Expand the ops."""
        ExpandCustomOps(self.reg).run(self.module)
