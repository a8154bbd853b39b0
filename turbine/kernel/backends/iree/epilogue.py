"""Find the elementwise ops and the store after a matmul that its register tiles can compute.

The totals of a register tile then go through these ops and to their buffer without a detour
through memory.
"""

from __future__ import annotations

from torch import fx

from turbine.kernel.backends.iree.emitter import Emitter
from turbine.kernel.lang import casting, constants, memory, shapes
from turbine.kernel.trace.op import arguments, options

# Every op is written once for each vector of a register tile.
_MOST_OPS = 4
# Ops that may stand between a matmul and its store, apart from elementwise ones.
_OPERANDS = (
    memory.load,
    constants.constant,
    constants.from_index,
    shapes.broadcast_to,
    shapes.expand_dims,
)


def find_store(emitter: Emitter, product: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The store of all lanes that ends the only use of a matmul, and the ops on the way."""
    shape, node = product.meta["type"].shape, product
    ops: list[fx.Node] = []
    while len(node.users) == 1:
        (user,) = node.users
        if user.target is memory.store:
            is_found = _stores_all(emitter, user, node) and _is_pure_until(product, user)
            return (user, ops) if is_found else None
        if not _is_elementwise(user) or user.meta["type"].shape != shape or len(ops) == _MOST_OPS:
            return None
        ops.append(user)
        node = user
    return None


def _is_elementwise(node: fx.Node) -> bool:
    return node.target is casting.to_dtype or getattr(node.target, "kind", "") == "pointwise"


def _stores_all(emitter: Emitter, store: fx.Node, value: fx.Node) -> bool:
    valid, shape = options(store), value.meta["type"].shape
    is_whole = not valid["masks"] and not emitter.is_guarded(shape, valid["bounds"])
    return is_whole and arguments(store)[2] is value


def _is_pure_until(product: fx.Node, store: fx.Node) -> bool:
    """Whether the nodes between neither write memory nor have a region."""
    node = product.next
    while node is not store:
        if not _is_elementwise(node) and node.target not in _OPERANDS:
            return False
        node = node.next
    return True
