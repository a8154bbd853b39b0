"""Compute long formulas on several vectors at once.

A formula such as a sigmoid is a chain of ops that wait for each other. With one vector in an
iteration of a loop, the CPU does not see enough of the next ones to fill the time. So dispatches
whose loops have long formulas get wider vectors, which LLVM splits into several of the machine's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from iree.compiler.ir import AffineDimExpr, AffineMapAttr, Attribute, Operation

from turbine.mlir.matchers import walk

# The phases between which dispatches become code. After them, those of one target are linked.
BEGIN, END = "executable-sources", "executable-targets"

_FACTOR = 4
_LEAST_OPS = 18  # an exponential alone has fewer, and waits for memory
_ARITHMETIC = re.compile(r"(math|arith)\.(?!constant|index_cast|cmp|select|trunci|ext)")
_WIDTH = re.compile(r"(?<=native_vector_size = )\d+")


def widen_loops(module: Operation) -> dict[str, Attribute]:
    """Give the dispatches of a module with long formulas wider vectors.

    The result has the targets before, by the text of the new ones.
    """
    targets = {}
    for variant in _variants(module):
        if _has_long_formulas(variant):
            before = variant.attributes["target"]
            wide = _WIDTH.sub(lambda width: str(_FACTOR * int(width[0])), str(before))
            with variant.context:
                variant.attributes["target"] = Attribute.parse(wide)
            targets[str(variant.attributes["target"])] = before
    return targets


def restore_targets(module: Operation, targets: dict[str, Attribute]) -> None:
    """Give dispatches the targets they had."""
    for variant in _variants(module):
        before = targets.get(str(variant.attributes["target"]))
        if before is not None:
            variant.attributes["target"] = before


def _variants(module: Operation) -> Iterator[Operation]:
    executables = [op for op in _operations(module) if op.name == "hal.executable"]
    ops = [op for executable in executables for op in _operations(executable)]
    return (op for op in ops if op.name == "hal.executable.variant")


def _operations(op: Operation) -> Iterator[Operation]:
    return (view.operation for view in op.regions[0].blocks[0].operations)


def _has_long_formulas(variant: Operation) -> bool:
    modules = [op for op in _operations(variant) if op.name == "builtin.module"]
    functions = [op for module in modules for op in _operations(module) if op.name == "func.func"]
    ops = [
        op for function in functions if function.regions[0].blocks for op in _operations(function)
    ]
    loops = [op for op in ops if op.name.startswith(("linalg.", "iree_linalg_ext."))]
    bodies = [op for op in loops if op.name == "linalg.generic"]
    return (
        len(bodies) == len(loops)
        and all(_runs_along_rows(op) for op in bodies)
        and any(_count_arithmetic(op) >= _LEAST_OPS for op in bodies)
    )


def _runs_along_rows(loop: Operation) -> bool:
    """Whether each element is computed by itself, and all operands keep the order of axes."""
    kinds = str(loop.attributes["iterator_types"])
    return "reduction" not in kinds and all(
        _keeps_order(map_) for map_ in loop.attributes["indexing_maps"]
    )


def _keeps_order(map_: Attribute) -> bool:
    results = AffineMapAttr(map_).value.results
    if not all(isinstance(result, AffineDimExpr) for result in results):
        return False
    places = [result.position for result in results]
    return places == sorted(places)


def _count_arithmetic(loop: Operation) -> int:
    return sum(_ARITHMETIC.match(op.name) is not None for op in walk(loop))
