"""A kernel that is called like a PyTorch op."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch, _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import forward_ad

from turbine import config, errors
from turbine.algebra import Symbol
from turbine.kernel.backends import interpret
from turbine.kernel.call import autograd
from turbine.kernel.call.autograd import Gradient
from turbine.kernel.call.choices import Tune
from turbine.kernel.call.definition import Call, Definition
from turbine.kernel.call.gpu_launcher import GpuLauncher, QuickLaunch
from turbine.kernel.call.launcher import KernelLauncher, Variant, check_grid, separate_inputs
from turbine.kernel.trace.types import BufferType
from turbine.runtime.quick_call import QuickCall, is_shareable

if TYPE_CHECKING:
    from turbine.kernel.tuning.report import TuningReport

Function = Callable[..., Any]


class Kernel(Definition):
    """A kernel of TK. Call it with tensors; its outputs are returned.

    `blocks` gives sizes of tiles, by symbol or by name; others are chosen. `specialize` names sizes
    that become part of the code: calls with other values compile again. `tune` lists what the
    method of this name tries, or is the path of a table that it wrote.
    """

    def __init__(
        self,
        function: Function,
        grid: Sequence[Any],
        blocks: Mapping[Any, int] | None = None,
        specialize: Collection[Any] = (),
        tune: Tune | None = None,
    ) -> None:
        super().__init__(function, grid, blocks, specialize, tune)
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__signature__ = self.signature.of_call()
        self.launcher = KernelLauncher(self.signature)
        self.gpu = GpuLauncher()
        # Resolved calls by types and sizes of their tensors.
        self._known: dict[tuple[Any, ...], tuple[Call, Variant]] = {}
        # Fast paths for calls like recent ones, with the number of their arguments.
        self._quick: tuple[tuple[QuickCall | QuickLaunch, int], ...] = ()
        self._op: Any = None
        self._origin: tuple[Kernel, dict[str, int]] | None = None
        self._with_sizes: dict[frozenset[tuple[str, int]], Kernel] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}({', '.join(map(str, self.signature.parameters))})>"

    # Models that hold a kernel are copied and pickled; the kernel is found again by its name.

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._origin is None:
            return self.__qualname__
        return _with_blocks, self._origin

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    # Calls

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the kernel on tensors."""
        if torch.compiler.is_compiling():
            named = self.bind_arguments(args, keywords)
            assert self._has_op()
            return self._op.op(*[named[p.name] for p in self.signature.passed])
        if not keywords and _is_plain():
            result = self.repeat_call(args)
            if result is not None:
                return result
        named = self.bind_arguments(args, keywords)
        if _is_plain() and _are_plain(named):
            return self.run(named, args if not keywords else None)
        return self.op(*[named[p.name] for p in self.signature.passed])

    def run(self, named: Mapping[str, Any], args: tuple[Any, ...] | None = None) -> Any:
        """Run the kernel on plain CPU tensors; later calls like `args` take the fast path."""
        if config.get("interpret"):
            return self._interpret(named)
        device = self.device_of(named)
        if device.type != "cpu":
            return self._run_on_gpu(named, args, device)
        self.last_call, variant = self.prepare(named)
        outputs = variant.run(named, self.last_call[1])
        if args is not None and not variant.written:
            self._remember(variant, args, self.last_call[1])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def device_of(self, named: Mapping[str, Any]) -> torch.device:
        """The device of a call's tensors; raises if there is none that kernels run on."""
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        devices = list(dict.fromkeys(tensor.device for tensor in tensors))
        if len(devices) > 1:
            listed = " and ".join(map(str, devices))
            raise errors.KernelError(
                f"{self.__name__} was called with tensors on {listed}",
                where=self.signature.place,
                hint=f"move them to one device, tensor.to({str(devices[0])!r})",
            )
        if devices and devices[0].type not in ("cpu", "cuda"):
            raise errors.KernelError(
                f"{self.__name__} was called with tensors on {devices[0]}",
                where=self.signature.place,
                hint="kernels run on CPUs and CUDA GPUs: move the tensors there, tensor.cpu()",
            )
        return devices[0] if devices else torch.device("cpu")

    def check_on_cpu(self, named: Mapping[str, Any], what: str) -> None:
        """Raise for tensors of a GPU, on which a report is not available."""
        if self.device_of(named).type != "cpu":
            raise errors.KernelError(
                f"{what} of {self.__name__} takes CPU tensors",
                where=self.signature.place,
                hint="pass tensor.cpu(); kernel.text('triton') shows the code for a GPU",
            )

    def _run_on_gpu(
        self, named: Mapping[str, Any], args: tuple[Any, ...] | None, device: torch.device
    ) -> Any:
        resolve = partial(self.resolve_call, named, "cuda")
        self.last_call, launch, outputs = self.gpu.run(named, device, resolve)
        is_repeatable = bool(outputs) and not launch.variant.program.of_usage("inout")
        # Guards of PyTorch's refuse a tensor that is passed twice.
        given = args or ()
        is_new = len({*map(id, given)} - {id(None)}) == len(given)
        if given and is_repeatable and is_new:
            names = [p.name for p in self.signature.passed]
            quick = QuickLaunch(launch, names, given), len(given)
            self._quick = (quick, *self._quick[: _MOST_QUICK - 1])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def prepare(self, named: Mapping[str, Any]) -> tuple[Call, Variant]:
        """The call of arguments like these, which may be fake, and its code, compiled if needed."""
        facts = tuple(_fact(value) for value in named.values())
        known = self._known.get(facts)
        if known is None:
            call = self.resolve_call(named)
            program, sizes, key = call
            known = call, self.launcher.variant(key, program, sizes)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[facts] = known
        return known

    def repeat_call(self, args: tuple[Any, ...]) -> Any:
        """The fast path: the result of a call like a recent one; None for other calls."""
        if not self._quick or config.get("interpret"):
            return None
        for quick, count in self._quick:
            if len(args) == count:
                result = quick.call(args)
                if result is not None:
                    return result
        return None

    def _remember(
        self, variant: Variant, args: tuple[Any, ...], sizes: Mapping[Symbol, int]
    ) -> None:
        """Set the fast path for calls like this one, if it applies."""
        slots = [*variant.call.inputs, *variant.call.results]
        plain = all(slot.dtype is not None and is_shareable(slot.dtype) for slot in slots)
        single = variant.outputs == 1 and not variant.report.sites
        # Numbers need a conversion, which the fast path does not have.
        buffers = all(isinstance(p.type, BufferType) for p in variant.passed)
        if plain and single and buffers and all(isinstance(a, Tensor) for a in args):
            inspect = variant.inspect(sizes) if variant.report.alarms else None
            quick = QuickCall(variant.call.entry, (0, 0), is_fresh=True, inspect=inspect)
            quick.remember(args)
            self._quick = ((quick, len(args)),)

    def _run_op(self, *args: Any) -> Any:
        """Run the kernel as PyTorch's dispatcher calls it: every argument, in order."""
        result = self.repeat_call(args)
        if result is not None:
            return result
        names = [p.name for p in self.signature.passed]
        return self.run(dict(zip(names, args, strict=True)), args)

    def interpret(self, *args: Any, **keywords: Any) -> Any:
        """Run the kernel in the interpreter: slowly, and with every check."""
        return self._interpret(self.bind_arguments(args, keywords))

    def _interpret(self, named: Mapping[str, Any]) -> Any:
        program, sizes, _ = self.last_call = self.resolve_call(named)
        check_grid(program, sizes)
        device = self.device_of(named)
        given = separate_inputs(program, {name: _on_cpu(value) for name, value in named.items()})
        outputs = [t.to(device) for t in interpret.run(program, sizes, given).values()]
        for parameter in program.of_usage("inout"):
            if given[parameter.name] is not named[parameter.name]:
                named[parameter.name].copy_(given[parameter.name])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def using(self, **blocks: int) -> Kernel:
        """The same kernel with other block sizes: `gemm.using(BM=32, BN=128)`.

        `num_warps`, `num_stages` and `group_rows` set how it runs on a GPU. What is set is not
        tuned. Equal sizes give the same object; without any it is a copy.
        """
        self.check_blocks(blocks)
        sizes = frozenset(blocks.items())
        with self._lock:
            made = self._with_sizes.get(sizes)
            if made is None:
                made = Kernel(self.function, self.grid, {**self.given, **blocks}, self.specialized)
                made.candidates, made.choices.table = self.candidates, self.choices.table
                made.gradient, made._origin = self.gradient, (self, blocks)
                if blocks:
                    self._with_sizes[sizes] = made
        return made

    def tune(
        self,
        *args: Any,
        seconds: float = 30.0,
        candidates: Iterable[Mapping[Any, int]] | None = None,
        **keywords: Any,
    ) -> TuningReport:
        """Find the fastest block sizes for calls like this one, and keep them for later calls.

        Args:
            seconds: how long to search. A compile that has begun is waited for.
            candidates: configurations to try, `[{"BM": 64, "num_warps": 4}, ...]`; otherwise those
                of the decorator, `tune=[...]`, or else those around the default.

        Returns: a report to print, whose `save` writes a table that a project can keep.

        The default is measured in turns with the others, and stays if it is as fast. The arguments
        are not changed.

        >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
        >>> N, B = tkl.sym.N, tkl.sym.B
        >>> @tk.gen.kernel(N // B)
        ... def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
        ...     start = tkl.program_id(0) * B
        ...     tkl.store(y, (start,), 2 * tkl.load(x, (start,), (B,)))
        >>> report = double.tune(torch.ones(10000), candidates=[{"B": 4096}, {"B": 16}])
        >>> sorted(trial.configuration["B"] for trial in report.trials)
        [16, 1024, 4096]
        """
        from turbine.kernel.tuning import search

        report = search.tune(self, args, keywords, seconds, candidates)
        self._forget_calls()
        return report

    def _forget_calls(self) -> None:
        """Let calls find their block sizes again."""
        self.choices.known.clear()
        self._known.clear()
        self.gpu.launches.clear()
        self._quick = ()

    # The op

    @property
    def op(self) -> Any:
        """The PyTorch op, declared on first use."""
        if self._op is None:
            with self._lock:
                if self._op is None:
                    from turbine.kernel.call.op_declaration import declare

                    self._op = declare(self, self._run_op)
        return self._op

    def register_backward(
        self, backward: Kernel | Function, *, setup_context: Function | None = None
    ) -> Any:
        """Give the kernel a gradient: another kernel, or a function that calls kernels.

        Values go by name. For a kernel with an input x and an output y, it takes what it needs of
        inputs, outputs and gradients of outputs: x, y and grad_y. A kernel's outputs are called
        grad_x; a function returns a gradient, or None, for each tensor among the inputs, in order,
        or a dict by their names. A function whose first argument is ctx is taken for what
        torch.library.register_autograd takes, and so is `setup_context`.

        >>> import torch, turbine.kernel as tk, turbine.kernel.lang as tkl
        >>> N, B = tkl.sym.N, tkl.sym.B
        >>> @tk.gen.kernel(N // B)
        ... def square(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]):
        ...     start = tkl.program_id(0) * B
        ...     tile = tkl.load(x, (start,), (B,))
        ...     tkl.store(y, (start,), tile * tile)
        >>> @square.register_backward
        ... @tk.gen.kernel(N // B)
        ... def square_backward(
        ...     x: tkl.InputBuffer[N, tkl.f32],
        ...     grad_y: tkl.InputBuffer[N, tkl.f32],
        ...     grad_x: tkl.OutputBuffer[N, tkl.f32],
        ... ):
        ...     start = tkl.program_id(0) * B
        ...     slope = 2 * tkl.load(x, (start,), (B,))
        ...     tkl.store(grad_x, (start,), slope * tkl.load(grad_y, (start,), (B,)))
        >>> x = torch.arange(3.0, requires_grad=True)
        >>> square(x).sum().backward()
        >>> x.grad
        tensor([0., 2., 4.])
        """
        written = [p.name for p in self.signature.buffers if p.usage == "inout"]
        if written:
            raise errors.KernelError(
                f"{self.__name__} writes to {written[0]}, and has no gradient",
                where=self.signature.place,
                hint="let it write to an OutputBuffer instead",
            )
        if isinstance(backward, Kernel):
            self.gradient = autograd.of_kernel(self.signature, backward.signature, backward)
        elif setup_context is not None or autograd.takes_context(backward):
            self.gradient = Gradient(backward, setup_context)
        else:
            self.gradient = autograd.of_function(self.signature, backward)
        self._with_sizes.clear()
        return backward

    # Inspection

    def text(self, stage: str, *args: Any) -> str:
        """What becomes of the kernel: "fx" is its graph, "typed" the graph with proofs of bounds,
        "plan" which ops are one loop, which have scratch buffers, block sizes and register tiles,
        "mlir" what is compiled, "asm" what the compiler made of it. For GPUs, "triton" is the
        source, "ttir" and "ptx" what Triton makes of it.

        Without arguments it is shown as it was called last, or if it was not, for any.
        """
        from turbine.kernel.inspection import printer

        return printer.text(self, stage, args)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _has_op(self) -> bool:
        """Declare the op, without being traced by Dynamo."""
        return self.op is not None

    def explain_recompiles(self) -> str:
        """Why code was compiled, each time."""
        reasons = enumerate([*self.launcher.reasons, *self.gpu.reasons], start=1)
        lines = [f"{number}: {reason}" for number, reason in reasons]
        return "\n".join(lines) or "nothing was compiled yet"


def _with_blocks(kernel: Kernel, blocks: dict[str, int]) -> Kernel:
    return kernel.using(**blocks)


# The number of resolved calls that are kept.
_MOST_KNOWN = 4096
# The number of fast paths that a call on a GPU tries.
_MOST_QUICK = 4


def _fact(value: Any) -> Any:
    """The properties of an argument that code may depend on."""
    return (value.dtype, value.shape) if isinstance(value, Tensor) else value is None


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _is_plain() -> bool:
    """Whether a call is in plain eager mode, without tracing, transforms or modes."""
    return not (
        _len_torch_function_stack()
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or _functorch.maybe_current_level() is not None
    )


def _are_plain(named: Mapping[str, Any]) -> bool:
    """Whether tensors are plain tensors of a CPU or a GPU that need no gradient."""
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return all(
        type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type in ("cpu", "cuda")
        for tensor in tensors
    )
