"""Read `dynamic_shapes` of a jittable: nested Dims in, the Dims of each leaf out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.aot import module_trace
from turbine.aot.abstract import dim_range
from turbine.aot.values import IrTensor

# Of one argument: axis -> its torch.export.Dim.
Sizes = dict[int, Dim]


def declared_sizes(
    function: Callable[..., Any],
    dynamic_shapes: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> list[Sizes]:
    """The Dims of each leaf of (args, kwargs), in order; static sizes are checked."""
    if not dynamic_shapes:
        return [{} for _ in torch_pytree.tree_leaves((args, kwargs))]
    names = list(inspect.signature(function).parameters)
    for name in dynamic_shapes:
        if name not in names:
            raise errors.ProcedureError(errors.unknown("parameter in dynamic_shapes", name, names))
    named = [*zip(names, args, strict=False), *kwargs.items()]
    return [
        sizes
        for name, value in named
        for sizes in _of_value(value, dynamic_shapes.get(name), f"dynamic_shapes[{name!r}]")
    ]


def _of_value(value: Any, spec: Any, where: str) -> Iterator[Sizes]:
    """The specifications of each leaf of a value with the same nesting."""
    if isinstance(value, IrTensor | torch.Tensor):
        yield _of_tensor(value, spec, where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _of_value(item, None if spec is None else spec[key], f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _of_value(item, None if spec is None else spec[place], f"{where}[{place}]")
    elif spec is not None:
        raise errors.ProcedureError(
            f"{where} is for a {type(value).__name__}, which has no sizes", hint="write None there"
        )
    else:
        yield {}


def _of_tensor(tensor: IrTensor | torch.Tensor, spec: Any, where: str) -> Sizes:
    pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
    sizes = {axis: dim for axis, dim in pairs if dim not in (None, *_OPEN)}
    for axis, dim in sizes.items():
        if axis not in range(len(tensor.shape)) or not isinstance(dim, Dim):
            raise errors.ProcedureError(
                f"{where} says {dim!r} of axis {axis!r}: rank={len(tensor.shape)}",
                hint="give a torch.export.Dim for an axis of the tensor",
            )
        size, limits = tensor.shape[axis], dim_range(dim)
        if isinstance(size, int) and not limits.holds(size):
            raise errors.ProcedureError(
                f"{where} has axis {axis} from {limits.minimum} to {limits.maximum}, "
                f"and in this call it has size {size}",
                where=module_trace.line(),
                hint="pass such a size, or give the axis a Dim with another range",
            )
    return sizes


# Unknown sizes are dynamic in any case.
_OPEN = (Dim.AUTO, Dim.DYNAMIC)
