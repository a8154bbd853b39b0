"""Call an op with the arguments that were selected."""

from __future__ import annotations

from typing import Any

from turbine.compat.op_reg.selection import KernelSelection


def eager_dispatch(ksel: KernelSelection) -> Any:
    """The results of the op, which compiles it on the first call of a kind."""
    declared = ksel.op.declared
    return declared.schema.call(declared.op, ksel.args)
