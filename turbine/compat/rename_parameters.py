"""`turbine.passes.RenameParameters` with a root op."""

from __future__ import annotations

from collections.abc import Mapping

from turbine.compat.rewriter import Pass, pass_main
from turbine.mlir.ir import Module, Operation
from turbine.passes.rename_parameters import Callback, Name, RenameParameters


class RenameParametersPass(Pass):
    """`turbine.passes.RenameParameters` on a root op; unknown names are not an error."""

    def __init__(
        self,
        root_op: Module | Operation,
        *,
        rename_map: Mapping[Name, Name] | None = None,
        rename_callback: Callback | None = None,
    ) -> None:
        super().__init__(root_op)
        self.renames = RenameParameters(rename_map or {}, rename_callback, missing_ok=True)

    def run(self) -> None:
        """Rename the parameters."""
        self.renames.run(self.module)


if __name__ == "__main__":
    pass_main(RenameParametersPass)
