"""Emit an op's IR from a template: MLIR with placeholders in, an emission out.

A placeholder has the name of an argument. For a tensor it is the type, `{x}`, or a part of it:
`{x.element}`, `{x.rank}`, `{x.sizes}`. For a number, a string or a dtype it is the value.
`{result}` is the type of the only result, `{results[0]}` of the first of several.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Any

import torch

from turbine import dtypes, errors
from turbine.mlir import context as mlir_context
from turbine.mlir import function
from turbine.mlir.ir import SymbolTable, Type, Value
from turbine.ops import ir_builder
from turbine.ops.ir_builder import Builder, Emit
from turbine.ops.schema import Argument, Result, Schema

# Values of placeholders in, the text out.
Render = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class TypePlaceholder:
    """A tensor type in a template; printed, it is the type itself."""

    text: str

    @property
    def sizes(self) -> list[str]:
        """Its sizes, "?" for a dynamic one."""
        return re.findall(r"(\d+|\?)x", self._inside)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.sizes)

    @property
    def element(self) -> str:
        """The element type."""
        return re.sub(r"^(\d+x|\?x)*", "", self._inside)

    @property
    def _inside(self) -> str:
        return self.text.removeprefix("tensor<").removesuffix(">")

    def __str__(self) -> str:
        return self.text


class FloatPlaceholder(float):
    """A float in a template; printed as MLIR writes it, 1.0e-06 where Python has 1e-06."""

    def __str__(self) -> str:
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(float(self)))

    def __format__(self, how: str) -> str:
        return super().__format__(how) if how else str(self)


def emission(schema: Schema, text: str, engine: str | None, name: str | None) -> Emit:
    """An emission that fills the placeholders and calls the function of the text."""
    if engine is not None and engine not in _ENGINES:
        raise errors.CustomOpError(
            f"{schema.qualified}: {errors.unknown('template engine', engine, _ENGINES)}"
        )
    render = _as_it_is(text) if engine is None else _ENGINES[engine](schema, text)

    def emit(builder: Builder, *args: Any, **keywords: Any) -> list[Value]:
        given = schema.filled(args, keywords)
        values = {a.name: _placeholder(v) for a, v in zip(schema.arguments, given, strict=True)}
        results = [None if of is None else TypePlaceholder(str(of)) for of in builder.results]
        filled = render({**values, "results": results, "result": next(iter(results), None)})
        return builder.call(filled, *_operands(given), name=name)

    return emit


def check(schema: Schema, text: str, name: str | None) -> None:
    """Raise if a text without placeholders has another number of values than the schema."""
    op = schema.qualified
    source = ir_builder.parse_module(op, text, mlir_context.new_context())
    wanted = ir_builder.find_function(op, source, name)
    takes, gives = function.signature(SymbolTable(source.operation)[wanted].operation)
    passed = [a for a in schema.arguments if a.kind in _PASSED]
    given: list[Argument | Result] = [*schema.results, *schema.written]
    _check_count(schema, f"@{wanted} takes", takes, passed, "tensors and sizes")
    _check_count(schema, f"@{wanted} gives", gives, given, "results")


def _check_count(
    schema: Schema, does: str, types: Sequence[Type], said: Sequence[Argument | Result], what: str
) -> None:
    if any(one.is_list or one.is_optional for one in said) or len(types) == len(said):
        return
    raise errors.CustomOpError(
        f"{schema.qualified}: {does} {len(types)} values, the schema has {len(said)} {what}",
        hint=f"the schema is {schema.text}",
    )


# Kinds of arguments that are values in IR; lists have any number.
_PASSED = ("Tensor", "Tensor?", "SymInt", "SymInt?")


def _operands(values: Sequence[Any]) -> list[Value]:
    """The IR values among the arguments, with lists flattened."""
    flat = [one for v in values for one in (v if isinstance(v, (list, tuple)) else [v])]
    return [value for value in flat if isinstance(value, Value)]


def _placeholder(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_placeholder(one) for one in value]
    if isinstance(value, Value):
        of: Type = value.type
        return TypePlaceholder(str(of))
    if isinstance(value, torch.dtype):
        return dtypes.of_torch(value).mlir
    if isinstance(value, bool):
        return str(value).lower()
    return FloatPlaceholder(value) if isinstance(value, float) else value


def _spell(value: Any) -> Any:
    return FloatPlaceholder(value) if isinstance(value, float) else value


def _as_it_is(text: str) -> Render:
    return lambda values: text


def _by_format(schema: Schema, text: str) -> Render:
    known = _names(schema)
    try:
        for before, name, _, _ in Formatter().parse(text):
            if name is not None and re.split(r"[.\[]", name)[0] not in known:
                line = text[: text.index(before) + len(before)].count("\n") + 1
                fact = errors.unknown("placeholder", name.strip(), known)
                raise _fault(schema, f"{fact}; braces of MLIR's own are doubled", line)
    except ValueError as error:
        raise _fault(
            schema, f"{error}; braces of MLIR's own are doubled", text.count("\n") + 1
        ) from error
    return partial(_format, schema, text)


def _format(schema: Schema, text: str, values: Mapping[str, Any]) -> str:
    """Fill the placeholders; errors name the line."""
    try:
        return text.format(**values)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _fault(schema, str(error), _faulty_line(text, values)) from error


def _faulty_line(text: str, values: Mapping[str, Any]) -> int:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            line.format(**values)
        except (AttributeError, LookupError, TypeError):
            return number
        except ValueError:  # a wrong format, or a placeholder over several lines
            continue
    return 1


def _by_jinja(schema: Schema, text: str) -> Render:
    from jinja2 import Environment, StrictUndefined, TemplateSyntaxError, meta

    environment = Environment(undefined=StrictUndefined, autoescape=False, finalize=_spell)
    known = _names(schema)
    try:
        tree = environment.parse(text)
        undeclared = meta.find_undeclared_variables(tree)
        template = environment.from_string(text)
    except TemplateSyntaxError as error:
        raise _fault(schema, str(error.message), error.lineno) from error
    for name in sorted(undeclared - set(known)):
        raise _fault(schema, errors.unknown("placeholder", name, known), _line_of(text, name))

    def render(values: Mapping[str, Any]) -> str:
        try:
            return template.render(values)
        except Exception as error:
            raise _fault(schema, str(error), _line_in_template(error)) from error

    return render


_ENGINES: dict[str, Callable[[Schema, str], Render]] = {"format": _by_format, "jinja": _by_jinja}


def _names(schema: Schema) -> list[str]:
    return [*(argument.name for argument in schema.arguments), "result", "results"]


def _line_of(text: str, name: str) -> int:
    lines = text.splitlines()
    found = (n for n, line in enumerate(lines, 1) if re.search(rf"\b{re.escape(name)}\b", line))
    return next(found, 1)


def _line_in_template(error: Exception) -> int:
    """The line of a jinja template that raised, from the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return next((line for line in reversed(lines) if line is not None), 1)


def _fault(schema: Schema, fact: str, line: int) -> errors.CustomOpError:
    return errors.CustomOpError(
        f"{schema.qualified}: its template: {fact}", where=f"line {line} of the template"
    )
