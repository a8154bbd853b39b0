"""Sizes as expressions: evaluate "2*s0 + 1" or "s0 <= 8" once the symbols in it are known."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from turbine import algebra, errors

Dim = int | str


def evaluate(dim: Dim, symbols: Mapping[str, int]) -> int | None:
    """The value of a size expression; None if a symbol in it is unbound."""
    if isinstance(dim, int):
        return dim
    if dim in symbols:
        return symbols[dim]
    size: int | None = _evaluate(_parse(dim), symbols)
    return size


def match(dim: str, size: int, symbols: dict[str, int]) -> int | None:
    """The size that an expression requires, None if no value fits; binds a symbol it determines.

    >>> symbols: dict[str, int] = {}
    >>> match("2*n", 6, symbols), match("n", 4, symbols), symbols
    (6, 3, {'n': 3})
    """
    expected = evaluate(dim, symbols)
    if expected is not None:
        return expected
    unknown = [name for name in dict.fromkeys(names(dim)) if name not in symbols]
    found = _solve(dim, size, unknown[0], symbols) if len(unknown) == 1 else None
    if found is None:
        return size
    value, rest = found
    if rest:
        return None
    symbols[unknown[0]] = value
    return size


def holds(condition: str, symbols: Mapping[str, int]) -> bool:
    """Whether a condition on sizes is met, as far as its symbols are known."""
    result: bool = _evaluate(_parse(condition), symbols) != 0
    return result


def is_condition(text: str) -> bool:
    """Whether a text is a condition that `holds` can evaluate."""
    try:
        _evaluate(_parse(text), dict.fromkeys(names(text), 1))
    except (errors.ArtifactError, ArithmeticError):
        return False
    return True


def readable(condition: str, spelled: Mapping[str, str]) -> str:
    """A condition as Python would write it, with other spellings of its symbols.

    >>> readable("Ne(((n + 1)//2), 1)", {"n": "x.shape[0]"})
    '(x.shape[0] + 1) // 2 != 1'
    """
    return ast.unparse(_Spelling(spelled).visit(ast.parse(condition, mode="eval")))


class _Spelling(ast.NodeTransformer):
    """Symbols by other names, and functions as operators."""

    def __init__(self, spelled: Mapping[str, str]) -> None:
        self.spelled = spelled

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.spelled.get(node.id, node.id))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        arguments = [self.visit(argument) for argument in node.args]
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _COMPARISONS:
            return ast.Compare(arguments[0], [_COMPARISONS[name]], arguments[1:])
        if name in _BINARY:
            return ast.BinOp(arguments[0], _BINARY[name], arguments[1])
        return ast.Call(node.func, arguments, [])


_COMPARISONS: dict[str, ast.cmpop] = {"Eq": ast.Eq(), "Ne": ast.NotEq()}
_BINARY: dict[str, ast.operator] = {
    "FloorDiv": ast.FloorDiv(),
    "CleanDiv": ast.FloorDiv(),
    "Mod": ast.Mod(),
    "PythonMod": ast.Mod(),
}


def names(dim: Dim) -> list[str]:
    """The symbols in an expression."""
    if isinstance(dim, int):
        return []
    calls = {n.func for n in ast.walk(_parse(dim)) if isinstance(n, ast.Call)}
    return [n.id for n in ast.walk(_parse(dim)) if isinstance(n, ast.Name) and n not in calls]


def is_symbol(dim: Dim) -> bool:
    """Whether an expression is a single symbol."""
    return isinstance(dim, str) and dim.isidentifier()


def _solve(dim: str, size: int, name: str, known: Mapping[str, int]) -> tuple[int, int] | None:
    """Solve `dim == size` for a symbol: its value and a remainder; None if it is not linear."""
    symbol = algebra.Symbol(name)
    try:
        expr = algebra.as_expr(_evaluate(_parse(dim), {**known, name: algebra.symbol(name)}))
    except TypeError:  # of a function that only numbers have, such as a rounding
        return None
    factor = algebra.slope(expr, symbol)
    if factor is None or not factor.number:
        return None
    return divmod(size - expr.evaluate({symbol: 0}), factor.number)


_REWRITE = "the file is damaged or of another version: export and compile the model again"


@cache
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise errors.ArtifactError(
            f"size expression does not parse: {text!r}", hint=_REWRITE
        ) from error


def _power(base: int, exponent: int) -> int:
    """A power, bounded: an expression from a file must not exhaust memory."""
    if abs(exponent) > _BITS or abs(base) >> _BITS:
        raise errors.ArtifactError(f"a size is too large: {base}**{exponent}", hint=_REWRITE)
    return int(base**exponent)


_BITS = 64
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: _power(a, b),
    ast.BitAnd: lambda a, b: (a != 0) & (b != 0),
    ast.BitOr: lambda a, b: (a != 0) | (b != 0),
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Max": max,
    "Min": min,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Eq": lambda a, b: a == b,
    "Ne": lambda a, b: a != b,
    # Sizes that are scaled by a float, as F.interpolate does it.
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
}


def _evaluate(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        return symbols.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _evaluate(node.operand, symbols)
        return None if value is None else -value
    operation, operands = _operation(node)
    values = [_evaluate(operand, symbols) for operand in operands]
    known = [v for v in values if v is not None]
    return operation(*known) if len(known) == len(values) else None


def _operation(node: ast.expr) -> tuple[Callable[..., Any], list[ast.expr]]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)], [node.left, node.right]
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return _OPERATORS[type(node.ops[0])], [node.left, node.comparators[0]]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return function, node.args
    raise errors.ArtifactError(
        f"size expression is not supported: {ast.unparse(node)}", hint=_REWRITE
    )
