"""Run a case and compare its answer with the expected one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from turbine.coverage import forms
from turbine.coverage.samples import Case, set_seed

# A result may differ by this many times the rounding error of eager.
_TIMES_EAGERS_ERROR = 3.0
_REASON_LENGTH = 200


@dataclass(frozen=True)
class Answer:
    """All that a call changes: its results, the gradients it leads to, and its arguments."""

    results: list[Any]
    gradients: list[Any]
    args: list[Any]

    def leaves(self) -> list[Any]:
        return [*self.results, *self.gradients, *self.args]


Run = Callable[[Case, Callable[..., Any]], Answer]


def infer(case: Case, function: Callable[..., Any]) -> Answer:
    """Call a function with a copy of the arguments."""
    args, kwargs = copy_arguments(case)
    set_seed(case.seed)
    with torch.no_grad():
        results = function(*args, **kwargs)
    return Answer(pytree.tree_leaves(results), [], _memory((args, kwargs)))


def _memory(tree: Any) -> list[torch.Tensor]:
    """Tensors, and what they are views of."""
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [*tensors, *(x._base for x in tensors if x._base is not None)]


def train(case: Case, function: Callable[..., Any]) -> Answer:
    """Call a function and differentiate its results with respect to the arguments."""
    args, kwargs = copy_arguments(case)
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_differentiable(leaf)]
    set_seed(case.seed)
    results = function(*args, **kwargs)
    ends = [r for r in pytree.tree_leaves(case.of_results(results)) if _is_differentiable(r)]
    starts = [torch.randn_like(end) for end in ends]
    gradients = torch.autograd.grad(ends, inputs, starts, allow_unused=True) if ends else ()
    detached = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)
    return Answer(pytree.tree_leaves(detached), list(gradients), [])


def copy_arguments(case: Case) -> tuple[Any, Any]:
    """A copy of the arguments with the same strides and sharing, or in the form asked for."""
    detached = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (case.args, case.kwargs))
    copied = copy.deepcopy(detached)
    if case.form is not None:
        copied = forms.apply(case.form, copied, case.seed)
    leaves = zip(
        pytree.tree_leaves((case.args, case.kwargs)), pytree.tree_leaves(copied), strict=True
    )
    for old, new in leaves:
        if _is_differentiable(old):
            new.requires_grad_()
    args, kwargs = copied
    return args, kwargs


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def compare_types(
    found: Sequence[Any], expected: Sequence[Any], *, strides: bool = True
) -> str | None:
    """How results differ in kind, not in values; None if they do not."""
    if len(found) != len(expected):
        return f"{len(found)} results in place of {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if _describe(ours, strides) != _describe(theirs, strides):
            wrong, right = _describe(ours, strides), _describe(theirs, strides)
            return f"value {index} is {wrong} in place of {right}"
    return None


def _describe(value: Any, with_strides: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.layout is not torch.strided or not with_strides:
        return f"{value.dtype} {list(value.shape)} {value.layout}"
    # The stride of an axis with one element means nothing.
    strides = [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]
    return f"{value.dtype} {list(value.shape)} strides {strides if value.numel() else []}"


def compare_values(case: Case, run: Run, found: Answer, expected: Answer) -> str | None:
    """How answers of like types differ, beyond what rounding explains; None if they do not."""
    problem = _compare_closely(found.leaves(), expected.leaves())
    if problem is not None and _is_as_near(case, run, found.leaves(), expected.leaves()):
        return None
    return problem


def _compare_closely(found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """How values differ, beyond the tolerance PyTorch's own tests have for their dtype."""
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs and not (ours != ours and theirs != theirs):
                return f"value {index} is {ours} in place of {theirs}"
            continue
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        except AssertionError as error:
            return f"value {index}: {' '.join(str(error).split())[:_REASON_LENGTH]}"
    return None


def _is_as_near(case: Case, run: Run, found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether the answer is about as near as eager's to the one in twice the precision."""
    wide = replace(case, args=_widen_all(case.args), kwargs=_widen_all(case.kwargs))
    function = case.function
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).double()
    try:
        exact = run(wide, function).leaves()
    except Exception:  # an op that has no such dtype
        return False
    if len(exact) != len(expected):
        return False
    triples = zip(found, expected, exact, strict=True)
    return all(_is_near(*triple) for triple in triples if isinstance(triple[1], torch.Tensor))


def _is_near(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> bool:
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    if bool(same.all()):
        return True
    if exact.dtype == theirs.dtype or exact.shape != theirs.shape:
        return False
    allowed = _TIMES_EAGERS_ERROR * (theirs[~same] - exact[~same]).abs().max()
    return bool(((ours[~same] - exact[~same]).abs() <= allowed).all())


def _widen_all(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, _widen, tree)


def _widen(x: torch.Tensor) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return x
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return x.detach().to(dtype).requires_grad_(x.requires_grad)


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Dynamo names the backend first and what it raised next.
    relevant = lines[1:] if lines and lines[0].endswith(" raised:") else lines
    return relevant[0][:_REASON_LENGTH] if relevant else type(error).__name__
