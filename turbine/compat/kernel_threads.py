"""Kernels that are called with their outputs: `@tk.gen.thread` of iree-turbine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from turbine import errors
from turbine.algebra import Symbol, slope
from turbine.compat import kernel_tracing
from turbine.kernel import gen
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.program.signature import Parameter
from turbine.kernel.program.size_inference import Axis, cannot_be, solve
from turbine.kernel.trace.types import BufferType
from turbine.kernel.trace.user_code import user_line


def thread(*grid: Any) -> Callable[[Callable[..., Any]], Thread]:
    """Make a kernel that is called with its outputs too, and launched by the context of the call.

    `with tk.gen.TestLaunchContext({BM: 64}):` prints its code. New programs are shorter under
    `tk.gen.kernel`, which returns outputs.
    """
    make = gen.kernel(*grid)
    return lambda function: Thread(make(function))


class Thread:
    """A kernel that is called with its outputs too, and writes to them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.__name__ = kernel.__name__
        self.__doc__ = kernel.__doc__
        self.__wrapped__ = kernel.function

    def __repr__(self) -> str:
        return f"<thread of {self.kernel!r}>"

    def __call__(self, *args: Any, **keywords: Any) -> None:
        """Launch the kernel; outside of a launch context, it is compiled and run."""
        given = self._bind_arguments(args, keywords)
        passed = {p.name: given[p.name] for p in self.kernel.signature.passed if p.name in given}
        outputs = {p.name: given[p.name] for p in _outputs(self.kernel)}
        context = kernel_tracing.current()
        kernel = self._with_sizes_of(outputs)
        if context is None:
            _copy(kernel, kernel(**passed), outputs)
            return
        kernel = _bind(kernel, context.constant_bindings, passed)
        _copy(kernel, context.launch(kernel, passed), outputs)

    def _with_sizes_of(self, outputs: Mapping[str, Any]) -> Kernel:
        """The kernel, specialized for sizes that appear only in outputs."""
        found = _sizes_of_outputs(self.kernel, outputs)
        return self.kernel.using(**found) if found else self.kernel

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
    """Symbols that appear in outputs only, inferred from axes such as N and 2 * N."""
    passed = [p.type for p in kernel.signature.passed if isinstance(p.type, BufferType)]
    inferred = {symbol for type in passed for size in type.shape for symbol in size.symbols}
    sizes: dict[str, int] = {}
    for parameter in _outputs(kernel):
        tensor = outputs[parameter.name]
        assert isinstance(parameter.type, BufferType)
        if not isinstance(tensor, Tensor) or tensor.ndim != parameter.type.rank:
            continue  # _copy raises
        for number, size in enumerate(parameter.type.shape):
            open_ = [s for s in size.symbols if s not in inferred and s.name not in kernel.blocks]
            if len(size.symbols) != 1 or not open_ or slope(size, open_[0]) is None:
                continue
            value = solve(size, open_[0], int(tensor.shape[number]))
            if value is None:
                axis = Axis(parameter, number, size, int(tensor.shape[number]))
                raise cannot_be(kernel.signature, axis, {})
            sizes.setdefault(open_[0].name, value)
    return sizes


def _bind(kernel: Kernel, bindings: Mapping[str, int], passed: Mapping[str, Any]) -> Kernel:
    """The kernel with its symbols bound to numbers, as far as `bindings` has them."""
    program = kernel.program(kernel.bind_arguments((), passed))
    own = {name: n for name, n in bindings.items() if Symbol(name) in program.size_symbols}
    return kernel.using(**own) if own else kernel


def _copy(kernel: Kernel, results: Any, outputs: Mapping[str, Any]) -> None:
    """Copy the results of a kernel to the tensors passed as its outputs."""
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
