"""Declare a kernel as a PyTorch op: its types in; a schema, a shape rule and IR out.

The op keeps its kernel: programs that were traced know the op only, and outlive the kernel's name.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from turbine import errors
from turbine.algebra import Symbol
from turbine.capture.declared_ops import OPERATIONS, PROGRAMS, SPEAKING
from turbine.capture.sizes import hint
from turbine.dtypes import SCALARS, Dtype
from turbine.kernel.backends.iree import module
from turbine.kernel.backends.triton import embedding
from turbine.kernel.backends.triton.schedule import Options
from turbine.kernel.call import machines
from turbine.kernel.call.definition import Definition
from turbine.kernel.call.launcher import (
    check_grid,
    facts_of,
    number_tensor,
    scalar_dtype,
)
from turbine.kernel.program import signature as signatures
from turbine.kernel.program import symbolic_sizes
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import KernelSignature, Parameter
from turbine.kernel.program.symbolic_sizes import Size
from turbine.kernel.program.work import work_of
from turbine.kernel.trace.types import BufferType, ScalarType
from turbine.mlir import constants, flow, scalars
from turbine.mlir.ir import Type, Value
from turbine.ops import custom_op, gradients
from turbine.ops.declared_op import DeclaredOp
from turbine.ops.ir_builder import Builder
from turbine.target import Target

NAMESPACE = "tk"
# Names that a namespace of torch.ops has itself.
_RESERVED = {"name"}
# Names of number types in schemas.
_NUMBERS = {"float": "float", "bool": "bool", "int": "SymInt", "uint": "SymInt"}


def declare(kernel: Definition, run: Callable[..., Any]) -> DeclaredOp:
    """Declare the op of a kernel in the namespace `tk`; a number makes its name unique."""
    name = _free_name(kernel.__name__)
    rules = _Rules(kernel, name)
    op = custom_op(schema_text(kernel.signature, name))(rules.shapes)
    op.register_emission(rules.emit, keeps_operands=not rules.written)
    op.register_eager(run)
    OPERATIONS[op.core.schema.qualified] = rules.operations
    PROGRAMS[op.core.schema.qualified] = rules.program
    op.core.register_autograd(rules.backward, setup_context=rules.setup_context)
    return op


def schema_text(signature: KernelSignature, name: str) -> str:
    """The schema of the op."""
    passed = signature.passed
    # Parameters with defaults have to be last.
    required = [place for place, p in enumerate(passed, start=1) if _default(p) is None]
    first_default = required[-1] if required else 0
    arguments = [
        f"{_kind(p, place)} {p.name}" + (_default(p) or "") * (place >= first_default)
        for place, p in enumerate(passed)
    ]
    results = ", ".join("Tensor" for p in signature.buffers if p.usage == "output")
    return f"{NAMESPACE}::{name}({', '.join(arguments)}) -> ({results})"


def _kind(parameter: Parameter, place: int) -> str:
    optional = "?" * parameter.is_optional
    if isinstance(parameter.type, ScalarType):
        return _NUMBERS[parameter.type.dtype.kind] + optional
    written = f"(a{place}!)" * (parameter.type.usage == "inout")
    return f"Tensor{written}{optional}"


def _default(parameter: Parameter) -> str | None:
    if parameter.default is not inspect.Parameter.empty:
        return f"={parameter.default!r}"
    return "=None" if parameter.is_optional else None


def _free_name(wanted: str) -> str:
    """A unique name."""
    base = re.sub(r"\W", "_", wanted, flags=re.ASCII)
    name, count = base, 0
    while name in _RESERVED or _exists(name) or _exists(f"{name}_functional"):
        count += 1
        name = f"{base}_{count}"
    return name


def _exists(name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(f"{NAMESPACE}::{name}"))


@dataclass(frozen=True)
class _Rules:
    """The registrations of a kernel's op: meta, autograd, FLOP count and emission."""

    kernel: Definition
    name: str

    @cached_property
    def written(self) -> list[Parameter]:
        """The arguments that a call mutates."""
        return [p for p in self.kernel.signature.buffers if p.usage == "inout"]

    def shapes(self, *args: Any) -> Any:
        """The fake outputs for fake arguments."""
        program, sizes = self._resolve_call(args)
        if program.is_printing:
            SPEAKING.update({f"{NAMESPACE}::{self.name}", f"{NAMESPACE}::{self.name}_functional"})
        tensors = [a for a in args if isinstance(a, Tensor)]
        device = tensors[0].device if tensors else "cpu"
        outputs = []
        for parameter in program.of_usage("output"):
            type = parameter.type
            assert isinstance(type, BufferType)
            assert isinstance(type.dtype, Dtype)
            shape = [symbolic_sizes.evaluate(size, sizes) for size in type.shape]
            outputs.append(torch.empty(shape, dtype=type.dtype.torch, device=device))
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def operations(self, *args: Any) -> float:
        """About how many operations of a matmul take as long as a call on fake tensors."""
        return work_of(*self.program(*args)).load

    def program(self, *args: Any) -> tuple[KernelProgram, dict[Symbol, int]]:
        """The program of a call on fake tensors, and its sizes, at the example's where dynamic."""
        program, sizes = self._resolve_call(args)
        return program, {symbol: hint(size) for symbol, size in sizes.items()}

    def emit(self, builder: Builder, *args: Any) -> list[Value | None]:
        """Emit the kernel as a function of the module, and a call of it."""
        program, sizes = self._resolve_call(builder.examples)
        sizes, options = self._choose(builder.examples, program, sizes, builder.target)
        facts = _facts(program, sizes)
        function = f"{self.name}_{_digest(program, facts, options)}"
        if builder.target.kind == "cuda":
            text = embedding.write(program, facts, function, builder.target, options)
        else:
            text = module.write(program, facts, function, builder.target).text
        if program.is_printing:
            name = self.kernel.__name__
            errors.warn(f"kernel {name} prints, and exported programs do not")
        values = self._bind_arguments(args)
        passed = [_operand(builder, p, values[p.name]) for p in program.parameters if p.is_passed]
        results = iter(builder.call(text, *passed, name=function))
        given = [next(results) for _ in program.of_usage("output")]
        return [*given, *(None if values[p.name] is None else next(results) for p in self.written)]

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Save what the gradient needs."""
        gradient = self.kernel.gradient
        if gradient is not None and gradient.setup_context is not None:
            gradient.setup_context(ctx, inputs, output)

    def backward(self, ctx: Any, *grads: Any) -> Any:
        """The gradients of the inputs, if a backward is registered."""
        gradient = self.kernel.gradient
        if gradient is not None:
            return gradient.backward(ctx, *grads)
        name = self.kernel.__name__
        gradients.refuse(
            errors.KernelError(
                f"kernel {name} has no gradient",
                where=self.kernel.signature.place,
                hint=f"give it one with {name}.register_backward(kernel), or call it on tensors "
                "that need none, tensor.detach()",
            )
        )

    def _choose(
        self,
        args: Sequence[Any],
        program: KernelProgram,
        sizes: dict[Symbol, Size],
        target: Target,
    ) -> tuple[dict[Symbol, Size], Options]:
        """The sizes with blocks for a target, and the options."""
        kernel, types = self.kernel, self.kernel.types_of(self._bind_arguments(args))
        kind = "cuda" if target.kind == "cuda" else "cpu"
        here = partial(machines.of_target, target)
        choice = kernel.choices.of_call(program, types, sizes, kind, here)
        return {**sizes, **choice.sizes}, choice.options

    def _bind_arguments(self, args: Sequence[Any]) -> dict[str, Any]:
        names = [p.name for p in self.kernel.signature.passed]
        return dict(zip(names, args, strict=True))

    def _resolve_call(self, args: Sequence[Any]) -> tuple[KernelProgram, dict[Symbol, Size]]:
        """The program of a call, and its sizes as far as they are known."""
        kernel, named = self.kernel, self._bind_arguments(args)
        program = kernel.program(named)
        sizes = symbolic_sizes.bind_sizes(kernel.signature, named, kernel.own_sizes(program))
        signatures.check_open(kernel.signature, program.size_symbols, sizes)
        for symbol, size in sizes.items():
            if symbol.name in kernel.specialized:
                sizes[symbol] = int(size)
        if all(isinstance(size, int) for size in sizes.values()):
            check_grid(program, {symbol: int(size) for symbol, size in sizes.items()})
        return program, sizes


def _facts(program: KernelProgram, sizes: dict[Symbol, Size]) -> Facts:
    """The facts of a traced call: static sizes, and divisors of dynamic ones."""
    known = {symbol.name: size for symbol, size in sizes.items() if isinstance(size, int)}
    return facts_of(program, sizes, known)


def _digest(program: KernelProgram, facts: Facts, options: Options) -> str:
    """A key that differs between specializations of a kernel."""
    types = [str(parameter) for parameter in program.parameters]
    numbers = [sorted((str(s), n) for s, n in of.items()) for of in (facts.known, facts.divisors)]
    return hashlib.sha256(repr((types, numbers, options)).encode()).hexdigest()[:8]


def _operand(builder: Builder, parameter: Parameter, value: Any) -> Value:
    """An argument of the emitted function: numbers are 0-d tensors."""
    if isinstance(parameter.type, BufferType):
        assert isinstance(value, Value)
        return value
    dtype = scalar_dtype(parameter.type)
    if isinstance(value, Value):
        narrow = scalars.narrow(value, Type.parse(dtype.mlir), SCALARS["int64"], builder.location)
        return flow.from_number(narrow, builder.location)
    number = number_tensor(parameter.type, value).numpy()
    held = constants.dense(parameter.name, number, (), dtype)
    return constants.constant(held, builder.location)
