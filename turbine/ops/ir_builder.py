"""Emit an op's IR by a function of the user: builtin values in, values of declared types out."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turbine import dtypes, errors
from turbine.lower.emission import Rule, Site, TargetQuery
from turbine.mlir import context as mlir_context
from turbine.mlir import flow, function, scalars, symbols, torch_values
from turbine.mlir.ir import Context, Location, Module, Operation, SymbolTable, Type, Value
from turbine.mlir.matchers import FuncOpMatcher, match_children
from turbine.mlir.symbols import symbol_name
from turbine.ops.schema import Schema
from turbine.passes.merge import Merger
from turbine.target import Target

# A builder and the op's arguments in, its results out: one, several, or none.
Emit = Callable[..., Any]
_INDEX = dtypes.SCALARS["index"]
_INT64 = dtypes.SCALARS["int64"]


@dataclass(frozen=True)
class Builder:
    """The context of an emission. Its insertion point is current during the emission.

    `results` are the types from the shape rule, None for a result that is None; `examples` are
    the traced arguments, with fake tensors.
    """

    op: str
    module: Module
    location: Location
    examples: Sequence[Any]
    results: Sequence[Type | None]
    query: TargetQuery

    @property
    def target(self) -> Target:
        """The target; an op that uses it is emitted again for other targets."""
        return self.query.target

    @property
    def target_kind(self) -> str:
        """The kind of the target, "cpu"; "any" if the target is not known yet."""
        return self.target.kind

    def index(self, number: int) -> Value:
        """A constant of type index."""
        return scalars.constant(number, _INDEX, self.location)

    def dim(self, tensor: Value, axis: int) -> Value:
        """The size of a tensor along an axis, of type index."""
        return flow.dim(tensor, axis, self.location)

    def call(self, text: str, *operands: Value, name: str | None = None) -> list[Value]:
        """Call a function of MLIR text, by name if the text has several.

        The text is added to the module once.
        """
        callee = bring_in(text, self.module, op=self.op, name=name)
        takes, _ = function.signature(callee)
        called = f"@{symbol_name(callee).rpartition('_')[0]}"  # without the digest
        if len(takes) != len(operands):
            raise errors.CustomOpError(
                f"{self.op}: {called} takes {len(takes)} values, this call has {len(operands)}",
                where=errors.user_line(),
                hint=f"its types are ({', '.join(map(str, takes))})",
            )
        fitting = [
            _fit(self.op, f"operand {place} of {called}", value, to, self.location, None)
            for place, (value, to) in enumerate(zip(operands, takes, strict=True))
        ]
        return function.invoke(callee, fitting, self.location)


def bring_in(text: str, module: Module, *, op: str, name: str | None = None) -> Operation:
    """Add MLIR text to a module on first use, and return a function of it by name."""
    source = parse_module(op, text, module.context)
    wanted = find_function(op, source, name)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    inside = f"{wanted}_{digest}"
    if inside not in SymbolTable(module.operation):
        for match in match_children(source, FuncOpMatcher()):
            symbols.set_visibility(match.op, "private")  # they are no entry points
        Merger(source, module, user_rename_map={wanted: inside}).merge()
    return SymbolTable(module.operation)[inside].operation


def parse_module(op: str, text: str, context: Context) -> Module:
    """Parse the MLIR text of an op; errors show the line."""
    try:
        return mlir_context.parse(text, context)
    except errors.CompileError as error:
        raise errors.CustomOpError(f"{op}: {error.fact}", where=_line(text, error.where)) from error


def _line(text: str, where: str | None) -> str | None:
    """The line and column of an error of MLIR, with the text of the line."""
    if where is None:
        return None
    _, line, column = where.rsplit(":", 2)
    shown = text.splitlines()[int(line) - 1].strip() if int(line) <= text.count("\n") + 1 else ""
    return f"line {line}, column {column} of its text: {shown}"


def rule(schema: Schema, emit: Emit) -> Rule:
    """The function that the importer calls for a node of the op."""

    def build(site: Site) -> list[Value | None]:
        builder = Builder(
            op=schema.qualified,
            module=site.module,
            location=site.location,
            examples=site.examples,
            results=site.results,
            query=site.query,
        )
        pairs = zip(schema.arguments, site.arguments, strict=True)
        args = [_size_value(value, builder) if a.kind == "SymInt" else value for a, value in pairs]
        try:
            made = schema.call(partial(emit, builder), args)
        except errors.TurbineError:
            raise
        except Exception as error:
            raise errors.CustomOpError(
                f"{schema.qualified}: its emission raised {type(error).__name__}: {error}",
                where=user_line_of(error),
            ) from error
        return _check_results(schema, _flatten(made), site.results, site.location, place(emit))

    return build


def user_line_of(error: Exception) -> str | None:
    """The line of the user's code that raised an error."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return errors.user_place([f"{frame.filename}:{frame.lineno}" for frame in frames])


def _size_value(value: Any, builder: Builder) -> Any:
    """A static or dynamic size as a value of the IR."""
    if isinstance(value, list):
        return [_size_value(one, builder) for one in value]
    return scalars.constant(value, _INT64, builder.location) if isinstance(value, int) else value


def _flatten(made: Any) -> list[Any]:
    if isinstance(made, (list, tuple)):
        return [value for one in made for value in _flatten(one)]
    if isinstance(made, Operation):
        return list(made.results)
    return [made]


def _check_results(
    schema: Schema,
    values: Sequence[Any],
    types: Sequence[Type | None],
    location: Location,
    where: str | None,
) -> list[Value | None]:
    op = schema.qualified
    if not types and list(values) == [None]:
        return []
    if len(values) != len(types):
        raise errors.CustomOpError(
            f"{op}: its emission returned {len(values)} values, "
            f"its schema has {len(types)} results",
            where=where,
            hint=f"the schema is {schema.text}",
        )
    return [
        None if to is None else _fit(op, f"result {place}", value, to, location, where)
        for place, (value, to) in enumerate(zip(values, types, strict=True))
    ]


def _fit(op: str, what: str, value: Any, to: Type, location: Location, where: str | None) -> Value:
    """Cast a value to the declared type; static sizes may become dynamic or vice versa."""
    if not isinstance(value, Value):
        raise errors.CustomOpError(
            f"{op}: {what} is declared as {to} and given as a {type(value).__name__}",
            where=where or errors.user_line(),
            hint="give values of the IR: arguments of the emission, or what builder.call returns",
        )
    if value.type != to and not flow.agree(value.type, to):
        raise errors.CustomOpError(
            f"{op}: {what} is declared as {to} and given as {value.type}",
            where=where or errors.user_line(),
        )
    return torch_values.convert(value, to, location)


def find_function(op: str, source: Module, name: str | None) -> str:
    """The name of the op's function in MLIR text."""
    functions = [symbol_name(match.op) for match in match_children(source, FuncOpMatcher())]
    if name is None and len(functions) == 1:
        return functions[0]
    wanted = op.partition("::")[2] if name is None else name
    if wanted not in functions:
        raise errors.CustomOpError(
            f"{op}: {errors.unknown('function of its text', wanted, functions)}",
            hint="name it after the op, or say which to call",
        )
    return wanted


def place(called: Any) -> str | None:
    """The line of the user's function; None for one of Turbine or a C function."""
    code = getattr(called, "__code__", None)
    is_ours = str(getattr(called, "__module__", "")).startswith("turbine.")
    return None if code is None or is_ours else f"{code.co_filename}:{code.co_firstlineno}"
