"""Ask the torch dialect which PyTorch operators it has a definition for."""

from __future__ import annotations

from functools import cache

from iree.compiler.ir import Context


def is_defined(operator: str) -> bool:
    """Whether an operator such as "aten::squeeze.dims" is an op of the torch dialect."""
    return bool(_context().is_registered_operation("torch." + operator.replace("::", ".")))


@cache
def _context() -> Context:
    context = Context()
    # Naming a dialect loads it, and with it its ops.
    assert context.dialects["torch"] is not None
    return context
