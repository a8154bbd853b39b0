"""PyTorch's own samples of its ops, on the device and on the CPU."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

import turbine
from turbine import config

# Values that are not defined, ops of CUDA, and sparse tensors.
LEFT_OUT = {"empty", "empty_like", "empty_strided", "empty_permuted", "sparse.mm"} | {
    "new_empty",
    "new_empty_strided",
    "sparse.sampled_addmm",
    "to_sparse",
}
# It wants its indices on the CPU, on every device; and the memory of a CPU tensor is not copied.
DIFFERENT = {"tensor_split", "as_strided.partial_views", "to", "equal"}
OPS = {
    f"{op.name}.{op.variant_test_name}".rstrip("."): op
    for op in op_db
    if op.name not in LEFT_OUT
    and not op.name.startswith("jiterator")
    and op.supports_dtype(torch.float32, "cpu")
}


@pytest.mark.sweep(40)
@pytest.mark.parametrize("name", sorted(OPS.keys() - DIFFERENT))
def test_an_op_on_the_device_matches_the_cpu(name: str) -> None:
    turbine.eager.enable()
    config.set(eager="op")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op = OPS[name]
        for sample in islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), 3):
            expected = _call(op, sample.input, sample.args, sample.kwargs)
            moved = tree_map_only(
                Tensor, _move, (sample.input, list(sample.args), dict(sample.kwargs))
            )
            if "device" in sample.kwargs:
                moved[2]["device"] = "turbine"
            found = _call(op, *moved)
            assert len(found) == len(expected)
            for one, right in zip(found, expected, strict=True):
                if isinstance(right, Tensor):
                    assert one.device.type == "turbine"
                    assert one.shape == right.shape
                    torch.testing.assert_close(
                        one.cpu(), right, rtol=1e-4, atol=1e-4, equal_nan=True
                    )
                else:
                    assert one == right or one != one


def _move(tensor: Tensor) -> Tensor:
    return tensor.to("turbine")


def _call(op: Any, first: Any, args: Any, kwargs: Any) -> list[Any]:
    torch.manual_seed(0)
    return tree_leaves(op(first, *args, **kwargs))
