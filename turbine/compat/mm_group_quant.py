"""`turbine.passes.GroupQuantize` with a root op."""

from __future__ import annotations

from turbine.compat.rewriter import Pass, pass_main
from turbine.mlir.ir import Module, Operation
from turbine.passes.group_quantize import GroupQuantize


class MMGroupQuantRewriterPass(Pass):
    """`turbine.passes.GroupQuantize` to 4 bits, on a root op."""

    def __init__(self, root_op: Module | Operation, *, group_size: int = 128) -> None:
        super().__init__(root_op)
        self.group_size = group_size

    def run(self) -> None:
        """Quantize the layers."""
        GroupQuantize(group_size=self.group_size).run(self.module)


if __name__ == "__main__":
    pass_main(MMGroupQuantRewriterPass)
