"""Rules give tensors with the strides of eager PyTorch, which callers see and views need."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as torch_pytree
from torch.utils._python_dispatch import TorchDispatchMode

from turbine.capture.decompositions import current_training_decompositions
from turbine.capture.rules import RULES

pytestmark = [pytest.mark.sweep(25), pytest.mark.filterwarnings("ignore")]

aten = torch.ops.aten
DECOMPOSITIONS = {op: rule for op, rule in current_training_decompositions().items() if op in RULES}
# Only the gradient reads the second result, and it takes any strides.
del DECOMPOSITIONS[aten._scaled_dot_product_flash_attention_for_cpu.default]


class RulesBeside(TorchDispatchMode):
    """Applies the rule of each op beside it, and compares strides."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        expected = func(*args, **(kwargs or {}))
        found = _apply(func, args, kwargs or {})
        if found is not NotImplemented:
            for ours, theirs in zip(_tensors(found), _tensors(expected), strict=True):
                # Of some results that nobody reads, rules leave out the elements.
                if ours.shape == theirs.shape:
                    operands = [operand.stride() for operand in _tensors(args)]
                    assert _strides(ours) == _strides(theirs), (func, operands)
        return expected


def _apply(op: Any, args: Any, kwargs: Any) -> Any:
    try:
        return DECOMPOSITIONS[op](*args, **kwargs) if op in DECOMPOSITIONS else NotImplemented
    except (RuntimeError, TypeError):  # what the rule rejects, or does only while it is traced
        return NotImplemented


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch_pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _strides(tensor: Tensor) -> list[int]:
    """The strides that mean something."""
    if tensor.numel() == 0:
        return []
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _samples(op: Any) -> Iterator[Any]:
    dtypes = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else next(iter(dtypes), None)
    if dtype is not None:
        yield from islice(op.sample_inputs("cpu", dtype), 40)


ON_CPUS = [op for op in op_db if not op.name.startswith("jiterator")]


@pytest.mark.parametrize("op", ON_CPUS, ids=lambda op: op.formatted_name)
def test_rules_give_eager_strides(op: Any) -> None:
    for sample in _samples(op):
        with RulesBeside():  # type: ignore[no-untyped-call]
            op(sample.input, *sample.args, **sample.kwargs)


ORDERINGS = {
    "sort": lambda x, dim: x.sort(dim),
    "topk": lambda x, dim: x.topk(2, dim),
    "kthvalue": lambda x, dim: x.kthvalue(2, dim),
    "median": lambda x, dim: x.median(dim),
    "cummax": lambda x, dim: x.cummax(dim),
}


@pytest.mark.parametrize("name", ORDERINGS)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_orderings_of_permuted_tensors_give_eager_strides(name: str, dim: int) -> None:
    x = torch.randn(4, 6, 5)
    for view in (x, x.permute(2, 0, 1), x[:, ::2], x[..., :1].expand(4, 6, 5)):
        with RulesBeside():  # type: ignore[no-untyped-call]
            ORDERINGS[name](view, dim)
