"""Contexts in which iree-turbine launches kernels: `kernel._support.tracing`."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any, final

from turbine import errors
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.inspection import printer
from turbine.kernel.program import store_checks
from turbine.kernel.trace.tracer import symbol_name
from turbine.kernel.trace.user_code import user_line

_current: ContextVar[LaunchContext | None] = ContextVar("turbine_launch_context", default=None)


def current() -> LaunchContext | None:
    """The innermost context around a call; None outside of all."""
    return _current.get()


class LaunchContext(ABC):
    """How calls of kernels under `tk.gen.thread` in a `with` block are launched.

    `constant_bindings` maps symbols to numbers, `{BM: 64}`; they become part of the code.
    """

    def __init__(self, constant_bindings: Mapping[Any, int] | None = None) -> None:
        self.constant_bindings = {symbol_name(s): n for s, n in (constant_bindings or {}).items()}
        self._tokens: list[Token[LaunchContext | None]] = []

    def __enter__(self) -> LaunchContext:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    @abstractmethod
    def launch(self, kernel: Kernel, named: Mapping[str, Any]) -> Any:
        """Launch a kernel with arguments by name; returns its outputs, or None."""


@final
class TestLaunchContext(LaunchContext):
    """Trace a kernel, check its stores, and print its code; nothing is run.

    >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
    >>> N, B = tkl.sym.N, tkl.sym.B
    >>> @tk.gen.thread(N // B)
    ... def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
    ...     tkl.store(y, (tkl.program_id(0) * B,), 2 * tkl.load(x, (tkl.program_id(0) * B,), (B,)))
    >>> with tk.gen.TestLaunchContext({B: 4}):
    ...     double(torch.ones(8), torch.empty(8))  # doctest: +ELLIPSIS
    module {
    ...
    """

    __test__ = False  # pytest does not collect it

    def launch(self, kernel: Kernel, named: Mapping[str, Any]) -> None:
        """Print the module that would be compiled."""
        program, sizes, _ = kernel.resolve_call(named)
        store_checks.check_stores(program, sizes)
        view = printer.view_for(kernel, [named[p.name] for p in kernel.signature.passed])
        sys.stdout.write(f"{printer.mlir_text(view)}\n")


@final
class DebugLaunchContext(LaunchContext):
    """Run kernels in the interpreter, with every check."""

    def launch(self, kernel: Kernel, named: Mapping[str, Any]) -> Any:
        """Run the kernel in the interpreter."""
        return kernel.interpret(**named)


def AOTLaunchContext(module: Any, bindings: Mapping[Any, int] | None = None) -> LaunchContext:
    """Refuse to write into a module: a kernel becomes part of what is exported by itself."""
    raise errors.KernelError(
        "kernels are not launched into a module of MLIR",
        where=user_line(),
        hint="call a kernel under tk.gen.kernel in a model and export that: turbine.aot.export; "
        "kernel.text('mlir') gives its code",
    )
