"""Expand `torch.operator` of custom ops: operands in, the IR of the op's emission out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as torch_pytree

from turbine import dtypes, errors
from turbine.capture.declared_ops import EMITTED
from turbine.lower.emission import Site, TargetQuery
from turbine.mlir import torch_values
from turbine.mlir.ir import InsertionPoint, Location, Type, Value
from turbine.mlir.matchers import operation_of
from turbine.ops.schema import Schema
from turbine.passes.expand_custom_ops import Emit
from turbine.target import Target

# The target is not known when IR is transformed.
_ANY_TARGET = TargetQuery(lambda: Target("any", ""))


def expansion(schema: Schema, emitted: str) -> Emit:
    """The expansion of an op; `emitted` names the op whose emission is used."""

    def emit(at: InsertionPoint, operands: Sequence[Value], types: Sequence[Type]) -> list[Value]:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        if len(operands) != len(schema.arguments):
            raise errors.TransformError(
                f"{schema.qualified} has {len(operands)} operands, its schema "
                f"{len(schema.arguments)} arguments",
                hint=f"the schema is {schema.text}",
            )
        given = [torch_values.literal(operand) for operand in operands]
        mode = FakeTensorMode(shape_env=ShapeEnv())
        examples = torch_pytree.tree_map_only(Value, partial(_example, schema, mode), given)
        arguments = torch_pytree.tree_map_only(Value, _builtin, given)
        written = [place for place, a in enumerate(schema.arguments) if a.is_written]
        results = [
            None if str(of) == "!torch.none" else torch_values.builtin_type(of) for of in types
        ]
        unsaid = [] if len(types) > len(schema.results) else [arguments[p] for p in written]
        site = Site(
            module=_outermost(at),
            arguments=arguments,
            examples=examples,
            results=[*results, *(value.type for value in unsaid)],
            location=Location.current,
            query=_ANY_TARGET,
        )
        made = EMITTED[emitted](site)
        values = [made] if isinstance(made, Value) else list(made)
        _check_unchanged(schema, unsaid, values[len(types) :])
        return [_torch(value, of) for value, of in zip(values, types, strict=False)]

    return emit


def _example(schema: Schema, mode: FakeTensorMode, value: Value) -> Any:
    """A fake tensor or symbolic int for an operand."""
    shape_env: Any = mode.shape_env
    parts = torch_values.tensor_parts(value.type)
    if parts is not None:
        sizes = [int(s) if s != "?" else shape_env.create_unbacked_symint() for s in parts[0]]
        with mode:
            return torch.empty(sizes, dtype=dtypes.from_spelling(parts[1]).torch)
    if str(value.type) == "!torch.int":
        return shape_env.create_unbacked_symint()
    raise errors.TransformError(
        f"{schema.qualified} has an operand of type {value.type} that is known only at run time",
        hint="tensors with a rank and a dtype and ints may be; all else has to be a constant",
    )


def _builtin(value: Value) -> Value:
    return torch_values.convert(value, torch_values.builtin_type(value.type), Location.current)


def _torch(value: Value | None, of: Type) -> Value:
    if value is None:
        return torch_values.none(Location.current)
    return torch_values.convert(value, of, Location.current)


def _outermost(at: InsertionPoint) -> Any:
    op = at.block.owner
    while op.operation.parent is not None:
        op = op.operation.parent
    return op.operation.opview


def _check_unchanged(schema: Schema, old: Sequence[Value], new: Sequence[Value | None]) -> None:
    """Raise if the op mutates an argument: its operator has no result for the new value."""
    for before, after in zip(old, new, strict=True):
        if _uncast(after) != before:
            raise errors.TransformError(
                f"{schema.qualified} writes to an argument, and its operator has no result for "
                "the new value",
                hint="add results to the operator for the new values, after those of the schema",
            )


def _uncast(value: Any) -> Any:
    op = operation_of(value)
    return _uncast(op.operands[0]) if op is not None and op.name == "tensor.cast" else value
