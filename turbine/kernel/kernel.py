"""A kernel: a function that is traced, and called like a PyTorch op."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch, _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import forward_ad

from turbine import config, errors
from turbine.kernel import autograd, printer
from turbine.kernel import program as programs
from turbine.kernel import signature as signatures
from turbine.kernel.algebra import Symbol
from turbine.kernel.autograd import Gradient
from turbine.kernel.backends import interpret
from turbine.kernel.blocks import Block, choose_blocks, sizes_of_products
from turbine.kernel.launcher import Key, Launcher, Variant, check_grid, separate_inputs
from turbine.kernel.op import describe
from turbine.kernel.program import Program
from turbine.kernel.signature import Signature
from turbine.kernel.size_inference import bind_sizes
from turbine.kernel.tracer import Buffer, Tile, symbol_name
from turbine.kernel.types import BufferType, ScalarType, dtype_name, fits
from turbine.runtime.quick_call import QuickCall, is_shareable

Function = Callable[..., Any]
# The program of a call, every size of it, and what its code depends on.
Call = tuple[Program, dict[Symbol, int], Key]


class Kernel:
    """A kernel of TK. Call it with tensors; its outputs are returned.

    `blocks` gives sizes of tiles, by symbol or by name; others are chosen. `specialize` names sizes
    that become part of the code: calls with other values compile again.
    """

    def __init__(
        self,
        function: Function,
        grid: Sequence[Any],
        blocks: Mapping[Any, int] | None = None,
        specialize: Collection[Any] = (),
    ) -> None:
        self.function = function
        self.grid = tuple(grid)
        self.signature: Signature = signatures.parse(function)
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__signature__ = self.signature.of_call()
        self.blocks = {symbol_name(symbol): value for symbol, value in (blocks or {}).items()}
        _check_blocks(self.signature, self.blocks)
        self.specialized = frozenset(map(symbol_name, specialize))
        _check_specialized(self.signature, self.specialized)
        self.launcher = Launcher(self.signature)
        # Calls by their tensors' types and sizes, so that it is asked once what they mean.
        self._known: dict[tuple[Any, ...], tuple[Call, Variant]] = {}
        self._programs: dict[tuple[tuple[str, str], ...], Program] = {}
        self._quick: tuple[QuickCall, int] | None = None
        self._op: Any = None
        self.gradient: Gradient | None = None
        self._origin: tuple[Kernel, dict[str, int]] | None = None
        self.last_call: Call | None = None
        self._lock = threading.RLock()

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
            named = self.named(args, keywords)
            assert self._has_op()
            return self._op.op(*[named[p.name] for p in self.signature.passed])
        if not keywords and _is_plain():
            result = self.repeated(args)
            if result is not None:
                return result
        named = self.named(args, keywords)
        if _is_plain() and _are_plain(named):
            return self.run(named, args if not keywords else None)
        return self.op(*[named[p.name] for p in self.signature.passed])

    def named(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, in the order of the kernel's, with defaults."""
        passed = self.signature.passed
        names = [p.name for p in passed]
        wrong = [name for name in keywords if name not in names]
        if wrong:
            what = errors.unknown(f"argument of {self.__name__}", wrong[0], names)
            hint = "outputs are not passed: the call returns them"
            raise errors.KernelError(what, where=self.signature.place, hint=hint)
        if len(args) > len(names):
            raise errors.KernelError(
                f"{self.__name__} takes {len(names)} arguments, {', '.join(names)}, and was given "
                f"{len(args)}",
                where=self.signature.place,
                hint="outputs are not passed: the call returns them",
            )
        given = {**dict(zip(names, args, strict=False)), **keywords}
        place = self.signature.place
        return {p.name: _check_argument(self.__name__, p, given, place) for p in passed}

    def run(self, named: Mapping[str, Any], args: tuple[Any, ...] | None = None) -> Any:
        """Run the kernel on tensors that are no more than that; `args` may be remembered."""
        if config.is_interpreting():
            return self._interpreted(named)
        facts = tuple(_fact(value) for value in named.values())
        known = self._known.get(facts)
        if known is None:
            call = self.bound(named)
            program, sizes, key = call
            known = call, self.launcher.variant(key, program, sizes)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[facts] = known
        self.last_call, variant = known
        outputs = variant.run(named, self.last_call[1])
        if args is not None and not variant.written:
            self._remember(variant, args, self.last_call[1])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def repeated(self, args: tuple[Any, ...]) -> Any:
        """The result of a call on tensors that is like the one before; None if it is not."""
        quick = self._quick
        if quick is None or len(args) != quick[1] or config.is_interpreting():
            return None
        return quick[0].call(args)

    def _remember(
        self, variant: Variant, args: tuple[Any, ...], sizes: Mapping[Symbol, int]
    ) -> None:
        """Take the short way for calls like this one, if there is one."""
        slots = [*variant.call.inputs, *variant.call.results]
        plain = all(slot.dtype is not None and is_shareable(slot.dtype) for slot in slots)
        single = variant.outputs == 1 and not variant.report.sites
        # Numbers are not passed as they are, be they left out or tensors without axes.
        buffers = all(isinstance(p.type, BufferType) for p in variant.passed)
        if plain and single and buffers and all(isinstance(a, Tensor) for a in args):
            inspect = variant.inspect(sizes) if variant.report.alarms else None
            quick = QuickCall(variant.call.entry, (0, 0), is_fresh=True, inspect=inspect)
            quick.remember(args)
            self._quick = quick, len(args)

    def interpret(self, *args: Any, **keywords: Any) -> Any:
        """Run the kernel in the interpreter: slowly, and with every check."""
        return self._interpreted(self.named(args, keywords))

    def _interpreted(self, named: Mapping[str, Any]) -> Any:
        program, sizes, _ = self.last_call = self.bound(named)
        check_grid(program, sizes)
        outputs = list(interpret.run(program, sizes, separate_inputs(program, named)).values())
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    # What a call means for the code

    def bound(self, named: Mapping[str, Any]) -> Call:
        """The program of a call, every size of it, and what its code depends on."""
        program = self.program(named)
        blocks = self.own_sizes(program)
        sizes = bind_sizes(self.signature, named, blocks)
        signatures.check_open(self.signature, program.size_symbols, sizes)
        fixed = {*blocks, *sizes_of_products(program)}
        static = {s: v for s, v in sizes.items() if s in fixed or s.name in self.specialized}
        key = Key(self._types(named), tuple(sorted((s.name, value) for s, value in static.items())))
        return program, sizes, key

    def _types(self, named: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (p.name, str(named[p.name].dtype) if isinstance(p.type, BufferType) else "number")
            for p in self.signature.passed
            if named[p.name] is not None
        )

    def program(self, named: Mapping[str, Any]) -> Program:
        """The kernel traced for the arguments that are there and their types; once for each."""
        types = self._types(named)
        if types not in self._programs:
            with self._lock:
                present = signatures.resolve_dtypes(self.signature, named)
                traced = programs.trace(self.signature, present, self.grid, self.function)
                _check_used(self.signature, self.blocks, traced)
                self._programs[types] = traced
        return self._programs[types]

    def own_sizes(self, program: Program) -> dict[Symbol, int]:
        """The sizes that are the kernel's own: given ones, and ones that are chosen."""
        given = {Symbol(name): value for name, value in self.blocks.items()}
        chosen = {s: block.size for s, block in self.chosen_blocks(program).items()}
        return {**chosen, **given}

    def chosen_blocks(self, program: Program) -> dict[Symbol, Block]:
        """The sizes of tiles that the user left open, and why they are what they are."""
        chosen = choose_blocks(program, self.signature.size_symbols)
        return {s: block for s, block in chosen.items() if s.name not in self.blocks}

    def using(self, **blocks: int) -> Kernel:
        """The same kernel with other sizes of tiles: `gemm.using(BM=32, BN=128)`."""
        for program in self._programs.values():
            _check_used(self.signature, blocks, program)
        made = Kernel(self.function, self.grid, {**self.blocks, **blocks}, self.specialized)
        made.gradient, made._origin = self.gradient, (self, blocks)
        return made

    # The op

    @property
    def op(self) -> Any:
        """The PyTorch op, declared when it is needed first."""
        if self._op is None:
            with self._lock:
                if self._op is None:
                    from turbine.kernel.op_declaration import declare

                    self._op = declare(self)
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
            self.gradient = autograd.of_kernel(self.signature, backward)
        elif setup_context is not None or autograd.takes_context(backward):
            self.gradient = Gradient(backward, setup_context)
        else:
            self.gradient = autograd.of_function(self.signature, backward)
        return backward

    # Looking into it

    def text(self, stage: str, *args: Any) -> str:
        """What becomes of the kernel: "fx" is its graph, "typed" the graph with proofs of bounds,
        "plan" which ops are one loop, which have scratch buffers, block sizes and register tiles,
        "mlir" what is compiled, "asm" what the compiler made of it.

        Without arguments it is shown as it was called last, or if it was not, for any.
        """
        return printer.text(self, stage, args)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _has_op(self) -> bool:
        """See to it that the op is declared; Dynamo does not look at how."""
        return self.op is not None

    def explain_recompiles(self) -> str:
        """Why code was compiled, each time."""
        reasons = enumerate(self.launcher.reasons, start=1)
        lines = [f"{number}: {reason}" for number, reason in reasons]
        return "\n".join(lines) or "nothing was compiled yet"


def _with_blocks(kernel: Kernel, blocks: dict[str, int]) -> Kernel:
    return kernel.using(**blocks)


def _check_blocks(signature: Signature, blocks: Mapping[str, int]) -> None:
    for name, value in blocks.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise errors.KernelError(
                f"{signature.kernel}: the block size {name} is {value!r}",
                where=signature.place,
                hint="a block has a positive number of elements",
            )


def _check_used(signature: Signature, blocks: Mapping[str, int], program: Program) -> None:
    """Complain about sizes for what a kernel does not name."""
    names = {symbol.name for symbol in program.size_symbols}
    for name in blocks:
        if name not in names:
            raise errors.KernelError(
                errors.unknown(f"size of kernel {signature.kernel}", name, names),
                where=signature.place,
                hint="blocks= and using() give numbers to the symbols of a kernel",
            )


def _check_specialized(signature: Signature, names: Collection[str]) -> None:
    told = {symbol.name for symbol in signature.size_symbols}
    for name in names:
        if name not in told:
            raise errors.KernelError(
                errors.unknown(f"size of the tensors of kernel {signature.kernel}", name, told),
                where=signature.place,
                hint="specialize= names symbols in the types of arguments",
            )


# Calls of different sizes that are kept in mind.
_MOST_KNOWN = 4096


def _fact(value: Any) -> Any:
    """What of an argument the code may depend on."""
    return (value.dtype, value.shape) if isinstance(value, Tensor) else value is None


def _is_plain() -> bool:
    """Whether no one but PyTorch's eager mode is to see a call."""
    return not (
        _len_torch_function_stack()
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or _functorch.maybe_current_level() is not None
    )


def _are_plain(named: Mapping[str, Any]) -> bool:
    """Whether tensors are just that, on the CPU, and want no gradient."""
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return all(
        type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        for tensor in tensors
    )


def _check_argument(
    kernel: str, parameter: Any, given: Mapping[str, Any], place: str | None
) -> Any:
    """An argument of a call, if it is one that the parameter takes."""
    value = given.get(parameter.name, parameter.default)
    if value is parameter.default and value is not None and parameter.name not in given:
        if value is _EMPTY and not parameter.is_optional:
            raise errors.KernelError(
                f"{kernel} was called without {parameter}", where=place, hint="pass it"
            )
        value = None if value is _EMPTY else value
    if value is None:
        if parameter.is_optional:
            return None
        raise errors.KernelError(f"{kernel}: {parameter} is None", where=place, hint="pass it")
    if isinstance(parameter.type, BufferType):
        if isinstance(value, Tensor):
            return value
        inside = isinstance(value, (Tile, Buffer))
        raise errors.KernelError(
            f"{kernel}: {parameter} was given {describe(value)}",
            where=place,
            hint="a kernel does not call another, but functions that are not kernels"
            if inside
            else "pass a torch.Tensor",
        )
    return _number(kernel, parameter, value, place)


_EMPTY = inspect.Parameter.empty


def _number(kernel: str, parameter: Any, value: Any, place: str | None) -> Any:
    assert isinstance(parameter.type, ScalarType)
    kind = parameter.type.dtype.kind
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    allowed: dict[str, tuple[type, ...]] = {
        "float": (int, float, torch.SymInt, torch.SymFloat),
        "bool": (bool, torch.SymBool),
    }
    known = value if isinstance(value, (int, float)) else 0
    if isinstance(value, allowed.get(kind, (int, torch.SymInt))) and fits(
        known, parameter.type.dtype
    ):
        return value
    raise errors.KernelError(
        f"{kernel}: {parameter} was given {value!r}",
        where=place,
        hint=f"pass a number that is {dtype_name(parameter.type.dtype)}",
    )
