"""A linker that does not start: one clear error, and a fallback under torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import turbine
from turbine import config, errors
from turbine.compiler import session, strategies


@pytest.fixture
def linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A linker as an unpacked archive may leave it: not executable."""
    path = tmp_path / "iree-lld"
    path.write_text("not a program")
    flag = f"--iree-llvmcpu-embedded-linker-path={path}"
    monkeypatch.setattr(strategies, "COMMON", (*strategies.COMMON, flag))
    monkeypatch.setattr(session, "find_linker", lambda: path)
    return path


def test_the_linker_is_where_iree_looks_for_it() -> None:
    assert session.find_linker().exists()


def test_export_errors_name_the_linker_and_the_fix(linker: Path) -> None:
    exported = turbine.aot.export(nn.Linear(4, 4), args=(torch.ones(2, 4),))
    with pytest.raises(errors.LinkerError, match="linker cannot be started") as caught:
        exported.compile()
    assert str(linker) in str(caught.value)
    assert f"chmod +x {linker}" in str(caught.value.hint)


def test_torch_compile_warns_and_falls_back(linker: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1) * x - 2

    x = torch.randn(8)
    with (
        config.override(raise_faults=False),
        pytest.warns(UserWarning, match="runs the model in PyTorch.*linker"),
    ):
        found = torch.compile(function, backend="turbine")(x)
    torch.testing.assert_close(found, function(x))
