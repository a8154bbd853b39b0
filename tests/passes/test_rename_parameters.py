"""Renamed parameters: names, errors, and binding of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import turbine
from tests.passes.modules import Layers, X, parse, refusal
from turbine import errors
from turbine.aot import ExportOutput
from turbine.mlir import context, parameters
from turbine.mlir.parameters import Parameter
from turbine.passes import Merge, RenameParameters, run_passes


@pytest.mark.parametrize(
    ("scope", "key"), [("model", "c"), (None, "a"), ("", ""), ("a::b", "c::d"), ("s", "<é, {}>")]
)
def test_parameter_names_may_have_odd_characters(scope: str | None, key: str) -> None:
    module = run_passes(parse(), [RenameParameters({"a": (scope, key)})])
    for form in (context.to_bytecode(module), context.to_text(module)):
        assert parameters.by_global(context.parse(form))["a"] == Parameter(scope, key)


@pytest.mark.parametrize("key", ['a"b', "a\\b", "a\nb"])
def test_names_that_iree_cannot_read_back_are_rejected(key: str) -> None:
    assert refusal([RenameParameters({"a": key})]).startswith("a parameter cannot be named")


def test_renaming_keeps_the_settings_of_a_parameter() -> None:
    text = 'util.global private @a = #flow.parameter.named<"m"::"a", {x = 1 : i64}> : tensor<4xf32>'
    module = parse(text)
    RenameParameters({"a": "b"}).run(module)
    assert '<"m"::"b", {x = 1 : i64}>' in str(module)


def test_names_can_be_swapped() -> None:
    module = run_passes(parse(), [RenameParameters({"a": "b", "b": "a"})])
    found = {name: parameter.key for name, parameter in parameters.by_global(module).items()}
    assert found == {"a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("renames", "told"),
    [
        (
            {"a": "c", "b": "c"},
            "two parameters would be named 'model::c': 'model::a' and 'model::b'",
        ),
        ({"a": "b"}, "two parameters would be named 'model::b': 'model::a' and 'model::b'"),
        ({"aa": "b"}, "unknown parameter 'aa'; valid: "),
    ],
)
def test_invalid_renames_are_rejected(renames: dict[Any, Any], told: str) -> None:
    assert refusal([RenameParameters(renames)]).startswith(told)


def test_a_callback_that_creates_duplicates_is_rejected() -> None:
    assert "two parameters" in refusal([RenameParameters(callback=lambda scope, key: "same")])


@pytest.mark.run
def test_an_artifact_binds_its_weights_under_new_names(
    exported: ExportOutput, layers: Layers, tmp_path: Path
) -> None:
    renames = RenameParameters(callback=lambda scope, key: ("archive", f"net/{key}"))
    artifact = exported.transform(renames).compile(tmp_path / "renamed.turbine")
    assert {name.partition("/")[0] for name in artifact.weight_names} == {"net"}
    torch.testing.assert_close(artifact(X), layers(X))
    torch.testing.assert_close(turbine.load(tmp_path / "renamed.turbine")(X), layers(X))
    # Swapped weights of one shape would go unnoticed but for the numbers.
    assert '"model"::"plain"' in exported.text()


@pytest.mark.run
def test_an_artifact_binds_weights_of_two_scopes(exported: ExportOutput, layers: Layers) -> None:
    moved = exported.transform(RenameParameters({"plain": "elsewhere::plain"}))
    artifact = moved.compile()
    assert {weight["scope"] for weight in artifact.manifest["weights"]} == {"elsewhere", "model"}
    torch.testing.assert_close(artifact(X), layers(X))


def test_parameters_without_values_are_rejected(exported: ExportOutput) -> None:
    text = 'util.global private @new = #flow.parameter.named<"model"::"new"> : tensor<4xf32>'
    with pytest.raises(errors.ParameterError, match="no value for parameter model::new"):
        exported.transform(Merge(parse(text)))
