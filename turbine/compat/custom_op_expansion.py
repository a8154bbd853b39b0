"""`turbine.passes.ExpandCustomOps` with a root op."""

from __future__ import annotations

from collections.abc import Mapping

from turbine.compat.op_reg.base import ALL_CUSTOM_OP_REGS, CustomOp
from turbine.compat.op_reg.building import InlineKernelBuilder as InlineKernelBuilder
from turbine.compat.rewriter import Pass
from turbine.mlir.ir import Module, Operation
from turbine.passes.expand_custom_ops import DECLARED, Emit, ExpandCustomOps


class ExpandCustomOpsPass(Pass):
    """`turbine.passes.ExpandCustomOps` on a root op, for the ops of a table."""

    def __init__(
        self, root_op: Module | Operation, reg: Mapping[str, CustomOp | Emit] = ALL_CUSTOM_OP_REGS
    ) -> None:
        super().__init__(root_op)
        self.reg = reg

    def run(self) -> None:
        """Expand the ops."""
        expansions = {
            name: DECLARED[entry.qualified] if isinstance(entry, CustomOp) else entry
            for name, entry in self.reg.items()
        }
        ExpandCustomOps(expansions).run(self.module)
