"""The tracer of iree-turbine, `runtime.tracing.tracer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turbine import config
from turbine.runtime import run_trace


class RuntimeTracer:
    """`turbine.runtime.run_trace` with the methods of iree-turbine's tracer."""

    @property
    def enabled(self) -> bool:
        """Whether anything is traced."""
        return run_trace.folder() is not None

    def save_jit_kernel_artifacts(
        self, *, cache_key: str, module_asm: bytes, binary: bytes | memoryview
    ) -> str:
        """Write the IR and code of a kernel; returns the name of their files."""
        label = run_trace.kernel(cache_key, module_asm.decode, binary)
        return cache_key if label is None else label.name

    def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log a message."""
        run_trace.log.info(msg, *args, **kwargs)

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log an error."""
        run_trace.log.error(msg, *args, **kwargs)

    def exception(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log an error with the current exception's traceback."""
        run_trace.log.exception(msg, *args, **kwargs)

    def log_structured(self, *, tag: str, msg: str, columns: Sequence[Any]) -> None:
        """Log a message and a row of values."""
        run_trace.log.info("%s\n::%s\t%s", msg, tag, "\t".join(map(str, columns)))


class DirectoryTracer(RuntimeTracer):
    """A tracer that sets the trace folder of the process."""

    def __init__(self, dir: str | Path) -> None:
        config.set(trace_dir=dir)


tracer = RuntimeTracer()
