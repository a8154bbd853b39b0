"""Let the contexts of a program with state share what loading computes, such as packed weights.

Each context of a program has globals of its own, and `__init` computes all of them. The module of a
program with state gets two functions more: one returns the values of all globals but the state's,
the other sets them. A context that is created beside a VM module named `GIVEN` leaves out `__init`,
and is then given the values of another context and a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler.ir import (
    Block,
    DenseI32ArrayAttr,
    FlatSymbolRefAttr,
    InsertionPoint,
    IntegerType,
    Module,
    Operation,
)

from turbine.mlir.matchers import walk
from turbine.signature import GIVEN, IS_GIVEN, SHARED_FUNCTIONS, state_functions

PHASE = "vm"  # after which loading is one function, `_INIT`

_INIT = "__init"
_STORE = "vm.global.store."


def has_state(module: Operation) -> bool:
    """Whether the functions of a module set a state."""
    first, _ = state_functions(0)
    return any(_name(op) == first for op in _operations(module))


def share_globals(module: Operation) -> None:
    """Add the functions to a module of `PHASE`, if its setters set all that other functions write.

    Otherwise each context computes its own values.
    """
    (program,) = (op for op in _operations(module) if op.name == "vm.module")
    functions = {_name(op): op for op in _operations(program) if op.name == "vm.func"}
    written = {name: set(_stored(function)) for name, function in functions.items()}
    if not written.get(_INIT):
        return
    setters = {name for name in written if _is_setter(name)}
    state = set().union(*(written[name] for name in setters))
    if any(names - state for name, names in written.items() if name != _INIT):
        return
    shared = [row for row in _globals(program) if row.name in written[_INIT] - state]
    with module.context, module.location:
        _return_if_given(functions[_INIT])
        added = Module.parse(_functions(shared))
        last = InsertionPoint.at_block_terminator(program.regions[0].blocks[0])
        for op in list(_operations(added.body.operations[0].operation)):
            if op.name in ("vm.func", "vm.export", "vm.import"):
                op.detach_from_parent()
                last.insert(op)


@dataclass(frozen=True)
class _Global:
    """A global of the VM: `kind` is in the names of the ops that read and write it."""

    name: str
    kind: str
    type: str


def _globals(program: Operation) -> Iterator[_Global]:
    for op in _operations(program):
        if op.name.startswith("vm.global."):
            kind = op.name.removeprefix("vm.global.")
            yield _Global(_name(op), kind, str(op.attributes["type"]))


def _functions(shared: list[_Global]) -> str:
    """A module with the new functions."""
    get, give = SHARED_FUNCTIONS
    lines = [f'vm.global.{row.kind} private mutable @"{row.name}" : {row.type}' for row in shared]
    types = ", ".join(row.type for row in shared)
    loads = [
        f'%{k} = vm.global.load.{row.kind} @"{row.name}" : {row.type}'
        for k, row in enumerate(shared)
    ]
    stores = [
        f'vm.global.store.{row.kind} %{k}, @"{row.name}" : {row.type}'
        for k, row in enumerate(shared)
    ]
    values = ", ".join(f"%{k}" for k, _ in enumerate(shared))
    given = ", ".join(f"%{k} : {row.type}" for k, row in enumerate(shared))
    return "\n".join(
        [
            "vm.module @added {",
            *lines,
            f"vm.import private optional @{GIVEN}.{IS_GIVEN}() -> i32",
            f"vm.export @{get}",
            f"vm.func private @{get}() -> ({types}) {{",
            *loads,
            f"vm.return {values} : {types}",
            "}",
            f"vm.export @{give}",
            f"vm.func private @{give}({given}) {{",
            *stores,
            "vm.return",
            "}",
            "}",
        ]
    )


def _return_if_given(function: Operation) -> None:
    """Let a function return at once where `GIVEN` is in the context."""
    region = function.regions[0]
    computed = region.blocks[0]
    begin = Block.create_at_start(region, [], [])
    given = begin.create_after()
    with InsertionPoint(begin):
        is_given = Operation.create(
            "vm.import.resolved",
            results=[IntegerType.get_signless(32)],
            attributes={"import": FlatSymbolRefAttr.get(f"{GIVEN}.{IS_GIVEN}")},
        )
        Operation.create(
            "vm.cond_br",
            operands=[is_given.result],
            successors=[given, computed],
            attributes={"operandSegmentSizes": DenseI32ArrayAttr.get([1, 0, 0])},
        )
    with InsertionPoint(given):
        Operation.create("vm.return")


def _stored(function: Operation) -> Iterator[str]:
    for op in walk(function):
        if op.name.startswith(_STORE):
            yield str(op.attributes["global"]).removeprefix("@").strip('"')


def _is_setter(name: str) -> bool:
    _, first = state_functions(0)
    return name.startswith(first.removesuffix("0"))


def _name(op: Operation) -> str:
    return str(op.attributes["sym_name"]).strip('"') if "sym_name" in op.attributes else ""


def _operations(op: Operation) -> Iterator[Operation]:
    return (view.operation for view in op.regions[0].blocks[0].operations)
