"""Take exported IR from the torch dialect towards what IREE compiles, phase by phase."""

from __future__ import annotations

from turbine import errors
from turbine.mlir import context as mlir_context
from turbine.mlir.ir import Module

_TO_IREE = "builtin.module(torch-to-iree)"
# What each phase adds to those before it. Ops of our own are emitted when a program is lowered.
PHASES: dict[str, str | None] = {
    "torch_ir": None,
    "custom_op_expansion": None,
    "import": _TO_IREE,
    "iree_internal": _TO_IREE,
    "full": _TO_IREE,
}


def import_to(module: Module, phase: str) -> None:
    """Run a module through the phases up to one, in place."""
    if phase not in PHASES:
        raise errors.ConfigError(errors.unknown("phase of the import", str(phase), PHASES))
    pipeline = PHASES[phase]
    if pipeline is not None:
        mlir_context.run_pipeline(module, pipeline)
