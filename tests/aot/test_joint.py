"""Forward and backward passes as two entry points, for an optimizer of the user's own."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from turbine import errors

pytestmark = pytest.mark.sweep(1)

LOSS = nn.CrossEntropyLoss()


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 4))


def batch(size: int = 8, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, *(shape or (16,))), torch.randint(0, 4, (size,))


def check(artifact: Any, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Compare the loss, the gradients and the buffers with PyTorch's; returns the gradients."""
    model.zero_grad()
    given = x.detach().clone().requires_grad_()
    expected = LOSS(model(given), y)
    expected.backward()
    loss, saved = artifact.forward(x.detach(), y)
    grads: dict[str, Any] = artifact.backward(saved)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    wanted = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    torch.testing.assert_close(grads["parameters"], wanted, rtol=1e-4, atol=1e-6)
    for name in grads["inputs"]:
        torch.testing.assert_close(grads["inputs"][name], given.grad, rtol=1e-4, atol=1e-6)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(artifact.state[name], buffer, rtol=1e-5, atol=1e-6)
    return grads


def test_an_optimizer_of_the_users_trains() -> None:
    model, reference = convolutional(), convolutional()
    x, y = batch(8, 3, 8, 8)
    artifact = turbine.aot.export_joint(model, LOSS, args=(x, y)).compile()
    losses = []
    for _ in range(5):
        losses.append(float(artifact.forward(x, y)[0]))
        LOSS(reference(x), y)  # its statistics change too
        grads = check(artifact, reference, x, y)["parameters"]
        new = {name: artifact.state[name] - 0.1 * grad for name, grad in grads.items()}
        artifact.set_parameters(new)
        reference.load_state_dict(new, strict=False)
    assert losses[-1] < losses[0]


def test_sizes_vary_and_arguments_have_gradients() -> None:
    model, size = classifier(), Dim("size", min=2)
    x, y = batch()
    out = turbine.aot.export_joint(
        model, LOSS, args=(x.requires_grad_(), y), dynamic_shapes=({0: size}, {0: size})
    )
    assert out.descriptors["forward"][0] == "loss"
    assert out.descriptors["backward"][0] == "gradient of parameter 0.weight"
    assert out.descriptors["backward"][-1] == "gradient of input input"
    artifact = out.compile()
    assert [*check(artifact, copy.deepcopy(model), x, y)["inputs"]] == ["input"]
    check(artifact, copy.deepcopy(model), *batch(5))


def test_weights_are_not_among_what_is_saved() -> None:
    x, y = batch()
    artifact = turbine.aot.export_joint(classifier(), LOSS, args=(x, y)).compile()
    _, saved = artifact.forward(x, y)
    assert all(one.shape[:1] == (8,) for one in saved if one.dim())


def test_dropout_is_the_same_in_both_passes() -> None:
    layer = nn.Linear(16, 1, bias=False)
    model = nn.Sequential(nn.Dropout(0.5), layer)
    x = torch.ones(1, 16)
    out = turbine.aot.export_joint(model, lambda y, target: (y - target).sum(), args=(x, x[:, :1]))
    artifact = out.compile()
    loss, saved = artifact.forward(x, x[:, :1])
    grads = artifact.backward(saved)["parameters"]["1.weight"]
    kept = grads[0] != 0
    torch.testing.assert_close(loss, 2 * layer.weight[0][kept].sum().detach() - 1)


def test_frozen_parameters_have_no_gradient() -> None:
    model = classifier()
    model[0].requires_grad_(False)
    x, y = batch()
    artifact = turbine.aot.export_joint(model, LOSS, args=(x, y)).compile()
    assert not any(name.startswith("0.") for name in check(artifact, model, x, y)["parameters"])


def test_a_loss_without_gradients_is_refused() -> None:
    x, y = batch()
    with pytest.raises(errors.ExportError, match="has no gradient"):
        turbine.aot.export_joint(classifier().requires_grad_(False), LOSS, args=(x, y))
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(errors.ExportError, match="the loss has shape"):
        turbine.aot.export_joint(classifier(), loss, args=(x, y))


class Chebyshev(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            factor = torch.special.chebyshev_polynomial_t(x, 3)  # a line of the model
        result: Tensor = self.linear(x) * factor
        return result


@pytest.mark.parametrize("is_whole", [False, True])
def test_errors_name_the_line_of_the_model(is_whole: bool) -> None:
    model, args = Chebyshev(), (torch.ones(2, 4), torch.ones(2, 4))
    if is_whole:
        optimizer = torch.optim.SGD(model.parameters())
        exported = turbine.aot.export_training_step(
            model, nn.MSELoss(), optimizer=optimizer, args=args
        )
    else:
        exported = turbine.aot.export_joint(model, nn.MSELoss(), args=args)
    with pytest.raises(errors.UnsupportedOp) as raised:
        exported.compile()
    lines = Path(__file__).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.endswith("# a line of the model"))
    assert f"where: {__file__}:{number}\n" in str(raised.value)


def test_each_op_has_a_line_of_the_model_the_loss_or_the_optimizer() -> None:
    model, (x, y) = classifier(), batch()
    step = turbine.aot.export_training_step(
        model, LOSS, optimizer=torch.optim.SGD(model.parameters()), args=(x, y), predict_args=()
    )
    text = step.mlir_module.operation.get_asm(enable_debug_info=True)
    named = set(re.findall(r'loc\("([^"]+)":\d+', text))
    assert {Path(name).name for name in named} >= {"linear.py", "normalization.py", "sgd.py"}
    assert not [name for name in named if "turbine/capture" in name]
