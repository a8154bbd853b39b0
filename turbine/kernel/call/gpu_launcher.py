"""Call a kernel on CUDA tensors: Triton code for the sizes and facts of a call, found or compiled.

Note [Calls like a recent one]
A call costs little more than its launch if it is like a recent one: PyTorch's guards compare the
tensors, pointers are compared in alignment, and sizes, strides and the grid are those of that call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from turbine import errors
from turbine.algebra import Symbol
from turbine.dtypes import Dtype
from turbine.dump import dump
from turbine.kernel.backends.triton import compilation, module
from turbine.kernel.backends.triton.compilation import ALIGNMENT
from turbine.kernel.backends.triton.emitter import SMALL
from turbine.kernel.backends.triton.module import Argument, Code, Layout
from turbine.kernel.call.launcher import Key, check_grid, facts_of, separate_inputs
from turbine.kernel.program import store_checks
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import ALARM, LOG_WORDS, MOST_ALARMS
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.trace.types import BufferType
from turbine.ops.code_cache import CodeCache

# The program of a call, its sizes, and the facts that its code depends on.
Call = tuple[KernelProgram, dict[Symbol, int], Key]
_MOST_LAUNCHES = 4096
_MOST_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class GpuKey:
    """The key of compiled code: the call's, how its tensors lie in memory, and the device."""

    call: Key
    layout: Layout
    aligned: frozenset[str]  # parameters, sizes and strides that are multiples of 16
    device: int


@dataclass(frozen=True)
class GpuVariant:
    """Compiled code, and the divisibility facts that it assumes."""

    program: KernelProgram
    divisors: Mapping[Symbol, int]
    code: Code
    compiled: Any

    def serves(self, sizes: Mapping[Symbol, int]) -> bool:
        """Whether the code is valid for a call with these sizes."""
        return all(sizes[s] % divisor == 0 for s, divisor in self.divisors.items())

    def passed_places(self, args: Mapping[str, Any]) -> list[tuple[int, str]]:
        """The places of arguments that a call passes, and their parameters."""
        arguments = enumerate(self.code.arguments)
        return [(n, a.of) for n, a in arguments if a.kind in ("buffer", "number") and a.of in args]

    def arguments_of_call(
        self, args: Mapping[str, Any], sizes: Mapping[Symbol, int]
    ) -> tuple[list[Any], list[NewTensor], int]:
        """The sizes and strides of a call, the tensors that it makes, the number of programs."""
        programs = prod(count.evaluate(sizes) for count in self.program.grid)
        buffers = {p.name: p.type for p in self.program.parameters}
        new_tensors: list[NewTensor] = []
        values: list[Any] = []
        for place, argument in enumerate(self.code.arguments):
            values.append(None)
            if argument.size is not None:
                values[place] = sizes[argument.size]
            elif argument.kind == "stride":
                values[place] = args[argument.of].stride(argument.axis)
            elif argument.kind != "number" and argument.of not in args:
                new_tensors.append(
                    _new_tensor(argument, place, buffers.get(argument.of), sizes, programs)
                )
        return values, new_tensors, programs

    def bind(self, args: Mapping[str, Any], sizes: Mapping[Symbol, int], device: int) -> Launch:
        """A launch for calls with these sizes and strides."""
        values, new_tensors, programs = self.arguments_of_call(args, sizes)
        return Launch(
            self, programs, dict(sizes), values, self.passed_places(args), new_tensors, device
        )

    def deliver(self, made: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> None:
        """Print what was logged, then raise for assertions that failed."""
        report, given = self.code.report, []
        if report.alarms:
            given.append(_first_record(made["alarms"], len(report.alarms)))
        if report.sites:
            given.append(made["log"].cpu())
        report.deliver(given, self.program.grid, sizes)


@dataclass(frozen=True)
class NewTensor:
    """A tensor that a launch allocates."""

    place: int
    kind: str  # "output", "temporary", "alarms" or "log"
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: float | None = None

    def allocate(self, device: torch.device) -> Tensor:
        """A new tensor."""
        if self.fill is not None:
            return torch.full(self.shape, self.fill, dtype=self.dtype, device=device)
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _new_tensor(
    argument: Argument,
    place: int,
    type: Any,
    sizes: Mapping[Symbol, int],
    programs: int,
) -> NewTensor:
    if argument.kind == "alarms":
        return NewTensor(place, "alarms", "", (MOST_ALARMS + 2 * programs,), torch.int64, 0)
    if argument.kind == "log":
        return NewTensor(place, "log", "", (LOG_WORDS,), torch.int64, 0)
    assert isinstance(type, BufferType)
    assert isinstance(type.dtype, Dtype)
    shape = tuple(size.evaluate(sizes) for size in type.shape)
    if type.usage == "temporary":
        return NewTensor(place, "temporary", argument.of, (programs, *shape), type.dtype.torch)
    return NewTensor(place, "output", argument.of, shape, type.dtype.torch, type.fill)


@dataclass
class Launch:
    """A variant with the sizes of a call: only pointers and numbers are missing."""

    variant: GpuVariant
    programs: int
    sizes: dict[Symbol, int]
    values: list[Any]
    tensors: list[tuple[int, str]]  # places of arguments, and the parameters they are
    new_tensors: list[NewTensor]
    device: int

    def __post_init__(self) -> None:
        self._device = torch.device("cuda", self.device)
        report = self.variant.code.report
        self._is_silent = not report.alarms and not report.sites
        compiled = self.variant.compiled
        with torch.cuda.device(self.device):
            self._run = compiled.run
        self._fixed = compiled.function, compiled.packed_metadata, None, None, None

    def __call__(self, args: Mapping[str, Any]) -> list[Tensor]:
        """Launch on the current stream; return the outputs."""
        values = self.values.copy()
        for place, name in self.tensors:
            values[place] = args[name]
        return self.launch(values)

    def launch(self, values: list[Any]) -> list[Tensor]:
        """Launch with these arguments; what the launch makes is filled in."""
        tensors = [one.allocate(self._device) for one in self.new_tensors]
        for one, tensor in zip(self.new_tensors, tensors, strict=True):
            values[one.place] = tensor
        self.start(values)
        if not self._is_silent and not torch.cuda.is_current_stream_capturing():
            by_kind = {one.kind: t for one, t in zip(self.new_tensors, tensors, strict=True)}
            self.variant.deliver(by_kind, self.sizes)
        pairs = zip(self.new_tensors, tensors, strict=True)
        return [tensor for one, tensor in pairs if one.kind == "output"]

    def start(self, values: Sequence[Any]) -> None:
        """Launch with all arguments, on the current stream of the device."""
        if not self.programs:
            return
        if torch._C._cuda_getDevice() == self.device:
            self._start(values)
        else:
            with torch.cuda.device(self.device):
                self._start(values)

    def _start(self, values: Sequence[Any]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        self._run(self.programs, 1, 1, stream, *self._fixed, *map(_pointer, values))


def _pointer(value: Any) -> Any:
    return value.data_ptr() if isinstance(value, Tensor) else value


def _first_record(words: Tensor, alarms: int) -> Tensor:
    """The words of alarms, then the record of the first program that failed."""
    heads = words[:MOST_ALARMS]
    if not bool(heads[:alarms].any()):
        return heads.cpu()
    heads = heads.cpu()
    number = ALARM - int(heads.max())
    start = MOST_ALARMS + 2 * number
    place, value = words[start : start + 2].tolist()
    return torch.cat([heads, torch.tensor([place, number, value])])


@dataclass
class QuickLaunch:
    """The fast path of a call: see Note [Calls like a recent one]."""

    launch: Launch
    names: Sequence[str]
    # No tensor twice, which the guards refuse. They are not kept: that would keep their memory.
    args: InitVar[Sequence[Any]]

    def __post_init__(self, args: Sequence[Any]) -> None:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._matches = guards.check
        self._all_tensors = len(tensors) == len(args)
        self._kinds = [type(arg) for arg in args]
        self._misaligned = [arg.data_ptr() % ALIGNMENT != 0 for arg in tensors]
        order = {name: place for place, name in enumerate(self.names)}
        self._places = [(place, order[name]) for place, name in self.launch.tensors]
        outputs = [one for one in self.launch.new_tensors if one.kind == "output"]
        self._is_single = len(outputs) == 1

    def call(self, args: tuple[Any, ...]) -> Any:
        """The results, or None if the call has to take the general path."""
        if self._all_tensors:
            tensors: Sequence[Tensor] = args
        else:
            if [type(arg) for arg in args] != self._kinds:
                return None
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if not self._matches(*tensors):
            return None
        if [tensor.data_ptr() % ALIGNMENT != 0 for tensor in tensors] != self._misaligned:
            return None
        values = self.launch.values.copy()
        for place, source in self._places:
            values[place] = args[source]
        outputs = self.launch.launch(values)
        return outputs[0] if self._is_single else tuple(outputs)


@dataclass
class GpuLauncher:
    """The compiled variants of a kernel on GPUs."""

    variants: CodeCache[GpuVariant] = field(default_factory=CodeCache)
    reasons: list[str] = field(default_factory=list)  # why each was compiled, in order
    # Grids that were checked for races between stores.
    verified: set[tuple[Key, tuple[bool, ...]]] = field(default_factory=set)
    # Launches of calls, by the properties of their arguments.
    launches: dict[tuple[Any, ...], tuple[Call, Launch]] = field(default_factory=dict)

    def run(
        self, named: Mapping[str, Any], device: torch.device, resolve: Callable[[], Call]
    ) -> tuple[Call, Launch, list[Tensor]]:
        """Run a call; returns it as `resolve` has it, the launch, and the outputs."""
        given = {name: _plain(value) for name, value in named.items() if value is not None}
        call, launch = self.bind(given, device, resolve)
        written = [p.name for p in call[0].of_usage("inout") if p.name in given]
        if not written:
            return call, launch, launch(given)
        outputs = launch(separate_inputs(call[0], given))
        for name in written:
            if given[name].data_ptr() != named[name].data_ptr():
                named[name].copy_(given[name])
        return call, launch, outputs

    def bind(
        self, given: Mapping[str, Any], device: torch.device, resolve: Callable[[], Call]
    ) -> tuple[Call, Launch]:
        """The call of arguments like these, and its launch, compiled if needed."""
        facts = (device.index, *given, *map(_fact, given.values()))
        if facts not in self.launches:
            call = resolve()
            variant = self.variant(call, given, device)
            if len(self.launches) >= _MOST_LAUNCHES:
                self.launches.clear()
            self.launches[facts] = call, variant.bind(given, call[1], _index(device))
        return self.launches[facts]

    def variant(self, call: Call, args: Mapping[str, Any], device: torch.device) -> GpuVariant:
        """The code for a call, compiled if there is none."""
        program, sizes, key = call
        counts = check_grid(program, sizes)
        if prod(counts) > _MOST_PROGRAMS:
            raise errors.KernelError(
                f"{program.name}: the grid has {prod(counts)} programs, a GPU runs at most "
                f"{_MOST_PROGRAMS}",
                where=program.place,
                hint="use larger blocks",
            )
        several = key, tuple(count > 1 for count in counts)
        if several not in self.verified:
            store_checks.check_stores(program, sizes)
            self.verified.add(several)
        facts = facts_of(program, sizes, dict(key.static))
        layout = layout_of(program, facts, sizes, args)
        whole = GpuKey(key, layout, aligned_names(program, sizes, args), _index(device))
        make = partial(self._compile, whole, program, facts)
        return self.variants.get(whole, sizes, make)

    def _compile(self, key: GpuKey, program: KernelProgram, facts: Facts) -> GpuVariant:
        shared = compilation.shared_bytes(key.device)
        code = module.write(program, facts, key.layout, shared, key.call.options)
        dump(program.name, {"kernel.py": lambda: code.text})
        with torch.cuda.device(key.device):
            target = compilation.current_target()
            aligned = [argument for argument in code.arguments if is_aligned(argument, key.aligned)]
            compiled = compilation.compile_code(code, target, aligned)
        kind = "a call of another kind" if len(self.variants) else "the first call"
        self.reasons.append(f"{kind}, {key.call} on cuda:{key.device}")
        return GpuVariant(program, {s: facts.divisors[s] for s in facts.used}, code, compiled)


def layout_of(
    program: KernelProgram,
    facts: Facts,
    sizes: Mapping[Symbol, int],
    args: Mapping[str, Any],
) -> Layout:
    """How the tensors of a call lie in memory, as far as code depends on it."""
    strided = tuple(
        (name, tuple(s if s in (0, 1) else None for s in value.stride()))
        for name, value in args.items()
        if isinstance(value, Tensor) and not value.is_contiguous()
    )
    programs = prod(count.evaluate(sizes) for count in program.grid)
    spans = [module.largest_offset(program, sizes)]
    for parameter in program.parameters:
        if isinstance(parameter.type, BufferType):
            count = prod(size.evaluate(sizes) for size in parameter.type.shape)
            spans.append(count * (programs if parameter.type.usage == "temporary" else 1))
    spans += [_span(value) for value in args.values() if isinstance(value, Tensor)]
    is_wide = max(spans) >= module.LARGE or max(sizes.values(), default=0) >= SMALL
    return Layout(module.padded_sizes(program, facts, sizes), is_wide, strided)


def _span(tensor: Tensor) -> int:
    rows = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in rows)


def aligned_names(
    program: KernelProgram, sizes: Mapping[Symbol, int], args: Mapping[str, Any]
) -> frozenset[str]:
    """The tensors, sizes and strides that are multiples of 16, by names."""
    found = {s.name for s in program.size_symbols if sizes[s] and sizes[s] % ALIGNMENT == 0}
    for name, value in args.items():
        if isinstance(value, Tensor):
            found |= {f"*{name}"} if value.data_ptr() % ALIGNMENT == 0 else set()
            strides = enumerate(value.stride())
            found |= {f"{name}:{axis}" for axis, s in strides if s % ALIGNMENT == 0}
    return frozenset(found)


def is_aligned(argument: Argument, aligned: frozenset[str]) -> bool:
    """Whether an argument is a multiple of 16; tensors that a launch makes are."""
    if argument.kind == "size":
        return str(argument.size) in aligned
    if argument.kind == "stride":
        return f"{argument.of}:{argument.axis}" in aligned
    if argument.kind == "buffer":
        return f"*{argument.of}" in aligned or argument.is_made
    return argument.kind in ("alarms", "log")


def _fact(value: Any) -> Any:
    """The properties of an argument that a launch depends on."""
    if not isinstance(value, Tensor):
        return type(value)
    is_aligned = value.data_ptr() % ALIGNMENT == 0
    return value.dtype, value.shape, value.stride(), is_aligned


def _plain(value: Any) -> Any:
    """A tensor without a lazy sign."""
    return value.detach().resolve_neg() if isinstance(value, Tensor) else value


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
