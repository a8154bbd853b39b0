"""Run a program op by op in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turbine.eager.storage import Ref
from turbine.eager.trace_tree import Number, Op, Program


def interpret(program: Program) -> list[Tensor]:
    """The outputs of a program; values are freed after their last use."""
    results = _interpret(program, _call)
    return [results[index] for index in program.outputs]


def rescue(program: Program) -> list[Tensor | Exception]:
    """The outputs of a program with an op that raises: what depends on it is the error."""
    results = _interpret(program, _call_or_error)
    return [results[index] for index in program.outputs]


def _interpret(program: Program, call: Callable[[Op, Any, Any], Any]) -> dict[int, Any]:
    last: dict[int, int] = {}
    for number, op in enumerate(program.ops):
        for index in _operands(op):
            last[index] = number
    kept = set(program.outputs)
    values: dict[int, Any] = {}

    def value(argument: Any) -> Any:
        if isinstance(argument, Ref):
            index = argument.index
            return values[index] if index >= 0 else program.inputs[~index]
        if isinstance(argument, list):
            return [value(one) for one in argument]
        return program.numbers[argument.index] if isinstance(argument, Number) else argument

    count = 0
    with torch.no_grad():
        for number, op in enumerate(program.ops):
            named = {name: value(one) for name, one in op.kwargs.items()}
            for leaf in call(op, [value(one) for one in op.args], named):
                if count in last or count in kept:
                    values[count] = leaf
                count += 1
            for index in _operands(op):
                if index >= 0 and last[index] == number and index not in kept:
                    values.pop(index, None)
    return values


def _call(op: Op, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    try:
        return _leaves(op.target(*args, **kwargs))
    except Exception as error:
        if op.where is not None:
            error.add_note(f"{op.target} was called at {op.where}")
        raise


def _call_or_error(op: Op, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    given = _leaves([args, list(kwargs.values())])
    failed = next((one for one in given if isinstance(one, Exception)), None)
    if failed is None:
        try:
            return _call(op, args, kwargs)
        except Exception as error:
            failed = error
    return [failed] * len(op.results)


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [leaf for one in result for leaf in _leaves(one)]
    return [result]


def _operands(op: Op) -> list[int]:
    found: list[int] = []
    left = [*op.args, *op.kwargs.values()]
    while left:
        one = left.pop()
        if isinstance(one, Ref):
            found.append(one.index)
        elif isinstance(one, list):
            left += one
    return found
