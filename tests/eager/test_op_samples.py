"""PyTorch's own samples of its ops, on the device and on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import turbine
from turbine import config
from turbine.coverage import samples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    OPS = samples.ops()
# Sparse tensors; what wants its indices on the CPU on every device; what reads the memory around
# a tensor, which is not copied; copies to the CPU, and results there unless a device is given.
LEFT_OUT = {
    "sparse.mm.reduce",
    "sparse.sampled_addmm",
    "to_sparse",
    "tensor_split",
    "as_strided.partial_views",
    "to",
    "linspace",
}


@pytest.mark.sweep(25)
@pytest.mark.parametrize("name", sorted(OPS.keys() - LEFT_OUT))
@pytest.mark.filterwarnings("ignore")
def test_an_op_on_the_device_matches_the_cpu(name: str) -> None:
    turbine.eager.enable()
    config.set(eager="op")
    op = OPS[name]
    with torch.random.fork_rng(devices=()):
        for case in samples.cases(op, 0, 3):
            try:
                expected = _call(case, case.args, case.kwargs)
            except Exception:  # an op of another device, or none
                continue
            args, kwargs = tree_map_only(Tensor, _move, (list(case.args), case.kwargs))
            if "device" in kwargs:
                kwargs["device"] = "turbine"
            found = _call(case, args, kwargs)
            assert len(found) == len(expected)
            if not samples.is_uninitialized(op):
                for one, right in zip(found, expected, strict=True):
                    _compare(one, right)


def _move(tensor: Tensor) -> Tensor:
    return tensor.to("turbine")


def _call(case: samples.Case, args: Any, kwargs: Any) -> list[Any]:
    samples.set_seed(case.seed)
    return tree_leaves(case.function(*args, **kwargs))


def _compare(found: Any, expected: Any) -> None:
    if not isinstance(expected, Tensor):
        assert found == expected or expected != expected
        return
    assert found.device.type == "turbine"
    assert found.shape == expected.shape
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)
