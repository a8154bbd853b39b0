"""Small models and comparisons that several test files share."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

import turbine
from turbine.zoo.example import Example


class Fn(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def compiled(function: Any, *args: Any, **export_options: Any) -> turbine.Artifact:
    """The artifact of a function of tensors."""
    return turbine.aot.export(Fn(function).eval(), args=args, **export_options).compile()


def compare_with_eager(artifact: turbine.Artifact, example: Example, tolerance: float) -> None:
    """Call both on copies of the arguments; compare results, structure and mutated arguments."""
    eager_args, eager_kwargs = copy.deepcopy((example.args, example.kwargs))
    our_args, our_kwargs = copy.deepcopy((example.args, example.kwargs))
    with torch.no_grad():
        expected = example.model(*eager_args, **eager_kwargs)
    found = artifact(*our_args, **our_kwargs)
    assert_alike((found, our_args, our_kwargs), (expected, eager_args, eager_kwargs), tolerance)


def assert_alike(found: Any, expected: Any, tolerance: float) -> None:
    """Same nesting, dtypes and shapes; values within a tolerance relative to the largest."""
    found_leaves, found_tree = torch_pytree.tree_flatten(found)
    expected_leaves, expected_tree = torch_pytree.tree_flatten(expected)
    assert found_tree == expected_tree
    for ours, theirs in zip(found_leaves, expected_leaves, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert type(ours) is type(theirs)
            assert ours == theirs
            continue
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert relative_error(ours, theirs) <= tolerance


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest expected value."""
    if expected.numel() == 0:
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (found.to(wide) - expected.to(wide)).abs().max().item()
    return float(difference / max(expected.to(wide).abs().max().item(), 1e-30))
