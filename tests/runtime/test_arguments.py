"""Arguments are checked against the signature, and an invalid one is named."""

from __future__ import annotations

import re
from dataclasses import replace
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
from tests.odd_models.catalog import ODD
from turbine import errors
from turbine.runtime.caller import Caller

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
def test_an_invalid_argument_is_named(
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


def test_a_duplicate_argument_is_named(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"given twice=\['x'\]"):
        picky(right["x"], **right)


def test_positional_and_keyword_arguments_are_equivalent(
    picky: turbine.Artifact, right: dict[str, Any]
) -> None:
    x, pair, scale, mode = right.values()
    assert torch.equal(picky(x, pair, scale=scale, mode=mode), FOURS)
    assert torch.equal(picky(x, pair=pair, mode=mode, scale=scale), FOURS)
    assert torch.equal(picky(mode=mode, scale=scale, pair=pair, x=x), FOURS)


def test_a_list_is_accepted_for_a_tuple(picky: turbine.Artifact, right: dict[str, Any]) -> None:
    assert torch.equal(picky(**{**right, "pair": list(right["pair"])}), FOURS)


def test_tensors_without_storage_are_rejected(
    picky: turbine.Artifact, right: dict[str, Any]
) -> None:
    freed = torch.ones(2, 3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(errors.ArgumentError, match="'x' has no memory"):
        picky(**{**right, "x": freed})
    with pytest.raises(errors.ArgumentError, match="'x' has no memory"):
        torch.vmap(lambda x: picky(**{**right, "x": x}))(torch.ones(4, 2, 3))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
def test_the_fast_path_rejects_invalid_arguments(fixed: turbine.Artifact) -> None:
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


def test_the_fast_path_rechecks_changed_arguments(plus: turbine.Artifact) -> None:
    x = torch.randn(6, 5)
    negated = torch._neg_view(torch.randn(6, 5))
    alike = [(x, x), (x[:4], x[:4]), (x, negated), (negated, x), (x.T.contiguous().T, x)]
    for a, b in [*alike, (x.clone().requires_grad_(), x), *alike]:
        for _ in range(2):
            torch.testing.assert_close(plus(a, b), (a + 2 * b).detach())
        with pytest.raises(errors.ArgumentError, match="has size 3 along axis 0"):
            plus(a, b[:3])


def test_constants_are_compared_by_type_and_value() -> None:
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
def test_sizes_in_range_are_accepted(length: int, coarse_and_fine: turbine.Artifact) -> None:
    coarse, fine = torch.ones(2, length, 4), torch.ones(2, 2 * length, 4)
    expected = ODD["dynamic_sequence"]().model(coarse, fine).detach()
    assert_alike(coarse_and_fine(coarse, fine), expected, 1e-6)


@pytest.mark.parametrize("length", [1, 129])
def test_sizes_out_of_range_are_rejected(length: int, coarse_and_fine: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match="which is out of range") as caught:
        coarse_and_fine(torch.ones(2, length, 4), torch.ones(2, 2 * length, 4))
    assert f"argument 'coarse' has size {length} along axis 1" in str(caught.value)


def test_derived_sizes_are_checked(coarse_and_fine: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match=r"'fine' has size 11 along axis 1.*= 10"):
        coarse_and_fine(torch.ones(2, 5, 4), torch.ones(2, 11, 4))


def test_ranks_are_checked_for_dynamic_shapes(coarse_and_fine: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match="'coarse' has 2 dims"):
        coarse_and_fine(torch.ones(2, 4), torch.ones(2, 10, 4))


@pytest.mark.parametrize(("first", "second"), [(7, 8), (7, 1), (1, 7), (0, 1)])
def test_shared_sizes_must_agree(first: int, second: int, plus: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match=f"'arg1' has size {second} along axis 0"):
        plus(torch.ones(first, 5), torch.ones(second, 5))


def test_an_empty_batch_returns_an_empty_result(plus: turbine.Artifact) -> None:
    assert plus(torch.ones(0, 5), torch.ones(0, 5)).shape == (0, 5)
    assert plus(*numpy.ones((2, 0, 5), "float32")).shape == (0, 5)


class Halves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x.reshape(-1, 2).sum(1), x.shape[0] // 2


def test_sizes_are_solved_from_multiples() -> None:
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


def test_guards_of_the_trace_are_checked(plus: turbine.Artifact) -> None:
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


def test_int_arguments_are_checked_at_run_time() -> None:
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


def test_a_call_after_a_runtime_error_works(picky: turbine.Artifact) -> None:
    entry = picky.functions["main"].entry
    with pytest.raises(errors.RunError, match="the compiled program failed"):
        entry.invoke(iree.VmVariantList(1), 1)
    x = torch.ones(2, 3)
    found = picky(x, (x, 0 * x), scale=torch.tensor(2.0), mode="sum")
    assert torch.equal(found, FOURS)
