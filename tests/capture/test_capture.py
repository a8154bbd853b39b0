"""Capture: arguments, names, and models that cannot be captured."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import turbine
from tests.models import Fn, compiled


def test_one_tensor_passed_twice_is_two_arguments() -> None:
    x = torch.ones(3)
    artifact = compiled(lambda a, b: a - 10 * b, x, x)
    torch.testing.assert_close(artifact(torch.full((3,), 5.0), x), torch.full((3,), -5.0))


def test_a_view_of_another_argument_is_an_argument() -> None:
    x = torch.randn(6, 6)
    for first in (x[:4], x.t()):
        artifact = compiled(torch.mm, first, x)
        torch.testing.assert_close(artifact(first, x), first @ x)


def test_dynamic_sizes_keep_the_names_the_user_gave() -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
            return a.sum() + b.sum(), a.shape[0] * 3

    length = torch.export.Dim("length", min=2, max=64)
    output = turbine.aot.export(
        Model(),
        args=(torch.ones(4), torch.ones(8)),
        dynamic_shapes={"a": {0: length}, "b": {0: 2 * length}},
    )
    assert output.signature.text() == (
        "(a: float32[length], b: float32[2*length]) -> (float32[], size 3*length)"
    )
    assert output.signature.symbols["length"].maximum == 64


def test_an_exported_program_keeps_the_names_of_arguments_and_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: dict[str, torch.Tensor], y: torch.Tensor, scale: int = 1) -> object:
            return {"sum": x["a"].sum() + y * scale, "all": (x["b"],)}

    rows = torch.export.Dim("rows", min=2, max=8)
    x = {"a": torch.ones(3, 4), "b": torch.ones(5)}
    program = torch.export.export(
        Model(),
        (x, torch.ones(3, 4), 2),
        dynamic_shapes={"x": {"a": {0: rows}, "b": None}, "y": {0: rows}, "scale": None},
    )
    assert turbine.aot.export(program).signature.text() == (
        "(x['a']: float32[rows, 4], x['b']: float32[5], y: float32[rows, 4], scale: fixed at 2) "
        "-> {'sum': float32[rows, 4], 'all': (float32[5],)}"
    )


def test_a_model_pytorch_cannot_export_is_an_export_error_with_the_cause() -> None:
    def branches_on_data(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(turbine.errors.ExportError, match="could not export Fn") as raised:
        turbine.aot.export(Fn(branches_on_data), args=(torch.ones(3),))
    assert raised.value.__cause__ is not None


def test_a_failed_export_logs_nothing_beside_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("torch.export._trace"), "handle", logged.append)
    shapes = ({0: Dim("rows")},)
    with pytest.raises(turbine.errors.ExportError, match="same reduction dim"):
        turbine.aot.export(nn.Linear(3, 3), args=(torch.ones(2, 4),), dynamic_shapes=shapes)
    assert not logged


def test_a_model_that_only_dynamo_traces_is_exported() -> None:
    def through_numpy(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(numpy.sin(x.numpy())) * 2

    x = torch.randn(3)
    torch.testing.assert_close(compiled(through_numpy, x)(x), through_numpy(x))


def test_a_trace_that_only_dynamo_completes_prints_nothing() -> None:
    # torch's handler of logs writes to the stderr that it found when it was imported.
    script = (
        "import sys, torch, turbine\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        print('the user prints this', file=sys.stderr)\n"
        "        return x * int((x > 0).sum())\n"
        "print(turbine.aot.export(Model(), args=(torch.ones(3),)).signature.text())\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "(x: float32[3]) -> float32[3]\n", done.stderr
    assert {*done.stderr.splitlines()} == {"the user prints this"}


def test_unsupported_ops_are_all_named_with_the_users_line() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nextafter(x, x) + torch.igamma(x, x)

    with pytest.raises(turbine.errors.UnsupportedOp) as raised:
        turbine.aot.export(Model(), args=(torch.ones(3),)).compile()
    assert "nextafter" in raised.value.fact
    assert "igamma" in raised.value.fact
    assert "test_capture.py" in str(raised.value.where)


@pytest.mark.parametrize("bad", [torch.sin, "model", None])
def test_values_other_than_modules_are_rejected(bad: object) -> None:
    with pytest.raises(turbine.errors.ExportError, match=r"nn\.Module"):
        turbine.aot.export(bad, args=(torch.ones(3),))  # type: ignore[arg-type]


def test_args_must_be_a_tuple() -> None:
    with pytest.raises(turbine.errors.ExportError, match="expected a tuple"):
        turbine.aot.export(torch.nn.Linear(2, 2), args=torch.ones(1, 2))  # type: ignore[arg-type]


class Chooses(torch.nn.Module):
    """Branches with weights, an index, several results and a division that fails in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)

    def forward(
        self, x: torch.Tensor, index: torch.Tensor, divisor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def divide(x: torch.Tensor, index: torch.Tensor, divisor: torch.Tensor) -> Any:
            return self.first(x), torch.div(index, divisor, rounding_mode="floor")

        def select(x: torch.Tensor, index: torch.Tensor, divisor: torch.Tensor) -> Any:
            return self.second(x).index_select(0, index), index + 1

        y, z = torch.cond(divisor != 0, divide, select, (x, index, divisor))
        return y * 2, z


def test_only_the_taken_branch_of_cond_runs() -> None:
    model, x, index = Chooses(), torch.linspace(-1.0, 1.0, 6).reshape(2, 3), torch.tensor([1, 0])
    artifact = turbine.aot.export(model, args=(x, index, torch.tensor(2))).compile()
    for divisor in (2, 0):
        args = (x, index, torch.tensor(divisor))
        torch.testing.assert_close(artifact(*args), model(*args))
    artifact(x, index + 5, torch.tensor(2))
    with pytest.raises(turbine.errors.RunError, match="index out of range"):
        artifact(x, index + 5, torch.tensor(0))


def coo() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def jagged(x: torch.Tensor, layout: torch.layout = torch.jagged) -> torch.Tensor:
    return torch.nested.nested_tensor([x, x[:1]], layout=layout)


class Weighted(torch.nn.Module):
    """A product with a sparse buffer or parameter."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        if is_buffer:
            self.register_buffer("sparse", coo())
        else:
            self.sparse = torch.nn.Parameter(coo())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sparse @ x


def double(x: Any) -> Any:
    return x["pair"][1] * 2


def not_dense() -> list[tuple[torch.nn.Module, Any, str]]:
    x, rows, linear = torch.ones(3), torch.ones(3, 2), torch.nn.Linear(3, 3)
    to_csr, to_coo = Fn(lambda x: x.to_sparse_csr() @ x), Fn(lambda x: (x.to_sparse() * 2).sum())
    return [
        (linear, coo(), "argument input has layout torch.sparse_coo"),
        (linear, coo().to_sparse_csr(), "argument input has layout torch.sparse_csr"),
        (Fn(double), {"pair": [1, coo()]}, r"argument args\[0\]\['pair'\]\[1\] has layout"),
        (linear, jagged(rows), "argument input is a nested tensor"),
        (linear, jagged(rows, torch.strided), "argument input is a nested tensor"),
        (Weighted(True), x, "buffer sparse has layout torch.sparse_coo"),
        (Weighted(False), x, "parameter sparse has layout torch.sparse_coo"),
        (to_csr, torch.eye(3), "the result of aten.to_sparse_csr.default has layout"),
        (to_coo, torch.eye(3), "the result of aten.to_sparse.default has layout"),
        (Fn(lambda x: jagged(x).values() * 2), rows, "computes with nested tensors"),
        (Fn(lambda x: jagged(x, torch.strided)), rows, "computes with nested tensors"),
    ]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
def test_sparse_and_nested_tensors_are_refused_by_name_and_line() -> None:
    for model, x, message in not_dense():
        with pytest.raises(turbine.errors.UnsupportedOp, match=message) as raised:
            turbine.aot.export(model, args=(x,))
        assert re.search(r"/tests/[a-z_/]*\.py:\d+$", str(raised.value.where)), message
        assert "as x.to_dense()" in str(raised.value) or "to_padded_tensor" in str(raised.value)
