"""Rewrite a module in place: patterns are tried on every op until none applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from iree.compiler.ir import InsertionPoint, Module, Operation, Value
from iree.compiler.passmanager import PassManager

from turbine import errors
from turbine.mlir import function
from turbine.mlir.matchers import operation_of, walk

# An op in, values for its results out, or None if the pattern does not apply. New ops go before
# the old one, at its location, unless the pattern says otherwise.
Pattern = Callable[[Operation], Sequence[Value] | None]
_ROUNDS = 100
# Ops without side effects, erased if their results are unused.
_PURE = ("torch.aten.", "torch.prim.List", "torch.constant.", "torch_c.", "torch.vtensor.")
_PURE_NAMES = ("torch.operator", "arith.constant", "util.global.load")


def rewrite(module: Module, patterns: Sequence[Pattern]) -> int:
    """Apply patterns wherever they match; return the number of replaced ops.

    >>> from turbine.mlir import context, rewrites
    >>> module = context.parse('''
    ... func.func @f(%x: !torch.int) -> !torch.int {
    ...   %y = torch.aten.mul.int %x, %x : !torch.int, !torch.int -> !torch.int
    ...   return %y : !torch.int
    ... }''')
    >>> first = lambda op: [op.operands[0]] if op.name == "torch.aten.mul.int" else None
    >>> rewrites.rewrite(module, [first])
    1
    """
    total = 0
    for _ in range(_ROUNDS):
        replaced = _round(module, patterns)
        if not replaced:
            return total
        total += len(replaced)
        erase_unused(module, replaced)
    raise errors.TransformError(
        f"the patterns still apply after {_ROUNDS} rounds",
        hint="a pattern must not match the result of a pattern",
    )


def _round(module: Module, patterns: Sequence[Pattern]) -> list[Operation]:
    """Replaced ops stay in the IR until the round ends, so that no handle goes stale."""
    replaced = []
    for op in list(walk(module.operation)):
        values = _apply(op, patterns)
        if values is not None:
            replace(op, values)
            replaced.append(op)
    return replaced


def _apply(op: Operation, patterns: Sequence[Pattern]) -> Sequence[Value] | None:
    with InsertionPoint(op), op.location:
        return next((v for pattern in patterns if (v := pattern(op)) is not None), None)


def replace(op: Operation, values: Sequence[Value]) -> None:
    """Replace all uses of an op's results; the op stays."""
    if len(values) != len(op.results):
        raise errors.TransformError(
            f"{len(values)} values for the {len(op.results)} results of {op.name}",
            where=function.source_line(op.location),
        )
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)


def erase_unused(module: Module, ops: Iterable[Operation]) -> None:
    """Erase ops without uses, and the ops that only they used."""
    reached = _with_producers(ops)
    # Uses come after definitions, so one backward walk is enough.
    for op in [op for op in reversed(list(walk(module.operation))) if op in reached]:
        if is_unused(op):
            op.erase()


def _with_producers(ops: Iterable[Operation]) -> set[Operation]:
    reached: set[Operation] = set()
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            makers = [operation_of(value) for value in op.operands]
            waiting += [maker for maker in makers if maker is not None and is_pure(maker)]
    return reached


def is_pure(op: Operation) -> bool:
    """Whether an op has no side effects."""
    return op.name in _PURE_NAMES or (op.name.startswith(_PURE) and not op.name.endswith("_"))


def is_unused(op: Operation) -> bool:
    """Whether the results of an op are unused."""
    return not any(next(iter(result.uses), None) is not None for result in op.results)


def splice(function: Operation, operands: Sequence[Value], before: Operation) -> list[Value]:
    """Move the body of a function before an op, erase the function, and return its results."""
    (block,) = function.regions[0].blocks
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, end = [op.operation for op in block.operations]
    for op in body:
        op.move_before(before)
    values = list(end.operands)
    function.erase()
    return values


def run_pipeline(module: Module, pipeline: str) -> None:
    """Run passes of the compiler, such as "inline,symbol-dce"."""
    with module.context:
        PassManager.parse(f"builtin.module({pipeline})").run(module.operation)


def clone(module: Module) -> Module:
    """A copy in the same context; constants are shared."""
    with module.context:
        copy = Module.create(module.operation.location)
        for name in list(module.operation.attributes):
            copy.operation.attributes[name] = module.operation.attributes[name]
        for op in module.body.operations:
            op.operation.clone(InsertionPoint(copy.body))
    return copy
