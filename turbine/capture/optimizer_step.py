"""Trace the step of an optimizer as ops on tensors: weights, gradients, and its state.

The optimizer's own code runs, on a twin that has tensors of the trace in place of parameters.
Numbers that change from step to step, such as the learning rate, are tensors of float64 there.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from turbine import errors

# The state of an optimizer: the name of a parameter, then the name of a tensor or number.
State = dict[str, dict[str, Tensor]]


def check_optimizer(optimizer: object, names: Mapping[Tensor, str]) -> None:
    """Raise unless the step of an optimizer can be traced."""
    if not isinstance(optimizer, Optimizer):
        raise errors.ExportError(
            f"the optimizer is a {type(optimizer).__name__}",
            hint="pass one of torch.optim, made with the model's parameters",
        )
    for refused, reason in _REFUSED.items():
        if isinstance(optimizer, refused):
            raise errors.ExportError(
                f"{type(optimizer).__name__} cannot be exported: {reason}",
                hint="use an optimizer whose step depends on dense gradients alone, such as AdamW",
            )
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in names:
                raise errors.ExportError(
                    f"parameter {place} of the optimizer's group {index} is not one of the model's",
                    hint="make the optimizer with model.parameters(), after the model was changed",
                )


_REFUSED = {
    torch.optim.LBFGS: "its step calls the model",
    torch.optim.SparseAdam: "it needs sparse gradients",
}


def initial_state(optimizer: Optimizer, names: Mapping[Tensor, str]) -> State:
    """The state of an optimizer, as it is before its next step."""
    twin = _copy_of(optimizer)
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
        _init_group(twin, group)
    originals = [p for group in optimizer.param_groups for p in group["params"]]
    copies = [p for group in twin.param_groups for p in group["params"]]
    found: State = {}
    for original, copied in zip(originals, copies, strict=True):
        values = {key: _as_tensor(value) for key, value in twin.state[copied].items()}
        found[names[original]] = {k: v for k, v in values.items() if v is not None}
    if isinstance(optimizer, torch.optim.SGD):
        _add_momentum(optimizer, found, names)
    return found


def _copy_of(optimizer: Optimizer) -> Optimizer:
    """The optimizer with copies of its parameters and its state."""
    copies = {
        parameter: parameter.detach().clone().requires_grad_()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    state = {copies[p]: copy.deepcopy(values) for p, values in optimizer.state.items()}
    groups = [
        {**group, "params": [copies[p] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    return _twin(optimizer, groups, state)


def _twin(optimizer: Optimizer, groups: list[dict[str, Any]], state: Any) -> Optimizer:
    twin = copy.copy(optimizer)
    twin.__dict__ = {**optimizer.__dict__, "param_groups": groups}
    twin.state = defaultdict(dict, state)
    return twin


def _init_group(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Let the optimizer make the state of a group, without a step."""
    init = getattr(optimizer, "_init_group", None)
    if init is not None:
        lists: list[list[Any]] = [[] for _ in inspect.signature(init).parameters]
        init(group, *lists[1:])


def _as_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return torch.tensor(value) if isinstance(value, (bool, int, float)) else None


def _add_momentum(optimizer: Optimizer, state: State, names: Mapping[Tensor, str]) -> None:
    """SGD takes the first gradient for its momentum: see `_first_momentum`."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state[names[parameter]].setdefault("momentum_buffer", zeros.detach())


def _first_momentum(
    group: Mapping[str, Any], held: Tensor, weight: Tensor, grad: Tensor, step: Tensor
) -> Tensor:
    """The momentum before a step: in the first, what makes it the gradient after.

    It is `momentum * held + (1 - dampening) * grad` after a step. Without dampening, zeros do.
    """
    whole = (-grad if group["maximize"] else grad) + group["weight_decay"] * weight
    before = whole * (group["dampening"] / group["momentum"])
    return torch.where((step == 0) & (held == 0).all(), before, held)


def trace_step(
    optimizer: Optimizer,
    names: Mapping[Tensor, str],
    weights: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: State,
    rates: Sequence[Tensor],
    step: Tensor,
) -> None:
    """Run a step on tensors of a trace: weights and state are written in place.

    Parameters without a gradient are left as they are. `rates` are the learning rates of the
    groups, `step` is the number of updates before. Parameters may share the count of their steps:
    what depends on it is then traced once.
    """
    groups, held = [], {}
    widened: dict[int, Tensor] = {}
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        own = [names[p] for p in group["params"] if names[p] in grads]
        groups.append({**group, **_options(group), "lr": rate, "params": [weights[n] for n in own]})
        for name in own:
            weights[name].grad = grads[name]
            held[weights[name]] = {
                key: widened.setdefault(id(value), _widen(value))
                for key, value in state[name].items()
            }
            if group.get("dampening") and "momentum_buffer" in state[name]:
                given = state[name]["momentum_buffer"], weights[name], grads[name], step
                held[weights[name]]["momentum_buffer"] = _first_momentum(group, *given)
    uses = Counter(id(value) for values in held.values() for value in values.values())
    numbers = _Numbers({number: count for number, count in uses.items() if count > 1})
    twin = _twin(optimizer, groups, held)
    try:
        compiling = mock.patch.object(torch.compiler, "_is_compiling_flag", True)
        step_of_kind = _undecorated(type(twin).step)
        with compiling, _extremes_of_tensors(step_of_kind), numbers, torch.no_grad():
            step_of_kind(twin)
    except (CannotShare, errors.TurbineError):
        raise
    except Exception as error:
        raise errors.ExportError(
            f"the step of {type(optimizer).__name__} cannot be traced: {_first_line(error)}",
            hint="it may not branch on values of tensors; AdamW and SGD can be exported",
        ) from error
    numbers.check()
    for name in grads:
        what = f"{type(optimizer).__name__} for {name}"
        _keep(state[name], twin.state[weights[name]], what)


def _extremes_of_tensors(step: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Let the module of a step take the min and max of numbers that are tensors."""
    both = {"min": (min, torch.minimum), "max": (max, torch.maximum)}
    extremes = {name: partial(_extreme, *ways) for name, ways in both.items()}
    return mock.patch.dict(step.__globals__, extremes)


def _extreme(
    of_numbers: Callable[..., Any], of_tensors: Callable[..., Tensor], *args: Any, **options: Any
) -> Any:
    if not any(isinstance(one, Tensor) for one in args):
        return of_numbers(*args, **options)
    tensors = [torch.as_tensor(one, dtype=torch.float64) for one in args]
    return reduce(of_tensors, tensors)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a trace: one tensor at a time, and numbers as tensors."""
    wanted = {"foreach": False, "fused": False, "capturable": True}
    return {key: value for key, value in wanted.items() if key in group}


def _widen(value: Tensor) -> Tensor:
    """A number in float64, as Python computes with it."""
    if value.ndim or not value.is_floating_point():
        return value
    return value.to(torch.float64, copy=True)


def _keep(state: dict[str, Tensor], after: Mapping[str, Any], what: str) -> None:
    for key, value in after.items():
        if not isinstance(value, Tensor):
            continue
        if key not in state:
            raise errors.ExportError(
                f"{what} makes {key!r} of its state during a step",
                hint="call optimizer.step() once before the export, or make it in __init__",
            )
        if value is not state[key]:
            state[key].copy_(value.to(state[key].dtype))


def _undecorated(step: Any) -> Callable[..., Any]:
    """The function that a step is, without its hooks, which record events."""
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


class CannotShare(Exception):
    """An optimizer writes to a number that several parameters share."""


class _Numbers(TorchFunctionMode):
    """Computes with numbers in tensors, once for all parameters that share them.

    Tensors may be factors that PyTorch wants as numbers: `x.add_(y, alpha=rate)`. A shared count of
    steps is increased by the first parameter alone, and ops on numbers are not traced again.
    """

    def __init__(self, shared: Mapping[int, int]) -> None:
        super().__init__()
        self._uses = shared  # ids of shared counts, and how many parameters share them
        self._increased: Counter[int] = Counter()
        self._known: dict[Any, Tensor] = {}
        self._numbers: dict[int, Tensor] = {}  # computed from shared counts

    def check(self) -> None:
        """Raise unless every parameter has increased its count once."""
        if self._increased != self._uses:
            raise CannotShare

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        if args and id(args[0]) in self._uses and name == "add_":
            return self._increase(args[0], *args[1:])
        if name == "item":
            return args[0].to(torch.float64, copy=True).reshape(())
        if any(id(value) in self._uses or id(value) in self._numbers for value in args):
            return self._compute(func, name, args, options)
        return self._call(func, name, args, options)

    def _call(self, func: Any, name: str, args: Any, options: dict[str, Any]) -> Any:
        """Call a function, with numbers rounded to the dtype of tensors beside them."""
        dtypes = [x.dtype for x in args if isinstance(x, Tensor) and not _is_number(x)]
        if not dtypes:
            return func(*args, **options)
        args = [self._narrow(x, dtypes[0]) for x in args]
        if name in _WITH_TENSOR_WEIGHTS and isinstance(args[-1], Tensor):
            return _WITH_TENSOR_WEIGHTS[name](*args)
        for key in ("alpha", "value"):
            if isinstance(options.get(key), Tensor) and name.rstrip("_") in _SCALED:
                factor = self._narrow(options.pop(key), dtypes[0])
                target, *rest = args
                rest = [x.to(target.dtype) for x in rest]
                change = factor * _SCALED[name.rstrip("_")](*rest)
                return target.add_(change) if name.endswith("_") else target + change
        return func(*args, **options)

    def _narrow(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Tensor) or not _is_number(value) or not dtype.is_floating_point:
            return value
        key = "to", id(value), dtype
        if key not in self._known:
            self._known[key] = value.to(dtype)
            self._numbers[id(value)] = value  # it has to live as long as its id is a key
        return self._known[key]

    def _increase(self, count: Tensor, by: Any) -> Tensor:
        if by != 1:
            raise CannotShare
        self._increased[id(count)] += 1
        return count.add_(1) if self._increased[id(count)] == 1 else count

    def _compute(self, func: Any, name: str, args: Any, options: dict[str, Any]) -> Any:
        if any(id(x) in self._uses and not self._increased[id(x)] for x in args):
            raise CannotShare
        if name not in _PURE or any(isinstance(x, Tensor) and not _is_number(x) for x in args):
            return self._call(func, name, args, options)
        key = name, tuple(id(x) if isinstance(x, Tensor) else x for x in args), str(options)
        if key not in self._known:
            made = func(*args, **options)
            self._known[key] = self._numbers[id(made)] = made
        return self._known[key]


def _is_number(value: Tensor) -> bool:
    return value.ndim == 0 and value.dtype == torch.float64


# Functions that would take the value of a tensor without axes.
_WITH_TENSOR_WEIGHTS = {
    "lerp": torch.ops.aten.lerp.Tensor,
    "lerp_": torch.ops.aten.lerp_.Tensor,
}
# Functions whose results depend on numbers alone.
_PURE = {
    *("add", "sub", "mul", "div", "pow", "sqrt", "neg", "reciprocal", "exp", "where"),
    *("__rsub__", "__rdiv__", "__rtruediv__", "__rpow__"),
}
_SCALED: dict[str, Callable[..., Tensor]] = {
    "add": lambda x: x,
    "sub": lambda x: -x,
    "addcmul": lambda x, y: x * y,
    "addcdiv": lambda x, y: x / y,
}
