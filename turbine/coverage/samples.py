"""PyTorch's own op samples (`op_db`): an op in, calls with sample arguments out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from turbine import errors

# How many samples are looked through, and how many unlike each other are run.
_LOOKED_THROUGH = 200
SAMPLES = 3

# In order of preference; an op without f32 is judged in the first of the others that it has.
_DTYPES = (
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.bool,
)
_REST = "others"
FAMILIES = ("fft", "linalg", "nn.functional", "special", "masked", "signal", _REST)
_UNINITIALIZED = (
    "empty empty_like new_empty empty_strided empty_permuted new_empty_strided resize_ resize_as_"
).split()


@dataclass(frozen=True)
class Case:
    """A call: PyTorch's function and one sample of its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    of_results: Callable[[Any], Any] = lambda results: results  # those that are differentiable
    seed: int = 0
    form: str | None = None  # of the arguments, one of `forms.FORMS`; None is as they are


def ops() -> dict[str, Any]:
    """PyTorch's op samples by name: "add", "std.unbiased"."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise errors.MissingExtra(
            f"PyTorch's op samples need a library that is not installed: {error}",
            hint="pip install expecttest",
        ) from error
    return {_name(op): op for op in op_db}


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def family(name: str) -> str:
    """What an op is listed under."""
    return next((family for family in FAMILIES if name.startswith(f"{family}.")), _REST)


def version() -> str:
    """What the samples are from."""
    return f"PyTorch {torch.__version__.partition('+')[0]}'s own samples (`op_db`)"


def is_uninitialized(op: Any) -> bool:
    """Whether the results of an op are uninitialized."""
    return op.name in _UNINITIALIZED


def cases(op: Any, seed: int, count: int, *, requires_grad: bool = False) -> Iterator[Case]:
    """Samples that differ in more than their numbers, in the order the op gives them."""
    dtype = next((d for d in _DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None or (requires_grad and dtype not in op.supported_backward_dtypes("cpu")):
        return
    set_seed(seed)
    found = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    for sample in _pick_unlike(islice(found, _LOOKED_THROUGH), count):
        args = (sample.input, *sample.args)
        case = Case(
            _make_traceable(op.op),
            args,
            dict(sample.kwargs),
            sample.output_process_fn_grad,
            seed,
        )
        yield _make_unique(case) if op.name in _OF_ANY_SIGN else case


# Eigenvectors and singular vectors.
_OF_ANY_SIGN = ("linalg.eigh", "linalg.svd", "svd")


def _make_unique(case: Case) -> Case:
    """A call that returns what is the same for any signs of its results."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return case.of_results(case.function(*args, **kwargs))

    return replace(case, function=call)


def set_seed(seed: int) -> None:
    """Let every run of a case draw the same random numbers."""
    torch.manual_seed(seed)
    random.seed(seed)


def _pick_unlike(samples: Iterable[Any], count: int) -> list[Any]:
    """The first of each kind; a kind is the ranks of tensors and the types of all else."""
    kinds: dict[Any, Any] = {}
    for sample in samples:
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        kinds.setdefault((tuple(map(_kind, leaves)), tuple(sorted(sample.kwargs))), sample)
        if len(kinds) == count:
            break
    return list(kinds.values())


def _kind(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf)
    return leaf.dim(), leaf.numel() == 0, leaf.dtype


def _make_traceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function in a frame of this module: Dynamo skips frames of PyTorch."""
    if isinstance(function, FunctionType) and "torch/testing/" in function.__code__.co_filename:
        function = _move_here(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _move_here(function: FunctionType) -> FunctionType:
    """Copy a function from torch.testing into this module; it does not set its own seed."""
    code = function.__code__.replace(co_filename=__file__)
    names = {**function.__globals__, "wrapper_set_seed": _call}
    moved = FunctionType(
        code, names, function.__name__, function.__defaults__, function.__closure__
    )
    moved.__kwdefaults__ = function.__kwdefaults__
    return moved


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
