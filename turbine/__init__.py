"""Turbine compiles PyTorch programs with IREE.

- `turbine.aot.export(model, args=(x,)).compile()` gives an artifact: one file, called like a model.
- `turbine.load(path)` opens one; it needs neither the model nor the compiler.
- `torch.compile(model, backend="turbine")` compiles in place, for inference and training;
  `turbine.explain(model, x)` says what became of each part, `turbine.profile(model, x)` what takes
  the time.
- `turbine.eager.enable()` makes "turbine" a device, whose tensors record ops and run them compiled.
- `turbine.ops.custom_op` declares an op, compiled on its first call.
- `turbine.kernel` is TK, the kernel language; its ops are in `turbine.kernel.lang`.
- `turbine.config` holds the options, `turbine.errors` every error.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from turbine import config as config
from turbine import errors as errors
from turbine import whole_package as _whole_package
from turbine.version import __version__ as __version__

config.warn_of_misspelt_variables()
_whole_package.explain_absence()

if TYPE_CHECKING:
    from turbine import aot as aot
    from turbine import eager as eager
    from turbine import kernel as kernel
    from turbine import ops as ops
    from turbine import passes as passes
    from turbine import runtime as runtime
    from turbine.dynamo import counters as counters
    from turbine.dynamo import explain as explain
    from turbine.dynamo import profile as profile
    from turbine.runtime.artifact import Artifact as Artifact
    from turbine.runtime.artifact import load as load

# Imported on first use, from these modules: artifacts run where torch is not installed, and where
# turbine-runtime is alone, which has no others than the runtime.
_MODULES = ("aot", "eager", "kernel", "ops", "passes", "runtime")
_NAMES = {
    "Artifact": "turbine.runtime.artifact",
    "load": "turbine.runtime.artifact",
    "counters": "turbine.dynamo",
    "explain": "turbine.dynamo",
    "profile": "turbine.dynamo",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"turbine.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    hint = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module 'turbine' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_NAMES, "config", "errors", "__version__", "__doc__"])


# What a newcomer may look for here.
_ELSEWHERE = {
    "compile": 'write torch.compile(model, backend="turbine") or turbine.aot.export(...).compile()',
    "export": "it is turbine.aot.export",
}
