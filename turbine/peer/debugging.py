"""Debug flags of iree-turbine: the knobs `debug` and `log_level` in, attributes out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy
import torch

from turbine import config, errors

TraceTensorCallback = Callable[[str, torch.Tensor], None]
_FALSE = {"FALSE", "OFF", "0"}


@dataclass
class DebugFlags:
    """What TURBINE_DEBUG="log_level=debug,-asserts,runtime_trace_dir=DIR" says."""

    log_level: int = logging.NOTSET
    asserts: bool = True
    runtime_trace_dir: str | None = None

    @staticmethod
    def parse(settings: str) -> DebugFlags:
        """Flags from a comma separated list of name=value, name and -name.

        >>> from turbine.peer.debugging import DebugFlags
        >>> DebugFlags.parse("-asserts").asserts
        False
        """
        flags = DebugFlags()
        for part in filter(None, map(str.strip, settings.split(","))):
            flags.set(part)
        return flags

    def set(self, part: str) -> None:
        """Set one flag: name=value, name or -name."""
        name, _, value = part.lstrip("+-").partition("=")
        if name == "log_level":
            self.log_level = _level(value)
        elif name == "asserts":
            self.asserts = value.upper() not in _FALSE if value else not part.startswith("-")
        elif name == "runtime_trace_dir":
            self.runtime_trace_dir = value or None
        else:
            valid = [field.name for field in fields(self)]
            raise errors.ConfigError(errors.unknown("debug flag", name, valid))


def _level(name: str) -> int:
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        raise errors.ConfigError(errors.unknown("log level", name, levels))
    return levels[name.upper()]


def _from_knobs(knobs: config.Config) -> DebugFlags:
    level = f",log_level={knobs.log_level}" if knobs.log_level else ""
    return DebugFlags.parse(knobs.debug + level)


flags = _from_knobs(config.current())
NDEBUG = not flags.asserts


def trace_tensor_to_npy(key: str, tensor: torch.Tensor) -> None:
    """Write a tensor to KEY.npy in `flags.runtime_trace_dir`, if that is set."""
    if flags.runtime_trace_dir is not None:
        numpy.save(Path(flags.runtime_trace_dir) / f"{key}.npy", tensor.detach().cpu().numpy())


default_trace_tensor_callback: TraceTensorCallback = trace_tensor_to_npy
trace_tensor_callback: TraceTensorCallback = default_trace_tensor_callback
