"""Where buffers lie: names that kernels of iree-turbine are annotated with."""

from __future__ import annotations

from enum import Enum


class AddressSpace(Enum):
    """A kind of memory. Buffers are in global memory; tiles are wherever the compiler puts them."""

    REGISTER = 0
    SHARED_MEMORY = 1
    GLOBAL_MEMORY = 2
