"""Expand custom ops: `torch.operator` in, IR from emissions or a library out."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turbine import errors
from turbine.mlir import context as mlir_context
from turbine.mlir import function, rewrites, symbols, torch_values
from turbine.mlir.ir import InsertionPoint, Module, Operation, SymbolTable, Type, Value
from turbine.mlir.matchers import FuncOpMatcher, NamedOpMatcher, OpMatchResult, match_children
from turbine.mlir.symbols import symbol_name
from turbine.passes.base import Pass
from turbine.passes.merge import Merger, copy_into

# An insertion point, the op's operands and the types of its results in, the results out. The
# insertion point and the op's location are current during the call.
Emit = Callable[[InsertionPoint, Sequence[Value], Sequence[Type]], Sequence[Value]]
# Ops declared in this process, by name.
DECLARED: dict[str, Emit] = {}
_OPERATOR = "torch.operator"
_PREFIX = "torch."


@dataclass(frozen=True)
class ExpandCustomOps(Pass):
    """Replace custom ops by the IR that `expansions` emit, or by functions of a `library`.

    Without `expansions`, ops that are declared in this process (turbine.ops) are expanded. Ops
    are named "namespace.name". In a library, the function is @namespace.name or
    @namespace__name, has builtin or torch types, and is inlined at each use; globals and functions
    that it needs are copied. Unknown ops are left alone.
    """

    name = "expand-custom-ops"
    expansions: Mapping[str, Emit] = field(default_factory=lambda: DECLARED)
    library: Module | None = None

    @classmethod
    def parse(cls, text: str) -> ExpandCustomOps:
        """Parse a path: a library of MLIR, ops.mlir, or a program that declares ops, ops.py."""
        path = Path(text).expanduser()
        if path.suffix != ".py":
            return cls(library=mlir_context.read(path))
        if not path.is_file():
            raise errors.TransformError(
                f"--{cls.name}: there is no file {path}",
                hint="give a library of MLIR, ops.mlir, or a program that declares ops, ops.py",
            )
        runpy.run_path(str(path))
        return cls()

    def run(self, module: Module) -> None:
        """Expand every op that is known."""
        wanted = {function.operator_name(op) for op in _operators(module)}
        bodies = {} if self.library is None else _link(self.library, module, wanted)
        rewrites.rewrite(module, [lambda op: self._expand(op, bodies)])
        for body in {symbol_name(op): op for op in bodies.values()}.values():
            body.erase()

    def _expand(self, op: Operation, bodies: Mapping[str, Operation]) -> Sequence[Value] | None:
        if op.name != _OPERATOR:
            return None
        name = function.operator_name(op)
        emit = self.expansions.get(name.removeprefix(_PREFIX))
        if emit is not None:
            types = [result.type for result in op.results]
            return emit(InsertionPoint(op), list(op.operands), types)
        return _inline(op, bodies[name]) if name in bodies else None


def _operators(module: Module | Operation) -> list[Operation]:
    matcher: NamedOpMatcher[OpMatchResult] = NamedOpMatcher(_OPERATOR)
    return [match.op for match in match_children(module, matcher)]


def _link(library: Module, module: Module, wanted: set[str]) -> dict[str, Operation]:
    """Merge the functions of the wanted ops into the module; returns them by op name."""
    source = copy_into(library, module)
    functions = {symbol_name(m.op): m.op for m in match_children(source, FuncOpMatcher())}
    chosen = {op: found for op in wanted if (found := _function_name(op, functions)) is not None}
    for name in chosen.values():
        _check_body(name, functions)
    _keep(source, set(chosen.values()))
    merger = Merger(source, module)
    merger.merge()
    table = SymbolTable(module.operation)
    return {op: table[merger.translate_symbol(name)].operation for op, name in chosen.items()}


def _function_name(operator: str, functions: Mapping[str, Operation]) -> str | None:
    name = operator.removeprefix(_PREFIX)
    return next((n for n in (name, name.replace(".", "__")) if n in functions), None)


def _keep(library: Module, names: set[str]) -> None:
    """Drop symbols that the named functions do not need, and make the functions private."""
    _set_visibility(library, lambda name: "public" if name in names else "private")
    rewrites.run_pipeline(library, "inline,symbol-dce")
    _set_visibility(library, lambda name: "private")


def _set_visibility(module: Module, visibility: Callable[[str], str]) -> None:
    for op in module.body.operations:
        if symbols.is_symbol(op.operation):
            name = symbol_name(op.operation)
            symbols.set_visibility(op.operation, visibility(name))


def _check_body(name: str, functions: Mapping[str, Operation]) -> None:
    body = functions[name]
    where = function.source_line(body.location)
    if len(list(body.regions[0].blocks)) != 1:
        raise errors.TransformError(
            f"the expansion @{name} is not one block",
            where=where,
            hint="give it a body, with scf ops for branches and loops",
        )
    for op in _operators(body):
        # A recursive expansion would not end.
        inner = function.operator_name(op)
        if _function_name(inner, functions) is not None:
            raise errors.TransformError(
                f"the expansion @{name} uses {inner}, which the library expands",
                where=where,
                hint="call the function with func.call",
            )


def _inline(op: Operation, body: Operation) -> list[Value]:
    """Inline the body of a function at an op, with casts of operands and results."""
    takes, gives = function.signature(body)
    where = function.source_line(op.location)
    for kind, has, needs in (
        ("operands", len(op.operands), len(takes)),
        ("results", len(op.results), len(gives)),
    ):
        if has != needs:
            raise errors.TransformError(
                f"{function.operator_name(op)} has {has} {kind}, "
                f"its expansion @{symbol_name(body)} {needs}",
                where=where,
            )
    operands = [
        torch_values.convert(value, to, op.location)
        for value, to in zip(op.operands, takes, strict=True)
    ]
    values = rewrites.splice(body.clone(InsertionPoint(body)), operands, op)
    return [
        torch_values.convert(value, result.type, op.location)
        for value, result in zip(values, op.results, strict=True)
    ]
