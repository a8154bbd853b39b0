"""Describe the dispatches of a program: the lines of user code, and the work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from iree.compiler.ir import AffineDimExpr, Operation, RankedTensorType, Value

from turbine import errors
from turbine.mlir import context
from turbine.mlir.located_text import origins
from turbine.mlir.matchers import callee, walk
from turbine.mlir.symbols import symbol_name

_PRODUCTS = re.compile(r"linalg\.(batch_)?(matmul|mmt4d|vecmat|matvec)")
_ARITHMETIC = re.compile(r"math\.|arith\.(add|sub|mul|div|rem|max|min|neg)")
_MEGA = 1e6


@dataclass
class Dispatch:
    """A dispatch and the estimated work of a call; None where it is unknown."""

    name: str
    lines: list[str] = field(default_factory=list)  # of user code
    mflop: float | None = 0.0
    megabytes: float | None = 0.0  # read and written
    origins: list[str] = field(default_factory=list)  # of all its ops; see located_text.py
    text: str = ""  # its IR


def describe(source: bytes, formed: bytes) -> list[Dispatch]:
    """The dispatches of a program, in call order, from its IR before and after they are formed."""
    module = context.parse(formed)
    work = dict(_work_of_functions(module.operation))
    lines_of_kernels = _lines_of_kernels(source)
    found: dict[str, Dispatch] = {}
    for op in walk(module.operation):
        if op.name != "flow.dispatch":
            continue
        name = _entry_point(op)
        lines = lines_of_kernels.get(name, [])
        one = found.setdefault(name, Dispatch(name, [*lines], work.get(name), _megabytes(op)))
        _add_new(one.lines, _line(str(op.location)))
        _add_new(one.origins, *lines, *origins(str(op.location)))
    for op in walk(module.operation):
        if op.name == "func.func" and symbol_name(op) in found:
            _add_body(found[symbol_name(op)], op)
    return list(found.values())


def _add_new(listed: list[str], *texts: str | None) -> None:
    listed += [text for text in dict.fromkeys(texts) if text is not None and text not in listed]


def _add_body(dispatch: Dispatch, function: Operation) -> None:
    """Add the IR of a dispatch, and what its ops come from."""
    dispatch.text = str(function.get_asm(large_elements_limit=_SHOWN, large_resource_limit=_SHOWN))
    for op in walk(function):
        if op.name not in _WITHOUT_ORIGIN:
            _add_new(dispatch.origins, *origins(str(op.location)))


_SHOWN = 20  # elements of a constant
# The function, and ops that take the location of any other.
_WITHOUT_ORIGIN = ("func.func", "func.return", "arith.constant", "tensor.empty")


def _entry_point(dispatch: Operation) -> str:
    return str(dispatch.attributes["entry_points"]).strip("[]@").rpartition("@")[2]


def _lines_of_kernels(source: bytes) -> dict[str, list[str]]:
    """The lines that call each kernel; the dispatch of a kernel stands in a function of its own."""
    lines: dict[str, list[str]] = {}
    kernels: dict[str, list[str]] = {}
    for op in walk(context.parse(source).operation):
        called, line = callee(op), _line(str(op.location))
        if called is not None and line is not None and line not in lines.setdefault(called, []):
            lines[called].append(line)
        if op.name == "func.func":
            inside = [_entry_point(one) for one in walk(op) if one.name == "flow.dispatch"]
            kernels[symbol_name(op)] = inside
    return {
        kernel: lines.get(function, []) for function, inside in kernels.items() for kernel in inside
    }


def _line(location: str) -> str | None:
    """The innermost line of user code; None for IR that was parsed from text."""
    return errors.user_place(origins(location))


def _megabytes(op: Operation) -> float | None:
    sizes = [_bytes(value) for value in (*op.operands, *op.results)]
    known = [size for size in sizes if size is not None]
    return sum(known) / _MEGA if len(known) == len(sizes) else None


def _bytes(value: Value) -> float | None:
    if not isinstance(value.type, RankedTensorType):
        return 0.0
    if not value.type.has_static_shape:
        return None
    bits = re.search(r"\d+$", str(value.type.element_type))
    return float(math.prod(value.type.shape) * max(1, int(bits[0]) // 8 if bits else 4))


def _work_of_functions(module: Operation) -> Iterator[tuple[str, float | None]]:
    """The work of each dispatched function."""
    for op in walk(module):
        if op.name == "func.func":
            counts = [_operations(inner) for inner in walk(op) if inner.name.startswith("linalg.")]
            known = [count for count in counts if count is not None]
            total = sum(known) / _MEGA if counts and len(known) == len(counts) else None
            yield str(op.attributes["sym_name"]).strip('"'), total


def _operations(op: Operation) -> float | None:
    """The number of arithmetic operations of an op."""
    shapes = [v.type for v in op.operands if isinstance(v.type, RankedTensorType)]
    if not all(shape.has_static_shape for shape in shapes):
        return None
    product = _PRODUCTS.match(op.name)
    if product is not None:
        a, b, result = (math.prod(shape.shape) for shape in shapes[:3])
        batch = shapes[0].shape[0] if product[1] else 1
        return 2 * result * math.sqrt(a * b / (result * batch)) if result else 0.0
    if op.name != "linalg.generic":
        return 0.0
    body = [one for block in op.regions[0].blocks for one in block.operations]
    count = sum(_ARITHMETIC.match(one.operation.name) is not None for one in body)
    return count * _iterations(op, shapes)


def _iterations(op: Operation, shapes: list[Any]) -> float:
    """The number of iterations of a loop nest."""
    sizes: dict[int, int] = {}
    for attribute, shape in zip(op.attributes["indexing_maps"], shapes, strict=False):
        for expression, size in zip(attribute.value.results, shape.shape, strict=True):
            if isinstance(expression, AffineDimExpr):
                sizes[expression.position] = size
    return float(math.prod(sizes.values()))
