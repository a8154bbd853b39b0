"""Calls of compiled programs: what comes back is right, and is the caller's own."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim

import turbine
from tests.models import assert_alike, compiled
from turbine import dtypes, errors
from turbine.runtime import device as devices
from turbine.runtime import torch_buffers
from turbine.runtime.caller import Caller
from turbine.zoo.odd import ODD

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


@pytest.fixture(scope="module")
def plus() -> turbine.Artifact:
    """x + 2y, of any number of rows."""
    rows = Dim("rows", min=0, max=2**20)
    shapes = (({0: rows}, {0: rows}),)
    x = torch.zeros(6, 5)
    return compiled(lambda x, y: x + 2 * y, x, x.clone(), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def fixed() -> turbine.Artifact:
    """x + 2y of one shape, with one result: what most calls look like. It was called before."""
    x = torch.zeros(6, 5)
    artifact = compiled(lambda x, y: x + 2 * y, x, x.clone())
    artifact(x, x)
    return artifact


def zeros_and_ones(row: dtypes.Dtype) -> Tensor:
    return torch.arange(16).remainder(2).to(row.torch)


# Memory: results are the caller's own, arguments and weights are not touched.


def test_a_tensor_reaches_the_program_and_returns_without_a_copy(
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


def test_results_that_share_memory_in_the_program_do_not_outside() -> None:
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


def test_one_result_is_the_callers_own_too() -> None:
    """The plainest program there is gives back its argument."""
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


def test_an_artifact_is_freed_with_its_last_reference(
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


def test_calls_hold_no_memory(plus: turbine.Artifact) -> None:
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


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "float16", "bfloat16"])
def test_one_result_has_the_dtype_of_the_signature(name: str) -> None:
    row = dtypes.from_torch_name(name)
    x = zeros_and_ones(row)
    artifact = compiled(lambda x: x.flip(0), x)
    for _ in range(3):
        assert_alike(artifact(x), x.flip(0), 0)


def test_conjugated_and_negated_views_are_read_as_they_look(every_dtype: turbine.Artifact) -> None:
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
def test_layout_of_an_argument_does_not_matter(
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


def test_one_torch_argument_makes_torch_results(plus: turbine.Artifact) -> None:
    x = torch.ones(6, 5)
    assert isinstance(plus(x.numpy(), x), Tensor)
    assert isinstance(plus(x, x.numpy()), Tensor)
    assert isinstance(plus(x.numpy(), x.numpy()), numpy.ndarray)


def test_a_program_without_arguments_gives_tensors() -> None:
    assert torch.equal(compiled(lambda: torch.arange(3) + 1)(), torch.tensor([1, 2, 3]))


# Threads and drivers.


@pytest.mark.parametrize("driver", [devices.TASK, devices.SYNC])
def test_every_thread_gets_its_own_numbers(
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


def test_no_increment_of_a_counter_is_lost() -> None:
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


# Refusals: a wrong argument is named, with what was expected, and the next call works.


class Arguments(nn.Module):
    def forward(
        self, x: Tensor, pair: tuple[Tensor, Tensor], *, scale: Tensor, mode: str = "sum"
    ) -> Tensor:
        return (x + pair[0] - pair[1]) * scale


@pytest.fixture(scope="module")
def picky() -> turbine.Artifact:
    z = torch.zeros
    args = (z(2, 3), (z(2, 3), z(2, 3)))
    return turbine.aot.export(
        Arguments(), args=args, kwargs={"scale": z(()), "mode": "sum"}
    ).compile()


@pytest.fixture
def right() -> dict[str, Any]:
    return {
        "x": torch.ones(2, 3),
        "pair": (torch.ones(2, 3), torch.zeros(2, 3)),
        "scale": torch.tensor(2.0),
        "mode": "sum",
    }


FOURS = torch.full((2, 3), 4.0)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"x": torch.ones(2, 3, 1)}, "'x' has 3 dims (2, 3, 1), expected 2"),
    "shape": ({"x": torch.ones(2, 4)}, "'x' has size 4 along axis 1, expected 3"),
    "dtype": ({"x": torch.ones(2, 3).double()}, "'x' has dtype torch.float64, expected torch.f"),
    "array dtype": ({"x": numpy.ones((2, 3))}, "'x' has dtype float64, expected float32"),
    "device": ({"x": torch.ones(2, 3, device="meta")}, "'x' is on device meta, expected cpu"),
    "sparse": ({"x": torch.ones(2, 3).to_sparse()}, "'x' has layout torch.sparse_coo, expected"),
    "float for a tensor": ({"scale": 2.0}, "'scale' is a float, expected a tensor"),
    "None for a tensor": ({"x": None}, "'x' is a NoneType, expected a tensor"),
    "nested": ({"pair": (torch.ones(2, 3), torch.ones(3))}, "'pair[1]' has 1 dims (3,), expected"),
    "too few in a pair": ({"pair": (torch.ones(2, 3),)}, "pair has 1 items, expected 2"),
    "dict for a pair": ({"pair": {}}, "pair is a dict, expected a tuple"),
    "tensor for a pair": ({"pair": torch.ones(2, 2, 3)}, "pair is a Tensor, expected a tuple"),
    "another constant": ({"mode": "mean"}, "'mode' is 'mean', but the model was exported with 's"),
    "constant of another type": ({"mode": None}, "'mode' is None"),
    "extra keyword": ({"bias": 1}, "extra=['bias']"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(
    name: str, picky: turbine.Artifact, right: dict[str, Any]
) -> None:
    change, message = WRONG[name]
    with pytest.raises(errors.ArgumentError) as caught:
        picky(**{**right, **change})
    assert message in str(caught.value)
    assert torch.equal(picky(**right), FOURS)


def test_missing_arguments_are_listed(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"missing=\['pair', 'scale', 'mode'\]"):
        picky(right["x"])


def test_too_many_arguments_are_counted(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    x, pair, scale, mode = right.values()
    with pytest.raises(errors.ArgumentError, match="1 positional"):
        picky(x, pair, x, scale=scale, mode=mode)


def test_an_argument_given_twice_is_named(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"given twice=\['x'\]"):
        picky(right["x"], **right)


def test_position_and_keyword_mean_the_same(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    x, pair, scale, mode = right.values()
    assert torch.equal(picky(x, pair, scale=scale, mode=mode), FOURS)
    assert torch.equal(picky(x, pair=pair, mode=mode, scale=scale), FOURS)
    assert torch.equal(picky(mode=mode, scale=scale, pair=pair, x=x), FOURS)


def test_a_list_does_for_a_tuple(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    assert torch.equal(picky(**{**right, "pair": list(right["pair"])}), FOURS)


def test_a_tensor_without_memory_is_refused(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    freed = torch.ones(2, 3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(errors.ArgumentError, match="'x' has no memory"):
        picky(**{**right, "x": freed})
    with pytest.raises(errors.ArgumentError, match="'x' has no memory"):
        torch.vmap(lambda x: picky(**{**right, "x": x}))(torch.ones(4, 2, 3))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
def test_a_plain_call_refuses_what_any_other_does(fixed: turbine.Artifact) -> None:
    x = torch.ones(6, 5)
    freed = torch.ones(6, 5)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.ones(6, 5)
    for wrong, message in (
        (freed, "has no memory"),
        (fake, "has no memory"),
        (x.to_sparse(), "has layout torch.sparse_coo"),
        (x.to("meta"), "is on device meta"),
        (x.double(), "has dtype torch.float64"),
        (x[:5], "has size 5 along axis 0, expected 6"),
        (x[None], "has 3 dims"),
        (2.0, "is a float, expected a tensor"),
    ):
        for place in (0, 1):
            arguments: list[Any] = [x, x]
            arguments[place] = wrong
            with pytest.raises(errors.ArgumentError, match=f"'arg{place}' {message}"):
                fixed(*arguments)
    with pytest.raises(errors.ArgumentError, match="'arg0' has no memory"):
        torch.vmap(lambda row: fixed(row, x))(torch.ones(3, 6, 5))
    with pytest.raises(errors.ArgumentError, match=r"missing=\['arg1'\]"):
        fixed(x)
    assert torch.equal(fixed(x, x), 3 * x)


def test_a_call_unlike_the_last_is_checked_and_right(plus: turbine.Artifact) -> None:
    x = torch.randn(6, 5)
    negated = torch._neg_view(torch.randn(6, 5))
    alike = [(x, x), (x[:4], x[:4]), (x, negated), (negated, x), (x.T.contiguous().T, x)]
    for a, b in [*alike, (x.clone().requires_grad_(), x), *alike]:
        for _ in range(2):
            torch.testing.assert_close(plus(a, b), (a + 2 * b).detach())
        with pytest.raises(errors.ArgumentError, match="has size 3 along axis 0"):
            plus(a, b[:3])


def test_a_constant_is_the_same_only_if_it_is_spelled_the_same() -> None:
    constants = (0.0, 1, True, float("nan"))
    x = torch.ones(2)
    artifact = compiled(lambda x, a, b, c, d: x + a + b + c, x, *constants)
    assert torch.equal(artifact(x, *constants), torch.full((2,), 3.0))
    for place, other in ((0, -0.0), (0, 0), (1, True), (1, 1.0), (2, 1), (3, 0.0), (3, None)):
        changed = [other if i == place else value for i, value in enumerate(constants)]
        with pytest.raises(errors.ArgumentError, match=f"'arg{place + 1}' is .*exported with"):
            artifact(x, *changed)


# Sizes: those that differ from call to call are held to what the export promised.


@pytest.fixture(scope="module")
def coarse_and_fine() -> turbine.Artifact:
    example = ODD["dynamic_sequence"]()
    return turbine.aot.export(
        example.model, args=example.args, dynamic_shapes=example.dynamic_shapes
    ).compile()


@pytest.mark.parametrize("length", [2, 7, 128])
def test_every_size_in_range_is_taken(length: int, coarse_and_fine: turbine.Artifact) -> None:
    coarse, fine = torch.ones(2, length, 4), torch.ones(2, 2 * length, 4)
    expected = ODD["dynamic_sequence"]().model(coarse, fine).detach()
    assert_alike(coarse_and_fine(coarse, fine), expected, 1e-6)


@pytest.mark.parametrize("length", [1, 129])
def test_a_size_out_of_range_is_refused(length: int, coarse_and_fine: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match="which is out of range") as caught:
        coarse_and_fine(torch.ones(2, length, 4), torch.ones(2, 2 * length, 4))
    assert f"argument 'coarse' has size {length} along axis 1" in str(caught.value)


def test_a_size_must_follow_from_those_it_depends_on(coarse_and_fine: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match=r"'fine' has size 11 along axis 1.*= 10"):
        coarse_and_fine(torch.ones(2, 5, 4), torch.ones(2, 11, 4))


def test_the_number_of_dims_is_checked_where_sizes_vary(coarse_and_fine: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match="'coarse' has 2 dims"):
        coarse_and_fine(torch.ones(2, 4), torch.ones(2, 10, 4))


@pytest.mark.parametrize(("first", "second"), [(7, 8), (7, 1), (1, 7), (0, 1)])
def test_a_shared_size_must_agree(first: int, second: int, plus: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match=f"'arg1' has size {second} along axis 0"):
        plus(torch.ones(first, 5), torch.ones(second, 5))


def test_a_batch_of_nothing_gives_nothing(plus: turbine.Artifact) -> None:
    assert plus(torch.ones(0, 5), torch.ones(0, 5)).shape == (0, 5)
    assert plus(*numpy.ones((2, 0, 5), "float32")).shape == (0, 5)


class Halves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x.reshape(-1, 2).sum(1), x.shape[0] // 2


def test_a_size_known_only_by_a_multiple_is_solved_for() -> None:
    half = Dim("half", min=2, max=50)
    shapes = {"x": {0: 2 * half}}
    artifact = turbine.aot.export(Halves(), args=(torch.ones(10),), dynamic_shapes=shapes).compile()
    sums, count = artifact(torch.ones(14))
    assert (sums.tolist(), count) == ([2.0] * 7, 7)
    with pytest.raises(errors.ArgumentError, match="has size 15 along axis 0, expected 2"):
        artifact(torch.ones(15))
    with pytest.raises(
        errors.ArgumentError, match=r"has size 102 along axis 0 \(.*=51\), which is out of range"
    ):
        artifact(torch.ones(102))


def test_what_the_trace_took_for_granted_of_sizes_is_checked(plus: turbine.Artifact) -> None:
    name = plus.signature.inputs[0].shape[0]
    conditions = (f"Eq(Mod({name}, 2), 0)", f"{name} <= 100")
    signature = replace(plus.signature, conditions=conditions)
    caller = Caller(signature, plus.functions["main"].entry, plus._contents.span)
    assert caller.call((torch.ones(4, 5), torch.ones(4, 5)), {}).shape == (4, 5)
    for rows, needed in ((5, "arg0.shape[0] % 2 == 0"), (102, "arg0.shape[0] <= 100")):
        x = torch.ones(rows, 5)
        told = f"argument 'arg0' has size {rows} along axis 0; the program needs {needed}"
        with pytest.raises(errors.ArgumentError, match=re.escape(told)):
            caller.call((x, x), {})


class FirstOnes(nn.Module):
    def forward(self, x: Tensor, count: int) -> tuple[Tensor, int]:
        return x[:count] + count, count * 2


def test_run_time_ints_are_checked() -> None:
    shapes = {"x": None, "count": Dim.DYNAMIC}
    artifact = turbine.aot.export(
        FirstOnes(), args=(torch.zeros(10), 3), dynamic_shapes=shapes
    ).compile()
    values, double = artifact(torch.zeros(10), 5)
    assert (values.tolist(), double) == ([5.0] * 5, 10)
    for count, message in (
        (11, "'count' is 11, which is out of range"),
        (-1, "'count' is -1, which is out of range"),
        (2**70, "expected an int of 64 bits"),
        (2.0, "'count' is a float, expected an int"),
        (None, "'count' is a NoneType, expected an int"),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            artifact(torch.zeros(10), count)


# Failures.


def test_after_a_failure_at_run_time_the_next_call_works(picky: turbine.Artifact) -> None:
    entry = picky.functions["main"].entry
    with pytest.raises(errors.RunError, match="the compiled program failed"):
        entry.invoke(iree.VmVariantList(1), 1)
    x = torch.ones(2, 3)
    found = picky(x, (x, 0 * x), scale=torch.tensor(2.0), mode="sum")
    assert torch.equal(found, FOURS)
