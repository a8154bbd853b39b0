"""Contexts in which iree-turbine launches kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbine import errors
from turbine.kernel.threads import DebugLaunchContext as DebugLaunchContext
from turbine.kernel.threads import LaunchContext as LaunchContext
from turbine.kernel.threads import TestLaunchContext as TestLaunchContext
from turbine.kernel.trace.user_code import user_line


def AOTLaunchContext(module: Any, bindings: Mapping[Any, int] | None = None) -> LaunchContext:
    """Refuse to write into a module: a kernel becomes part of what is exported by itself."""
    raise errors.KernelError(
        "kernels are not launched into a module of MLIR",
        where=user_line(),
        hint="call a kernel under tk.gen.kernel in a model and export that: turbine.aot.export; "
        "kernel.text('mlir') gives its code",
    )
