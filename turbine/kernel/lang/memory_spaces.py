"""Address spaces, as in annotations of iree-turbine kernels."""

from __future__ import annotations

from enum import Enum


class AddressSpace(Enum):
    """An address space. Buffers are in global memory; the compiler places tiles."""

    REGISTER = 0
    SHARED_MEMORY = 1
    GLOBAL_MEMORY = 2
