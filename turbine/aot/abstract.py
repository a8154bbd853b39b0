"""Types of a procedure's arguments: tensors by sizes and dtype, numbers by type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.export import Dim
from torch.utils import _pytree as torch_pytree

from turbine import dtypes, errors
from turbine.dtypes import Scalar
from turbine.signature import Range


class AbstractTensor:
    """A tensor of which size and dtype are known.

    A size is an int, None where it is known only at run time, or a name or a torch.export.Dim:
    sizes of one name are equal.

    >>> import torch
    >>> AbstractTensor(None, "batch", 8, dtype=torch.int64)
    AbstractTensor(None, 'batch', 8, dtype=torch.int64)
    """

    def __init__(self, *size: Any, dtype: torch.dtype = torch.float32) -> None:
        self.size = tuple(_size(item) for item in size)
        self.limits = dict(_limits(size))
        self.dtype = dtype

    def __repr__(self) -> str:
        sizes = "".join(f"{size!r}, " for size in self.size)
        return f"AbstractTensor({sizes}dtype={self.dtype})"


@dataclass(frozen=True)
class AbstractScalar:
    """A number of a known type."""

    scalar: Scalar

    def __repr__(self) -> str:
        return f"AbstractScalar({self.scalar.name})"


AbstractBool = AbstractScalar(dtypes.SCALARS["bool"])
AbstractI32 = AbstractScalar(dtypes.SCALARS["int32"])
AbstractI64 = AbstractScalar(dtypes.SCALARS["int64"])
AbstractIndex = AbstractScalar(dtypes.SCALARS["index"])
AbstractF32 = AbstractScalar(dtypes.SCALARS["float32"])
AbstractF64 = AbstractScalar(dtypes.SCALARS["float64"])
_OF_NUMBERS = {bool: AbstractBool, int: AbstractI64, float: AbstractF64}


@runtime_checkable
class Abstractifiable(Protocol):
    """An object with types for a signature, such as the declaration of a global."""

    def abstractify(self) -> Any:
        """The nested types."""
        ...


def abstractify(tree: Any) -> Any:
    """The types of nested tensors, numbers and declared globals, for the signature of a procedure.

    Args:
        tree: the values, in dicts, lists and tuples.

    >>> abstractify({"n": 3})
    {'n': AbstractScalar(int64)}
    """
    return torch_pytree.tree_map(_abstract, tree)


def is_abstract(tree: Any) -> bool:
    """Whether every leaf is a valid type for a signature."""
    leaves = torch_pytree.tree_leaves(tree)
    return all(isinstance(leaf, _KNOWN) for leaf in leaves)


_KNOWN = (AbstractTensor, AbstractScalar, torch.Tensor, bool, int, float)


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, (AbstractTensor, AbstractScalar)):
        return leaf
    if isinstance(leaf, Abstractifiable):
        return leaf.abstractify()
    if isinstance(leaf, torch.Tensor):
        return AbstractTensor(*leaf.shape, dtype=leaf.dtype)
    if type(leaf) in _OF_NUMBERS:
        return _OF_NUMBERS[type(leaf)]
    raise errors.ProcedureError(
        f"a {type(leaf).__name__} is not allowed in a signature",
        hint="use AbstractTensor, an abstract scalar such as AbstractIndex, or an example value",
    )


def _size(item: Any) -> int | str | None:
    name = item.__name__ if isinstance(item, Dim) else item
    is_size = isinstance(name, int) and not isinstance(name, bool) and name >= 0
    if not (name is None or is_size or (isinstance(name, str) and name.isidentifier())):
        raise errors.ProcedureError(
            f"{item!r} is not a size",
            hint="give an int, None, a name such as 'batch', or a torch.export.Dim",
        )
    return name if name is None or isinstance(name, str) else int(name)


def _limits(size: tuple[Any, ...]) -> Iterator[tuple[str, Range]]:
    """The ranges of the Dims among some sizes."""
    for item in size:
        if isinstance(item, Dim):
            yield item.__name__, dim_range(item)


def dim_range(dim: Dim) -> Range:
    """The sizes that a Dim allows."""
    maximum = int(dim.max)
    return Range(int(dim.min), None if maximum >= 2**62 else maximum)
