"""The gradient of a kernel: a kernel or a function in, what autograd calls out.

Values go by name. Of a kernel with an input x and an output y, a gradient takes what it needs of x,
y and grad_y, and gives grad_x.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from turbine import errors
from turbine.kernel.program.signature import KernelSignature
from turbine.kernel.trace.types import BufferType

Function = Callable[..., Any]
_GRAD = "grad_"


@dataclass(frozen=True)
class Gradient:
    """The autograd formula of a kernel: what a call saves, and the gradients of its inputs."""

    backward: Function  # of a context and the gradients of the outputs
    setup_context: Function | None


def of_kernel(forward: KernelSignature, backward: KernelSignature, call: Function) -> Gradient:
    """A gradient by another kernel, whose arguments and outputs are matched by name."""
    outputs = [p.name for p in backward.buffers if p.usage == "output"]
    wrong = [p.name for p in backward.buffers if p.usage == "inout"]
    if wrong:
        raise errors.KernelError(
            f"{backward.kernel} writes to {wrong[0]}, and cannot be the gradient of "
            f"{forward.kernel}",
            where=backward.place,
            hint="let it write to an OutputBuffer",
        )
    given = [f"{_GRAD}{name}" for name in _tensors(forward)]
    for name in outputs:
        if name not in given:
            what = errors.unknown(f"gradient of an input of {forward.kernel}", name, given)
            raise errors.KernelError(
                f"{backward.kernel} gives an {what}",
                where=backward.place,
                hint="an output is called grad_x, after the input x whose gradient it is",
            )
    takes = [p.name for p in backward.passed]

    def by_name(*args: Any) -> dict[str, Any]:
        results = call(*args)
        values = (results,) if len(outputs) == 1 else results
        names = [name.removeprefix(_GRAD) for name in outputs]
        return dict(zip(names, values, strict=True))

    optional = {p.name for p in backward.passed if p.is_optional or _has_default(p)}
    return _of_names(forward, by_name, takes, optional, backward.kernel, backward.place)


def _has_default(parameter: Any) -> bool:
    return parameter.default is not inspect.Parameter.empty


def of_function(forward: KernelSignature, backward: Function) -> Gradient:
    """A gradient by a function: arguments are matched by name, results are in order."""
    code = backward.__code__
    place = f"{code.co_filename}:{code.co_firstlineno}"
    takes = list(inspect.signature(backward).parameters)
    return _of_names(forward, backward, takes, set(), backward.__name__, place)


def takes_context(backward: Function) -> bool:
    """Whether a function has the form that torch.library.register_autograd takes."""
    return next(iter(inspect.signature(backward).parameters), None) == "ctx"


def _of_names(
    forward: KernelSignature,
    backward: Function,
    takes: Sequence[str],
    optional: set[str],
    called: str,
    place: str | None,
) -> Gradient:
    inputs = [p.name for p in forward.passed]
    outputs = [p.name for p in forward.buffers if p.usage == "output"]
    grads = [f"{_GRAD}{name}" for name in outputs]
    known = [*inputs, *outputs, *grads]
    takes = [name for name in takes if name in known or name not in optional]
    for name in takes:
        if name not in known:
            raise errors.KernelError(
                f"{called}, the gradient of {forward.kernel}, takes an "
                + errors.unknown("value of the call", name, known),
                where=place,
                hint="it takes inputs, outputs and gradients of outputs, grad_y, by their names",
            )
    kept = [name for name in (*inputs, *outputs) if name in takes]

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        values = dict(zip([p.name for p in forward.passed], inputs, strict=True))
        results = (output,) if len(outputs) == 1 else output
        values |= dict(zip(outputs, results, strict=True))
        saved = {name: values[name] for name in kept}
        ctx.tensors = [name for name, value in saved.items() if isinstance(value, Tensor)]
        ctx.rest = {n: value for n, value in saved.items() if not isinstance(value, Tensor)}
        ctx.save_for_backward(*[saved[name] for name in ctx.tensors])

    def differentiate(ctx: Any, *given: Any) -> tuple[Any, ...]:
        values = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True)) | ctx.rest
        values = dict(zip(grads, given, strict=True)) | values
        results = backward(*[values[name] for name in takes])
        by_name = _by_name(forward, results, called, place)
        return tuple(by_name.get(name) for name in inputs)

    return Gradient(differentiate, setup_context)


def _tensors(signature: KernelSignature) -> list[str]:
    return [p.name for p in signature.passed if isinstance(p.type, BufferType)]


def _by_name(
    forward: KernelSignature, results: Any, called: str, place: str | None
) -> Mapping[str, Any]:
    """The gradients by input name."""
    names = _tensors(forward)
    if isinstance(results, Mapping):
        wrong = [name for name in results if name not in names]
        if wrong:
            what = errors.unknown(f"input of {forward.kernel}", wrong[0], names)
            raise errors.KernelError(f"{called} gives the gradient of an {what}", where=place)
        return results
    values = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(values) != len(names):
        raise errors.KernelError(
            f"{called} gives {len(values)} gradients, and {forward.kernel} takes "
            f"{len(names)} tensors, {', '.join(names)}",
            where=place,
            hint="return one for each, in order, or None, or a dict by name",
        )
    return dict(zip(names, values, strict=True))
