"""ONNX models as artifacts: results, signatures and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import turbine
from turbine import errors
from turbine.cli.main import main

onnx = pytest.importorskip("onnx", reason="an extra, `onnx`")
FLOAT = 1  # of onnx.TensorProto


def value(name: str, *shape: int | str | None, dtype: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, dtype, shape)


def save(path: Path, op: str, inputs: list[Any], outputs: list[Any], **attributes: Any) -> Path:
    """A model of one operator."""
    version = attributes.pop("version", 17)
    names = [[v.name for v in values] for values in (inputs, outputs)]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, *names, **attributes)], "graph", inputs, outputs
    )
    opsets = [onnx.helper.make_opsetid("", version)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_a_model_keeps_its_names_and_dynamic_sizes(tmp_path: Path) -> None:
    path = save(
        tmp_path / "product.onnx",
        "Einsum",
        [value("left.1", "rows", 4), value("right", 4, None)],
        [value("y", "rows", None)],
        equation="ij,jk->ik",
    )
    artifact = turbine.aot.export_onnx(path).compile()
    text = artifact.signature.text()
    assert text.startswith("(left_1: float32[rows, 4], right: float32[4, right_1]) -> float32[")
    for rows, columns in ((1, 3), (5, 2)):
        left, right = torch.randn(rows, 4), torch.randn(4, columns)
        torch.testing.assert_close(artifact(left, right=right), left @ right)


def test_an_older_model_is_converted_and_several_results_are_a_dict(tmp_path: Path) -> None:
    halves = [value("low", "n", 2), value("high", "n", 2)]
    path = save(tmp_path / "split.onnx", "Split", [value("x", "n", 4)], halves, version=11, axis=1)
    x = torch.randn(3, 4)
    found = turbine.aot.export_onnx(path).compile()(x)
    torch.testing.assert_close(found, {"low": x[:, :2], "high": x[:, 2:]})


def test_an_unsupported_operator_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "optional.onnx", "Optional", [value("x", 3)], [value("y", None)])
    with pytest.raises(errors.UnsupportedOp, match="no lowering for Optional of ONNX"):
        turbine.aot.export_onnx(path)


def test_a_damaged_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(errors.ExportError, match=r"cannot read .*bad\.onnx"):
        turbine.aot.export_onnx(tmp_path / "bad.onnx")


def test_the_command_line_compiles_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "relu.onnx", "Relu", [value("x", 2)], [value("y", 2)])
    assert main(["compile", "relu.onnx", "-o", "relu.turbine"]) == 0
    torch.testing.assert_close(
        turbine.load("relu.turbine")(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0])
    )
    capsys.readouterr()
    for words, told in (
        (["--input", "2xf32"], "relu.onnx has its own inputs"),
        (["--weights", "external"], "--weights external with relu.onnx"),
        (["--quantize", "4"], "no program was captured in PyTorch"),
    ):
        assert main(["compile", "relu.onnx", "-o", "x.turbine", *words]) == 1
        assert told in capsys.readouterr().err


def test_an_artifact_is_timed_beside_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="an extra, `bench`")
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "relu.onnx", "Relu", [value("x", 2)], [value("y", 2)])
    assert main(["compile", "relu.onnx", "-o", "relu.turbine"]) == 0
    words = ["bench", "relu.turbine", "--seconds", "0.1", "--compare"]
    assert main([*words, "onnxruntime"]) == 0
    assert "\nonnxruntime " in capsys.readouterr().out
    assert main([*words, "eager,onnxruntime"]) == 1
    assert "relu.onnx is not a PyTorch model" in capsys.readouterr().err
