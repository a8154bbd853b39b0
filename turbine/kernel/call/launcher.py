"""Call a kernel on CPU tensors: code for the sizes and facts of a call, found or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from turbine import dtypes, errors
from turbine.algebra import Quotient, Symbol
from turbine.compiler import host, pipeline
from turbine.dtypes import Dtype
from turbine.dump import dump
from turbine.kernel.backends.iree import module
from turbine.kernel.backends.iree.launch import scalar_element
from turbine.kernel.backends.iree.module import Code
from turbine.kernel.backends.triton.schedule import Options
from turbine.kernel.program import store_checks
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.messages import MessageTable
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import KernelSignature, Parameter
from turbine.kernel.program.symbolic_sizes import Sizes, divides
from turbine.kernel.program.work import work_of
from turbine.kernel.trace.types import ScalarType, tensor_of
from turbine.ops import aliasing
from turbine.ops.code_cache import CodeCache
from turbine.runtime import device, run_trace
from turbine.runtime.tensor_call import TensorCall
from turbine.signature import Slot

_ENTRY = "main"
# Programs along an axis of the grid.
_MOST_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class Key:
    """The key of a variant: arguments that are passed, their types, static sizes, options."""

    present: tuple[tuple[str, str], ...]
    static: tuple[tuple[str, int], ...]
    options: Options = Options()
    source: str = field(default="given", compare=False)  # of block sizes and options

    def __str__(self) -> str:
        types = ", ".join(f"{name}: {dtype}" for name, dtype in self.present)
        numbers = [*self.static, *self.options.set_ones.items()]
        listed = ", ".join(f"{name}={value}" for name, value in numbers)
        return f"({types}) with {listed or 'no sizes'}, {self.source}"


@dataclass(frozen=True)
class Variant:
    """Compiled code, and the divisibility facts that it assumes."""

    program: KernelProgram
    divisors: Mapping[Symbol, int]
    call: TensorCall
    report: MessageTable

    def serves(self, sizes: Mapping[Symbol, int]) -> bool:
        """Whether the code is valid for a call with these sizes."""
        return all(sizes[s] % divisor == 0 for s, divisor in self.divisors.items())

    @cached_property
    def passed(self) -> list[Parameter]:
        """The parameters of the code, in order."""
        return [p for p in self.program.parameters if p.is_passed]

    @cached_property
    def outputs(self) -> int:
        """The number of tensors that the code allocates."""
        return len(self.program.of_usage("output"))

    @cached_property
    def written(self) -> list[str]:
        """The arguments that the code mutates."""
        return [p.name for p in self.program.of_usage("inout")]

    def run(self, args: Mapping[str, Any], sizes: Mapping[Symbol, int]) -> list[Tensor]:
        """Call the code, which writes in-out arguments; deliver messages and return the outputs."""
        given = separate_inputs(self.program, args) if self.written else args
        results = self.call([_to_tensor(p, given[p.name]) for p in self.passed])
        count = self.outputs + len(self.written)
        if results[count:]:
            self.report.deliver(results[count:], self.program.grid, sizes)
        return results[: self.outputs]

    def inspect(self, sizes: Mapping[Symbol, int]) -> Callable[[Tensor], None]:
        """A function that raises for assertions that failed in a call with these sizes."""
        return lambda words: self.report.deliver([words], self.program.grid, sizes)


@dataclass
class KernelLauncher:
    """The compiled variants of a kernel."""

    signature: KernelSignature
    variants: CodeCache[Variant] = field(default_factory=CodeCache)
    reasons: list[str] = field(default_factory=list)  # why each was compiled, in order
    # Grids that were checked for races between stores.
    verified: set[tuple[Key, tuple[bool, ...]]] = field(default_factory=set)

    def variant(self, key: Key, program: KernelProgram, sizes: Mapping[Symbol, int]) -> Variant:
        """The code for a call, compiled if there is none."""
        counts = check_grid(program, sizes)
        several = key, tuple(count > 1 for count in counts)
        if several not in self.verified:
            store_checks.check_stores(program, sizes)
            self.verified.add(several)
        return self.variants.get(key, sizes, partial(self._compile, key, program, sizes))

    def _compile(self, key: Key, program: KernelProgram, sizes: Mapping[Symbol, int]) -> Variant:
        reason = self._reason(key, sizes)
        facts = facts_of(program, sizes, dict(key.static))
        code = write_main(program, facts)
        dump(program.name, {"kernel.mlir": lambda: code.text})
        divisors = {s: facts.divisors[s] for s in facts.used}
        call = load_code(program, code, work_of(program, sizes).load)
        self.reasons.append(reason)
        return Variant(program, divisors, call, code.report)

    def _reason(self, key: Key, sizes: Mapping[Symbol, int]) -> str:
        """Why code is compiled."""
        alike = self.variants.of_key(key)
        if not self.variants:
            return f"the first call, {key}"
        if not alike:
            return f"a call of another kind, {key}"
        broken = {
            f"{s} % {d} == 0 does not hold for {s} = {sizes[s]}"
            for variant in alike
            for s, d in variant.divisors.items()
            if sizes[s] % d
        }
        return f"facts that the code used changed: {', '.join(sorted(broken))}"


def separate_inputs(program: KernelProgram, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call, with copies of the inputs that share memory with an in-out buffer.

    An input is read as it was before the call, wherever the kernel runs. In-out buffers that share
    memory, or have several elements in one place, are refused: what they hold after the call would
    depend on the order of its stores.
    """
    if aliasing.are_separate(value for value in args.values() if isinstance(value, Tensor)):
        return args
    written = {p.name: args[p.name] for p in program.of_usage("inout")}
    for name, tensor in written.items():
        if aliasing.overlaps_itself(tensor):
            raise errors.KernelError(
                f"{program.name}: several elements of {name}, which is in-out, share memory: "
                f"shape {list(tensor.shape)}, strides {list(tensor.stride())}",
                where=program.place,
                hint=f"pass a tensor with memory for each element: {name}.clone()",
            )
    for one, other in aliasing.shared_pairs(written):
        raise errors.KernelError(
            f"{program.name}: {one} and {other} are in-out and share memory",
            where=program.place,
            hint=f"pass a copy of one of them: {other}.clone()",
        )
    separate = dict(args)
    for parameter in program.of_usage("input"):
        value = args[parameter.name]
        if any(aliasing.share_memory(value, tensor) for tensor in written.values()):
            separate[parameter.name] = value.clone()
    return separate


def facts_of(program: KernelProgram, sizes: Sizes, static: Mapping[str, int]) -> Facts:
    """The facts of a call: static sizes, and which sizes are multiples of block sizes."""
    known = {Symbol(name): value for name, value in static.items()}
    divisors: dict[Symbol, int] = {}
    for symbol, size in sizes.items():
        # Everything divides 0: code specialized for that would not serve other calls.
        if symbol in known or (isinstance(size, int) and size == 0):
            continue
        blocks = {known[s] for s in _divisors(program, symbol) if s in known}
        fitting = [block for block in blocks if block > 1 and divides(block, size)]
        if fitting:
            divisors[symbol] = max(fitting)
    return Facts(known, divisors, program.ranges)


def _divisors(program: KernelProgram, symbol: Symbol) -> set[Symbol]:
    """The symbols by which a size is divided, in the grid and in limits of loops."""
    counts = [*program.grid, *(r.last for r in program.ranges.values())]
    found: set[Symbol] = set()
    for count in counts:
        for monomial, _ in count.terms:
            for atom in monomial:
                if isinstance(atom, Quotient) and symbol in atom.above.symbols:
                    found |= atom.below.symbols
    return found


def check_grid(program: KernelProgram, sizes: Mapping[Symbol, int]) -> list[int]:
    """The number of programs along each axis, if it is known."""
    counts = [count.evaluate(sizes) for count in program.grid]
    for axis, (count, number) in enumerate(zip(program.grid, counts, strict=True)):
        if not 0 <= number <= _MOST_PROGRAMS:
            raise errors.KernelError(
                f"{program.name}: the grid has {number} programs along axis {axis}, which is "
                f"{count}; there are 0 to {_MOST_PROGRAMS}",
                where=program.place,
                hint="use larger blocks" if number > 0 else "pass larger tensors",
            )
    return counts


def write_main(program: KernelProgram, facts: Facts) -> Code:
    """The kernel as a module of its own, for the configured target: what calls, text and
    reports show and run."""
    return module.write(program, facts, _ENTRY, host.default_target(), public=True)


def load_code(program: KernelProgram, code: Code, load: float) -> TensorCall:
    """Load the function of a module, to be called on tensors."""
    target = host.default_target()
    made = pipeline.compile_ir(code.text.encode(), target, name=f"kernel {program.name}")
    label = f"kernel.{program.name}"
    run_trace.kernel(label, lambda: code.text, made.data)
    driver = device.driver_for(target, load / 1e6)
    passed = [p for p in program.parameters if p.is_passed]
    inputs = [_slot(p) for p in passed]
    outputs, written = program.of_usage("output"), program.of_usage("inout")
    in_place = {len(outputs) + k: passed.index(p) for k, p in enumerate(written)}
    results = [_slot(p) for p in (*outputs, *written)]
    reported = bool(code.report.alarms) + bool(code.report.sites)
    results += [Slot(dtypes.from_torch_name("int64"))] * reported
    return TensorCall.load(
        made.data, driver, _ENTRY, inputs, results, in_place=in_place, label=label
    )


def _slot(parameter: Parameter) -> Slot:
    if isinstance(parameter.type, ScalarType):
        return Slot(scalar_dtype(parameter.type))
    assert isinstance(parameter.type.dtype, Dtype)
    return Slot(parameter.type.dtype)


def scalar_dtype(type: ScalarType) -> Dtype:
    """The dtype of the 0-d tensor in which a number is passed."""
    return dtypes.from_spelling(scalar_element(type.dtype))


def _to_tensor(parameter: Parameter, value: Any) -> Tensor:
    if isinstance(parameter.type, ScalarType):
        return number_tensor(parameter.type, value)
    assert isinstance(value, Tensor)
    return value.detach()


def number_tensor(type: ScalarType, value: Any) -> Tensor:
    """A number as a 0-d tensor; small floats are rounded in the code."""
    passed = scalar_dtype(type)
    if type.dtype.kind == "float":
        return tensor_of(value, passed)
    return tensor_of(value, type.dtype).view(passed.torch)


def convert_arguments(program: KernelProgram, args: Mapping[str, Any]) -> list[Tensor]:
    """The arguments of a call in the form of its code."""
    return [_to_tensor(p, args[p.name]) for p in program.parameters if p.is_passed]
