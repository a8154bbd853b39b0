"""Debug flags of iree-turbine: the options `debug` and `log_level` in, attributes out."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, fields
from types import ModuleType

from turbine import config, errors
from turbine.runtime import run_trace

_FALSE = {"FALSE", "OFF", "0"}


@dataclass
class DebugFlags:
    """The flags of TURBINE_DEBUG="log_level=debug,-asserts,runtime_trace_dir=DIR"."""

    log_level: int = logging.NOTSET
    asserts: bool = True
    runtime_trace_dir: str | None = None

    @staticmethod
    def parse(settings: str) -> DebugFlags:
        """Flags from a comma separated list of name=value, name and -name.

        >>> from turbine.compat.debugging import DebugFlags
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


def flags_of(settings: config.Config) -> DebugFlags:
    """The flags of the options `debug` and `log_level`."""
    level = f",log_level={settings.log_level}" if settings.log_level else ""
    return DebugFlags.parse(settings.debug + level)


class ProcessFlags(DebugFlags):
    """The flags of this process; `runtime_trace_dir` is the option `trace_dir`."""

    def __init__(self, flags: DebugFlags) -> None:
        self.log_level = flags.log_level
        self.asserts = flags.asserts

    @property
    def runtime_trace_dir(self) -> str | None:
        """The folder that `turbine.runtime.run_trace` writes to."""
        folder = run_trace.folder()
        return None if folder is None else str(folder)

    @runtime_trace_dir.setter
    def runtime_trace_dir(self, folder: str | None) -> None:
        config.set(trace_dir=folder)


class _Debugging(ModuleType):
    """The class of this module: setting `trace_tensor_callback` sets the tracing callback."""

    @property
    def trace_tensor_callback(self) -> run_trace.TensorCallback:
        """The callback that receives traced tensors."""
        return run_trace.tensor_callback()

    @trace_tensor_callback.setter
    def trace_tensor_callback(self, callback: run_trace.TensorCallback) -> None:
        run_trace.set_tensor_callback(callback)


TraceTensorCallback = run_trace.TensorCallback
trace_tensor_to_npy = default_trace_tensor_callback = run_trace.keep_tensor
flags = ProcessFlags(flags_of(config.current()))
NDEBUG = not flags.asserts
# To be found by name; what is read and set is the property.
trace_tensor_callback: TraceTensorCallback = default_trace_tensor_callback
sys.modules[__name__].__class__ = _Debugging
