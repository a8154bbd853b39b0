"""Calls of compiled programs return correct results that the caller owns."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.models import assert_alike, compiled
from tests.odd_models.catalog import ODD
from turbine import dtypes
from turbine.runtime import device as devices
from turbine.runtime import torch_buffers

THREADS = 4


CALLS = 200


INTEGERS = [row for row in dtypes.TABLE if row.kind in ("int", "uint")]


@pytest.fixture(scope="module")
def every_dtype() -> turbine.Artifact:
    """A tensor of every dtype in; the same values out, then the integers in reverse."""

    def function(*xs: Tensor) -> tuple[Tensor, ...]:
        integers = [x for x, row in zip(xs, dtypes.TABLE, strict=True) if row in INTEGERS]
        return (*xs, *(x.flip(0) for x in integers))

    return compiled(function, *map(zeros_and_ones, dtypes.TABLE))


def zeros_and_ones(row: dtypes.Dtype) -> Tensor:
    return torch.arange(16).remainder(2).to(row.torch)


# Memory: results are the caller's own, arguments and weights are not touched.


def test_arguments_and_results_are_not_copied(
    every_dtype: turbine.Artifact,
) -> None:
    tensors = [zeros_and_ones(row) for row in dtypes.TABLE]
    entry = every_dtype.functions["main"].entry
    device = entry.device()
    arguments = iree.VmVariantList(len(tensors))
    for row, tensor in zip(dtypes.TABLE, tensors, strict=True):
        arguments.push_ref(torch_buffers.to_view(device, tensor, row, []))
    results = entry.invoke(arguments, len(tensors) + len(INTEGERS))
    for k, (row, tensor) in enumerate(zip(dtypes.TABLE, tensors, strict=True)):
        view = results.get_as_object(k, iree.HalBufferView)
        found = torch_buffers.from_view(device, view, row)
        assert (found.dtype, found.data_ptr()) == (row.torch, tensor.data_ptr())


def test_a_returned_input_is_a_copy_with_its_dtype(every_dtype: turbine.Artifact) -> None:
    tensors = [zeros_and_ones(row) for row in dtypes.TABLE]
    for tensor, result in zip(tensors, every_dtype(*tensors), strict=False):
        assert result.dtype == tensor.dtype
        assert torch.equal(result.view(torch.uint8), tensor.view(torch.uint8))
        assert result.data_ptr() != tensor.data_ptr()


def test_a_returned_array_is_a_copy_with_its_dtype(every_dtype: turbine.Artifact) -> None:
    arrays = [(numpy.arange(16) % 2).astype(row.numpy) for row in dtypes.TABLE]
    for array, result in zip(arrays, every_dtype(*arrays), strict=False):
        assert result.dtype == array.dtype
        assert result.tobytes() == array.tobytes()
        assert not numpy.shares_memory(result, array)


def test_aliased_results_of_the_program_are_copied() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y[2:], y, y, y[:2], x, x.view(-1), x[1:].T, x

    artifact = compiled(function, torch.zeros(4, 4))
    x = torch.arange(16.0).reshape(4, 4)
    for call in (artifact, lambda x: [torch.from_numpy(a) for a in artifact(x.numpy())]):
        results = call(x)
        assert_alike(list(results), list(function(x)), 0)
        for value, result in enumerate(results):
            result.fill_(value)
        assert [set(r.flatten().tolist()) for r in results] == [{value} for value in range(8)]
        assert torch.equal(x, torch.arange(16.0).reshape(4, 4))


def test_a_single_result_is_owned_by_the_caller() -> None:
    """A program that returns its argument."""
    artifact = compiled(lambda x: x.view(-1), torch.zeros(4, 4))
    x = torch.arange(16.0).reshape(4, 4)
    for _ in range(3):
        artifact(x).fill_(7)
        artifact(x[:]).fill_(7)
    assert torch.equal(x, torch.arange(16.0).reshape(4, 4))


class ReturnsWeights(nn.Module):
    """Weights, a view of one, and values that depend on nothing else."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(64, generator=random))
        self.matrix = nn.Parameter(torch.randn(150, 150, generator=random))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weight, matrix = self.weight, self.matrix
        return x + weight, weight, weight[16:48], matrix, matrix.T, weight * 2, torch.arange(64)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("weights", ["external", "archive", "global", "inline"])
def test_writing_to_a_result_changes_no_weight(weights: str, tmp_path: Path) -> None:
    model, x = ReturnsWeights(), torch.ones(64)
    if weights == "archive":
        output = turbine.aot.export(model, args=(x,))
        artifact = output.compile(tmp_path / "m.turbine", archive=tmp_path / "m.irpa")
    else:
        artifact = turbine.aot.export(model, args=(x,), weights=weights).compile()
    expected = model(x)
    for _ in range(2):
        results = artifact(x)
        assert_alike(results, expected, 1e-6)
        for result in results:
            result.fill_(3)


def test_a_result_outlives_the_artifact_and_other_calls(
    plus: turbine.Artifact, tmp_path: Path
) -> None:
    plus.save(tmp_path / "plus.turbine")
    artifact = turbine.load(tmp_path / "plus.turbine")
    zeros = torch.zeros(200, 5)
    kept = [artifact(torch.full((200, 5), float(i)), zeros) for i in range(10)]
    arrays = [artifact(numpy.full((200, 5), i, "float32"), zeros.numpy()) for i in range(10)]
    del artifact
    gc.collect()
    rubbish = [torch.full((200, 5), -1.0) for _ in range(100)]
    assert [set(tensor.flatten().tolist()) for tensor in kept] == [{i} for i in range(10)]
    assert [set(array.flatten().tolist()) for array in arrays] == [{i} for i in range(10)]
    del rubbish


def test_an_artifact_is_freed_after_its_last_reference(
    plus: turbine.Artifact, tmp_path: Path
) -> None:
    plus.save(tmp_path / "plus.turbine")
    artifact = turbine.load(tmp_path / "plus.turbine")
    ones = torch.ones(6, 5)
    result = artifact(ones, ones)
    mapped: Any = artifact._contents.data.obj
    gc.disable()
    try:
        del artifact
        # A map can be closed only when no one looks at it any more.
        mapped.close()
    finally:
        gc.enable()
    assert torch.equal(result, 3 * ones)


def test_calls_do_not_leak_memory(plus: turbine.Artifact) -> None:
    x = torch.zeros(100_000, 5)
    unaligned = torch.zeros(500_001)[1:].reshape(x.shape)
    plus(x, unaligned)
    before = resident_bytes()
    for _ in range(40):
        plus(x, unaligned)
        plus(x.numpy(), unaligned.numpy())
    assert resident_bytes() - before < 20 * x.nbytes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# Types and layouts: whatever a caller passes is read as it was meant.


def test_computed_integers_keep_sign_and_width(every_dtype: turbine.Artifact) -> None:
    values = {row.name: extremes(row) for row in INTEGERS}
    tensors = [
        torch.tensor(values[row.name], dtype=row.torch) if row in INTEGERS else zeros_and_ones(row)
        for row in dtypes.TABLE
    ]
    results = every_dtype(*tensors)[-len(INTEGERS) :]
    assert [r.dtype for r in results] == [row.torch for row in INTEGERS]
    assert [r.tolist() for r in results] == [values[row.name][::-1] for row in INTEGERS]
    arrays = [
        numpy.array(values[row.name], row.numpy) if row in INTEGERS else numpy.zeros(16, row.numpy)
        for row in dtypes.TABLE
    ]
    results = every_dtype(*arrays)[-len(INTEGERS) :]
    assert [r.dtype for r in results] == [row.numpy for row in INTEGERS]
    assert [r.tolist() for r in results] == [values[row.name][::-1] for row in INTEGERS]


def extremes(row: dtypes.Dtype) -> list[int]:
    limits = torch.iinfo(row.torch)
    return [*(int(limits.max) - i for i in range(8)), *(int(limits.min) + i for i in range(8))]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "float16", "bfloat16"])
def test_one_result_has_the_dtype_of_the_signature(name: str) -> None:
    row = dtypes.from_torch_name(name)
    x = zeros_and_ones(row)
    artifact = compiled(lambda x: x.flip(0), x)
    for _ in range(3):
        assert_alike(artifact(x), x.flip(0), 0)


def test_lazily_conjugated_and_negated_views_are_resolved(every_dtype: turbine.Artifact) -> None:
    tensors = {row.name: zeros_and_ones(row) for row in dtypes.TABLE}
    values = torch.complex(torch.arange(16.0), torch.ones(16))
    tensors["complex64"], tensors["float32"] = values.conj(), values.conj().imag
    results = dict(zip(tensors, every_dtype(*tensors.values()), strict=False))
    assert torch.equal(results["complex64"], values.conj())
    assert torch.equal(results["float32"], -torch.ones(16))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.T.clone().T,
    "strided": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "sliced": lambda x: torch.cat([torch.zeros(1), x.reshape(-1)])[1:].reshape(x.shape),
    "needs gradient": lambda x: x.clone().requires_grad_(),
    "a parameter": lambda x: nn.Parameter(x.clone()),
    "expanded": lambda x: x[:1, :1].clone().expand(x.shape),
    "negated": lambda x: torch._neg_view(-x),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arguments_of_any_layout_are_accepted(
    name: str, plus: turbine.Artifact, fixed: turbine.Artifact
) -> None:
    values = torch.arange(30.0).reshape(6, 5)
    x = LAYOUTS[name](values)
    before = x.detach().clone()
    expected = before + 2 * values
    for artifact in (plus, fixed):
        assert_alike(artifact(x, values), expected, 0)
        array = x.detach().resolve_neg().numpy()
        assert artifact(array, values.numpy()).tolist() == expected.tolist()
    assert torch.equal(x.detach(), before)


def test_results_are_tensors_if_an_argument_is(plus: turbine.Artifact) -> None:
    x = torch.ones(6, 5)
    assert isinstance(plus(x.numpy(), x), Tensor)
    assert isinstance(plus(x, x.numpy()), Tensor)
    assert isinstance(plus(x.numpy(), x.numpy()), numpy.ndarray)


def test_results_without_arguments_are_tensors() -> None:
    assert torch.equal(compiled(lambda: torch.arange(3) + 1)(), torch.tensor([1, 2, 3]))


# Threads and drivers.


@pytest.mark.parametrize("driver", [devices.TASK, devices.SYNC])
def test_concurrent_calls_return_their_own_results(
    driver: str, plus: turbine.Artifact, tmp_path: Path
) -> None:
    plus.save(tmp_path / "plus.turbine")
    with turbine.config.override(sync_limit_mflop=1.0 if driver == devices.SYNC else 0.0):
        artifact = turbine.load(tmp_path / "plus.turbine")
    assert artifact.driver == driver
    start = threading.Barrier(THREADS)

    def work(number: int) -> int:
        right = 0
        start.wait()
        for i in range(CALLS):
            x = torch.full((3 + number, 5), float(number * CALLS + i))
            right += torch.equal(artifact(x, x), 3 * x)
            right += bool((artifact(x.numpy(), x.numpy()) == 3 * x.numpy()).all())
        return right

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [2 * CALLS] * THREADS


def test_concurrent_state_updates_are_not_lost() -> None:
    example = ODD["counter"]()
    artifact = turbine.aot.export(example.model, args=example.args).compile()
    zeros = torch.zeros(3, 4)
    start = threading.Barrier(THREADS)

    def work(_: int) -> list[int]:
        start.wait()
        return [int(artifact(zeros)[0, 0]) for _ in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        counts = list(pool.map(work, range(THREADS)))
    assert all(mine == sorted(mine) for mine in counts)
    assert sorted(chain.from_iterable(counts)) == list(range(1, THREADS * CALLS + 1))


def test_a_small_program_runs_on_the_calling_thread(plus: turbine.Artifact) -> None:
    assert plus.driver == devices.SYNC


def test_a_large_program_runs_on_all_cores() -> None:
    artifact = compiled(lambda x, y: x @ y, torch.ones(128, 128), torch.ones(128, 128))
    assert artifact.driver == devices.TASK
    x = torch.eye(128) * 3
    assert torch.equal(artifact(x, x), x @ x)
