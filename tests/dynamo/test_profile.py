"""turbine.profile: the parts of a compiled function, their dispatches, and ops in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import turbine
from turbine import config, errors


def rows_that_matter(x: Tensor, w: Tensor) -> Tensor:
    y = torch.exp(x @ w) + 1
    upper: Tensor = torch.linalg.qr(y.t())[1]
    return upper * 2 - y.sum()


def test_parts_and_ops_in_pytorch_are_timed(capfd: pytest.CaptureFixture[str]) -> None:
    x, w = torch.randn(6, 8).t(), torch.randn(6, 4)
    report = turbine.profile(rows_that_matter, x, w, calls=3)
    assert capfd.readouterr().err == ""
    first, *_ = report.parts
    assert {part.graph for part in report.parts} == {"inference"}
    assert all(part.count == 1 for part in report.parts)
    assert any("aten.exp.default" in part.ops for part in report.parts)
    assert all(row.count >= 1 for part in report.parts for row in part.dispatches)
    assert first.lines[0].startswith(__file__)
    assert "aten::linalg_qr" in {op.name for op in report.ops}
    inside = sum(part.milliseconds for part in report.parts)
    assert inside > 0
    text = str(report)
    assert "part of the inference graph" in text
    assert "aten::linalg_qr" in text


def test_the_function_is_called_as_before_afterwards() -> None:
    double = torch.compile(lambda x: x.sin() * 2 + 1, backend="turbine")
    x = torch.randn(5)
    expected = double(x)
    assert turbine.profile(double, x, calls=1).parts
    torch.testing.assert_close(double(x), expected)


def test_a_function_without_parts_has_ops_alone() -> None:
    with config.override(library_calls="always"):
        report = turbine.profile(torch.mm, torch.ones(4, 4), torch.ones(4, 4), calls=1)
    assert report.parts == ()
    assert [op.name for op in report.ops if op.name == "aten::mm"] == ["aten::mm"]


def test_no_calls_are_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="cannot profile 0 calls"):
        turbine.profile(torch.mm, torch.ones(4, 4), torch.ones(4, 4), calls=0)
