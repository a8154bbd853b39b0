"""Turbine compiles PyTorch programs with IREE."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from turbine import config as config
from turbine import errors as errors
from turbine.version import __version__ as __version__

if TYPE_CHECKING:
    from turbine import aot as aot
    from turbine import ops as ops
    from turbine import passes as passes
    from turbine import runtime as runtime
    from turbine.dynamo import counters as counters
    from turbine.dynamo import explain as explain
    from turbine.runtime.artifact import Artifact as Artifact
    from turbine.runtime.artifact import load as load


def __getattr__(name: str) -> Any:
    """Import what needs torch or IREE on first use: artifacts run where torch is not installed."""
    if name in ("aot", "ops", "passes", "runtime"):
        return importlib.import_module(f"turbine.{name}")
    if name in ("explain", "counters"):
        import turbine.dynamo

        return vars(turbine.dynamo)[name]
    if name in ("load", "Artifact"):
        from turbine.runtime import artifact

        return vars(artifact)[name]
    hint = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module 'turbine' has no attribute {name!r}{hint}")


# What a newcomer may look for here.
_ELSEWHERE = {
    "compile": 'write torch.compile(model, backend="turbine") or turbine.aot.export(...).compile()',
    "export": "it is turbine.aot.export",
}
