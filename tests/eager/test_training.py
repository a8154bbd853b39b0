"""Models trained on the turbine device match those trained on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
from turbine.eager import programs


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2, bias=False),  # its gradient would be noise
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(self.tokens(ids)).mean(1))
        return scores


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP": (mlp, lambda: torch.randn(8, 20)),
    "LeNet": (lenet, lambda: torch.randn(8, 1, 12, 12)),
    "transformer": (Transformer, lambda: torch.randint(0, 11, (8, 6))),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda weights: torch.optim.AdamW(weights, 1e-2),
}


def train(model: nn.Module, batches: list[Tensor], optimizer: str, device: str) -> list[float]:
    torch.manual_seed(7)
    model.to(device)
    steps = OPTIMIZERS[optimizer](model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(steps, 0.9)
    losses = []
    for number, batch in enumerate(batches):
        steps.zero_grad()
        labels = torch.arange(len(batch), device=device) % 4
        loss = F.cross_entropy(model(batch.to(device)), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        schedule.step()
        losses.append(loss.item())
        if number == 2:
            turbine.eager.wait()  # the rest is compiled
    return losses


@pytest.mark.sweep(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_on_the_device_matches_the_cpu(name: str, optimizer: str) -> None:
    turbine.eager.enable()
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model = make()
    batches = [batch() for _ in range(6)]
    other = copy.deepcopy(model)
    expected = train(model, batches, optimizer, "cpu")
    found = train(other, batches, optimizer, "turbine")
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for one, weight in zip(other.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(one.cpu(), weight, rtol=1e-2, atol=1e-3)


def test_optimizers_update_large_weights_in_place() -> None:
    turbine.eager.enable()
    large = nn.Parameter(torch.randn(2, 1 << 18).to("turbine"))
    reference = nn.Parameter(large.detach().cpu())
    momentum = torch.optim.SGD([large], 0.1, momentum=0.9)
    expected = torch.optim.SGD([reference], 0.1, momentum=0.9)
    places = []
    for _ in range(5):
        for weight, optimizer in ((large, momentum), (reference, expected)):
            optimizer.zero_grad()
            weight.square().mean().backward()
            optimizer.step()
        places.append(large.data_ptr())
        turbine.eager.wait()
    assert places[-2] == places[-1]
    torch.testing.assert_close(large.detach().cpu(), reference.detach())
    kept = large.detach().clone()  # another tensor needs the values: new memory for the weight
    with torch.no_grad():
        large.add_(1)
    torch.testing.assert_close(kept.cpu() + 1, large.detach().cpu())


@pytest.mark.parametrize("is_written", [False, True])
def test_a_failure_after_a_write_in_place_is_never_a_wrong_number(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turbine.eager.enable()
    monkeypatch.setattr(programs, "codes", {})
    monkeypatch.setattr(programs, "_families", {})
    large = torch.zeros(1 << 19).to("turbine")
    for _ in range(4):
        large.add_(1).mul_(2).sub_(1)
        large[0].item()
        turbine.eager.wait()
    found = [code for code in programs.codes.values() if code.state == "compiled"]
    assert found

    def fail(*arguments: Tensor) -> None:
        if is_written:
            torch.autograd.graph.increment_version(arguments[0])  # as updates do
            arguments[0].add_(1)
        raise ValueError("after the write")

    before = large[0].item()
    for code in found:
        code.call = fail
    large.add_(1).mul_(2).sub_(1)
    if is_written:
        for _ in range(2):
            with pytest.raises(turbine.errors.RunError, match="written to its inputs"):
                large[0].item()
    else:
        assert large[0].item() == 2 * before + 1
