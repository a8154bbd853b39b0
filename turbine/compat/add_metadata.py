"""`turbine.passes.AddMetadata` with a module."""

from __future__ import annotations

from collections.abc import Mapping

from turbine.compat.rewriter import Pass
from turbine.mlir.ir import Module
from turbine.passes.add_metadata import AddMetadata


class AddMetadataPass(Pass):
    """`turbine.passes.AddMetadata` on a module, which `run` returns."""

    def __init__(
        self, mlir_module: Module, inp_metadata: Mapping[str, object], func_name: str
    ) -> None:
        super().__init__(mlir_module)
        self.mlir_module = mlir_module
        self.metadata = AddMetadata(func_name, inp_metadata)

    def run(self) -> Module:
        """Add the metadata."""
        self.metadata.run(self.module)
        return self.mlir_module
