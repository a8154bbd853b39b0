"""Lower exported IR from the torch dialect towards IREE's input, phase by phase."""

from __future__ import annotations

from enum import StrEnum

from turbine import errors
from turbine.mlir import context as mlir_context
from turbine.mlir.ir import Module


class ImportPhase(StrEnum):
    """The phases of lowering in order, and aliases of two of them."""

    TORCH_IR = "torch_ir"
    CUSTOM_OP_EXPANSION = "custom_op_expansion"
    IMPORT = "import"  # custom_op_expansion: what IREE's compiler takes
    IREE_INTERNAL = "iree_internal"
    FULL = "full"  # iree_internal

    @staticmethod
    def parse(spec: str | None) -> ImportPhase:
        """A phase by its name in any case, "torch-ir" too; None is IMPORT."""
        name = "import" if spec is None else str(spec).lower().replace("-", "_")
        known = [str(phase) for phase in ImportPhase]
        if name not in known:
            raise errors.ConfigError(errors.unknown("phase of the import", str(spec), known))
        return ImportPhase(name)


_TO_IREE = "builtin.module(torch-to-iree)"
# The passes that each phase adds. Custom ops are emitted when a program is lowered.
_PIPELINES = {ImportPhase.IREE_INTERNAL: _TO_IREE, ImportPhase.FULL: _TO_IREE}


def import_to(module: Module, phase: str | None) -> None:
    """Run the phases up to one on a module, in place."""
    pipeline = _PIPELINES.get(ImportPhase.parse(phase))
    if pipeline is not None:
        mlir_context.run_pipeline(module, pipeline)
