"""The options and modes of `torch.compile(..., backend="turbine", options=..., mode=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbine import config, errors, target
from turbine.compiler import strategies
from turbine.dynamo import library

# Options of `turbine.config` that apply to one compiled function.
OPTIONS = (
    "target",
    "strategy",
    "cache",
    "compile_timeout",
    "compile_memory_mb",
    "in_process",
    "dump",
    "sync_limit_mflop",
    "library_calls",
    "freezing",
)

# The options of each mode; explicit options override them.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},  # what it reduces are launches on GPUs
    "max-autotune": {"strategy": "tune"},
    "max-autotune-no-cudagraphs": {"strategy": "tune"},
}


def check(options: Mapping[str, Any] | None, mode: str | None) -> dict[str, Any]:
    """The options to set while one function is compiled."""
    if mode is not None and mode not in MODES:
        raise errors.ConfigError(errors.unknown("mode of the turbine backend", str(mode), MODES))
    settings = {**MODES[mode or "default"], **(options or {})}
    for name in settings:
        if name not in OPTIONS:
            raise errors.ConfigError(
                errors.unknown("option of the turbine backend", str(name), OPTIONS),
                hint="docs/torch_compile.md says what each option does",
            )
    with config.override(**settings):  # raises for values of the wrong type
        _check(config.current().target, config.current().strategy)
        library.check(config.current().library_calls)
    return settings


def _check(text: str, strategy: str) -> None:
    kind = target.parse(text).kind
    strategies.choose(strategy, kind)
    if kind != "cpu":
        raise errors.ConfigError(
            f"torch.compile with turbine runs on the CPU, not on target {text!r}",
            hint='use target "cpu", "cpu:generic" or "cpu:<llvm cpu name>"',
        )
