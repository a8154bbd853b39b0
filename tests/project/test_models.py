"""Every model of the zoo compiles and matches eager PyTorch."""

from __future__ import annotations

import pytest
import torch

import turbine
from tests.models import compare_with_eager
from tests.odd_models.catalog import ODD
from turbine.zoo.catalog import TINY
from turbine.zoo.example import Example

# What one rounding of the narrowest type in the model costs, with room for a few of them.
TOLERANCE = {torch.bfloat16: 2e-2}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", TINY)
def test_model_agrees_with_eager(name: str) -> None:
    example = TINY[name]()
    artifact = turbine.aot.export(example.model, args=example.args, kwargs=example.kwargs).compile()
    compare_with_eager(artifact, example, 1e-5)


@pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning")
@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ODD)
def test_odd_model_agrees_with_eager(name: str) -> None:
    check_odd_model(name, "external")


@pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning")
@pytest.mark.sweep(1)
@pytest.mark.parametrize("weights", ["global", "inline"])
@pytest.mark.parametrize("name", ODD)
def test_odd_model_agrees_with_eager_wherever_its_weights_are(name: str, weights: str) -> None:
    check_odd_model(name, weights)


def check_odd_model(name: str, weights: str) -> None:
    example = ODD[name]()
    output = turbine.aot.export(
        example.model,
        args=example.args,
        kwargs=example.kwargs,
        dynamic_shapes=example.dynamic_shapes,
        weights=weights,
    )
    dtypes = {parameter.dtype for parameter in example.model.parameters()}
    tolerance = max((TOLERANCE.get(dtype, 1e-6) for dtype in dtypes), default=1e-6)
    compare_with_eager(output.compile(), example, tolerance)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["mlp", "bert", "gpt2", "llama", "transformer_encoder"])
def test_one_artifact_supports_many_batch_sizes(name: str) -> None:
    example = TINY[name]()
    batch = torch.export.Dim("batch", max=64)
    shapes = {k: {0: batch} for k in ("input_ids", "attention_mask", "token_type_ids")}
    dynamic = shapes if example.kwargs else tuple({0: batch} for _ in example.args)
    output = turbine.aot.export(
        example.model, args=example.args, kwargs=example.kwargs, dynamic_shapes=dynamic
    )
    artifact = output.compile()
    for size in (1, 2, 5):
        args = tuple(torch.cat([a[:1]] * size) for a in example.args)
        kwargs = {k: torch.cat([v[:1]] * size) for k, v in example.kwargs.items()}
        sized = type(example)(example.model, args, kwargs)
        compare_with_eager(artifact, sized, 1e-5)


def test_strict_export_matches_eager() -> None:
    layers = torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU()
    example = Example(torch.nn.Sequential(*layers).eval(), (torch.randn(3, 8),))
    output = turbine.aot.export(example.model, args=example.args, strict_export=True)
    compare_with_eager(output.compile(), example, 1e-5)


def test_exported_programs_are_accepted() -> None:
    example = TINY["mlp"]()
    program = torch.export.export(example.model, example.args)
    compare_with_eager(turbine.aot.export(program).compile(), example, 1e-5)
