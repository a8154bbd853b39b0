"""Rewrite a function so that the caller passes the memory of its results.

Each result of a fixed size becomes one more argument, which the function overwrites. Debug mode
`guard` puts pages around that memory; otherwise IREE allocates results where nobody can.
"""

from __future__ import annotations

from iree.compiler.ir import Block, InsertionPoint, Operation, Type

from turbine import dtypes
from turbine.mlir import function, torch_values
from turbine.signature import STORED_RESULTS, StoredResult, stored_results_text


def take_storage(block: Block) -> None:
    """Rewrite the function of an entry block, which ends with `func.return`."""
    ending = block.operations[len(block.operations) - 1]
    stored: list[StoredResult] = []
    returned = []
    for index, value in enumerate(ending.operands):
        result = _stored_result(index, value.type)
        if result is None:
            returned.append(value)
            continue
        stored.append(result)
        of = Type.parse(str(value.type).replace("!torch.vtensor", "!torch.tensor"))
        storage = block.add_argument(of, ending.location)
        with InsertionPoint(ending):
            Operation.create(
                "torch.overwrite.tensor.contents",
                operands=[value, storage],
                loc=ending.location,
            )
    if not stored:
        return
    with InsertionPoint(ending):
        function.return_values(returned, ending.location)
    ending.operation.erase()
    function.set_results(block, [value.type for value in returned])
    function.add_reflection(block.owner, {STORED_RESULTS: stored_results_text(stored)})


def _stored_result(index: int, of: Type) -> StoredResult | None:
    parts = torch_values.tensor_parts(of)
    if parts is None or not all(size.isdigit() for size in parts[0]):
        return None
    return StoredResult(index, dtypes.from_spelling(parts[1]).name, tuple(map(int, parts[0])))
