"""Kernels that are given their outputs, and launched as the context around a call says."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any, final

from torch import Tensor

from turbine import algebra, errors
from turbine.algebra import Symbol
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.inspection import printer
from turbine.kernel.program import store_checks
from turbine.kernel.program.signature import Parameter
from turbine.kernel.trace.tracer import symbol_name
from turbine.kernel.trace.types import BufferType
from turbine.kernel.trace.user_code import user_line

_current: ContextVar[LaunchContext | None] = ContextVar("turbine_launch_context", default=None)


class LaunchContext(ABC):
    """What becomes of kernels under `tk.gen.thread` that are called in a `with` block.

    `constant_bindings` gives numbers to symbols, `{BM: 64}`; they become part of the code.
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
        """Do with a call of a kernel what this context is for."""


@final
class TestLaunchContext(LaunchContext):
    """Trace a kernel, check that it holds together, and print its code; nothing is run.

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

    __test__ = False  # of pytest's

    def launch(self, kernel: Kernel, named: Mapping[str, Any]) -> None:
        """Print the module that would be compiled."""
        program, sizes, _ = kernel.resolve_call(named)
        store_checks.check_stores(program, sizes)
        shown = printer.view_for(kernel, [named[p.name] for p in kernel.signature.passed])
        sys.stdout.write(f"{printer.mlir_text(shown)}\n")


@final
class DebugLaunchContext(LaunchContext):
    """Run kernels in the interpreter, with every check."""

    def launch(self, kernel: Kernel, named: Mapping[str, Any]) -> Any:
        """Interpret."""
        return kernel.interpret(**named)


class Thread:
    """A kernel that is called with its outputs too, which it writes to."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.__name__ = kernel.__name__
        self.__doc__ = kernel.__doc__
        self.__wrapped__ = kernel.function
        self._sized: dict[tuple[tuple[str, int], ...], Kernel] = {}  # by sizes of outputs

    def __repr__(self) -> str:
        return f"<thread of {self.kernel!r}>"

    def __call__(self, *args: Any, **keywords: Any) -> None:
        """Launch the kernel; without a context around the call, it is compiled and run."""
        given = self._bind_arguments(args, keywords)
        passed = {p.name: given[p.name] for p in self.kernel.signature.passed if p.name in given}
        outputs = {p.name: given[p.name] for p in _outputs(self.kernel)}
        context = _current.get()
        kernel = self._with_sizes_of(outputs)
        if context is None:
            _copy(kernel, kernel(**passed), outputs)
            return
        kernel = _bind(kernel, context.constant_bindings, passed)
        _copy(kernel, context.launch(kernel, passed), outputs)

    def _with_sizes_of(self, outputs: Mapping[str, Any]) -> Kernel:
        """The kernel for the sizes that only outputs have."""
        found = tuple(_sizes_of_outputs(self.kernel, outputs).items())
        if not found:
            return self.kernel
        if found not in self._sized:
            self._sized[found] = self.kernel.using(**dict(found))
        return self._sized[found]

    def _bind_arguments(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        parameters = [p for p in self.kernel.signature.parameters if not _is_temporary(p)]
        names = [p.name for p in parameters]
        given = {**dict(zip(names, args, strict=False)), **keywords}
        missing = [str(p) for p in _outputs(self.kernel) if p.name not in given]
        wrong = [name for name in keywords if name not in names]
        if missing or wrong or len(args) > len(names):
            raise errors.KernelError(
                f"{self.__name__} takes {', '.join(names)}, and was given {len(args)} arguments"
                + (f" and {', '.join(keywords)}" if keywords else ""),
                where=user_line(),
                hint="a kernel under tk.gen.thread is passed its outputs too; one under "
                "tk.gen.kernel returns them",
            )
        return given


def _is_temporary(parameter: Parameter) -> bool:
    return isinstance(parameter.type, BufferType) and parameter.type.usage == "temporary"


def _outputs(kernel: Kernel) -> list[Parameter]:
    buffers = kernel.signature.buffers
    return [p for p in buffers if isinstance(p.type, BufferType) and p.type.usage == "output"]


def _sizes_of_outputs(kernel: Kernel, outputs: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of outputs that no argument has, where an axis is such a size and nothing else."""
    passed = [p.type for p in kernel.signature.passed if isinstance(p.type, BufferType)]
    told = {symbol for type in passed for size in type.shape for symbol in size.symbols}
    sizes: dict[str, int] = {}
    for parameter in _outputs(kernel):
        tensor = outputs[parameter.name]
        assert isinstance(parameter.type, BufferType)
        if not isinstance(tensor, Tensor) or tensor.ndim != parameter.type.rank:
            continue  # which is refused below
        for size, actual in zip(parameter.type.shape, tensor.shape, strict=True):
            for symbol in size.symbols - told:
                name = str(symbol)
                if size == algebra.symbol(name) and name not in kernel.blocks:
                    sizes.setdefault(name, int(actual))
    return sizes


def _bind(kernel: Kernel, bindings: Mapping[str, int], passed: Mapping[str, Any]) -> Kernel:
    """The kernel with numbers for those of its symbols that are bound."""
    program = kernel.program(kernel.bind_arguments((), passed))
    own = {name: n for name, n in bindings.items() if Symbol(name) in program.size_symbols}
    return kernel.using(**own) if own else kernel


def _copy(kernel: Kernel, results: Any, outputs: Mapping[str, Any]) -> None:
    """Write what a kernel gave to the tensors that it was given for that."""
    if results is None:
        return
    values = results if isinstance(results, tuple) else (results,)
    for (name, target), value in zip(outputs.items(), values, strict=True):
        if not isinstance(target, Tensor) or target.shape != value.shape:
            given = (
                list(target.shape) if isinstance(target, Tensor) else f"a {type(target).__name__}"
            )
            raise errors.KernelError(
                f"{kernel.__name__}: the output {name} is {list(value.shape)}, and was given "
                f"{given}",
                where=user_line(),
                hint="pass a tensor of that shape to write to",
            )
        target.copy_(value)
