"""Training steps as artifacts: numbers, state, random numbers and bad input."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers

import turbine
from examples import train_data_parallel
from tests.aot.training import (
    Parameters,
    adamw,
    batches,
    check_weights,
    eager_step,
    exported_mlp,
    mlp,
    numbers,
)
from turbine import errors
from turbine.capture import grouped_product
from turbine.capture.optimizer_step import CannotShare
from turbine.capture.training_step import Options, Trainer, trace_entry
from turbine.compiler import host
from turbine.library.random import STREAM
from turbine.lower.emission import TargetQuery
from turbine.zoo.training import TINY_TASKS

pytestmark = pytest.mark.sweep(1)

Make = Callable[[Parameters], Optimizer]


# Numbers


def test_a_step_matches_pytorch_in_batches_of_any_size() -> None:
    artifact, model = exported_mlp().compile(), mlp()
    optimizer = adamw([*model.parameters()])
    for x, y in [*batches(5), *batches(3, rows=9)]:
        torch.testing.assert_close(artifact.train_step(x, y), eager_step(model, optimizer, x, y))
    check_weights(artifact, model)
    x, y = batches(1)[0]
    torch.testing.assert_close(artifact.predict(x), model(x).detach())
    torch.testing.assert_close(artifact.evaluate(x, y), F.cross_entropy(model(x), y).detach())
    assert int(artifact.state["trainer.step"]) == 8


def test_gradients_and_an_update_of_the_users_own() -> None:
    artifact, model = exported_mlp().compile(), mlp()
    optimizer, halves = adamw([*model.parameters()]), batches(2)
    for x, y in halves:
        (F.cross_entropy(model(x), y) / 2).backward()
    found = [artifact.gradients(x, y)[1] for x, y in halves]
    mean = {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(mean[name], parameter.grad)
    optimizer.step()
    artifact.apply(mean)
    check_weights(artifact, model)


@pytest.mark.parametrize("name", ["lenet", "resnet", "bilstm", "gpt2"])
def test_models_train_as_in_pytorch(name: str) -> None:
    task = TINY_TASKS[name]()
    reference, drawn = copy.deepcopy(task.model), task.batches()
    batch = next(drawn)

    def loss_of(model: nn.Module, *given: Tensor) -> Tensor:
        return task.loss(model, *given)

    # Not Adam, which makes the rounding of gradients that are zero as large as others.
    def make(model: nn.Module) -> Optimizer:
        return optim.SGD(model.parameters(), 1e-2, momentum=0.9, nesterov=True)

    artifact = turbine.aot.export_training_step(
        task.model, loss_of, optimizer=make(task.model), args=batch
    ).compile()
    optimizer = make(reference)
    for _ in range(50):
        batch = next(drawn)
        optimizer.zero_grad()
        loss = task.loss(reference, *batch)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(artifact.train_step(*batch), loss.detach(), atol=1e-6, rtol=1e-5)
    # The sign of a number that is nearly zero, before a relu, is up to rounding.
    check_weights(artifact, reference, 1e-4)


class Lion(Optimizer):
    """An optimizer of a user, whose step of one parameter is `add_`ed to its state."""

    def __init__(self, parameters: Parameters, lr: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 0.9})
        for parameter in parameters:
            self.state[parameter] = {"mean": torch.zeros_like(parameter), "step": torch.tensor(0.0)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if parameter.grad is None:
                    continue
                state["step"].add_(1)
                state["mean"].lerp_(parameter.grad, 1 - group["decay"])
                parameter.add_(state["mean"].sign(), alpha=-group["lr"])


def two_groups(parameters: Parameters) -> Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": parameters[:2], "lr": 1e-3},
        {"params": parameters[2:]},
    ]
    return optim.Adam(groups, 1e-2)


OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD with momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "dampening": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, 1e-2, weight_decay=0.1),
    "amsgrad": lambda p: optim.Adam(p, 1e-2, amsgrad=True),
    "AdamW": adamw,
    "Adagrad": lambda p: optim.Adagrad(p, 1e-2, lr_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-3),
    "centered": lambda p: optim.RMSprop(p, 1e-3, momentum=0.9, centered=True),
    "Adamax": lambda p: optim.Adamax(p, 1e-2),
    "NAdam": lambda p: optim.NAdam(p, 1e-2),
    "RAdam": lambda p: optim.RAdam(p, 1e-2),
    "Adadelta": lambda p: optim.Adadelta(p, 1.0),
    "Rprop": lambda p: optim.Rprop(p, 1e-3),
    "ASGD": lambda p: optim.ASGD(p, 1e-2, t0=3),
    "Adafactor": lambda p: optim.Adafactor(p, 1e-2, weight_decay=0.1),
    "a user's": Lion,
    "groups": two_groups,
}


def traced(trainer: Trainer, args: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """A training step as it is exported, run by PyTorch."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in ("x", "y")])
    entry = trace_entry(trainer.root, trainer.train_step, args, signature)
    return torch.no_grad()(entry)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_match_pytorch_for_50_steps(name: str) -> None:
    model, reference, make = mlp(), mlp(), OPTIMIZERS[name]
    mine, theirs = make([*model.parameters()]), make([*reference.parameters()])
    data = batches(50)
    try:
        trainer = Trainer(model, nn.CrossEntropyLoss(), STREAM, mine, Options())
        step = traced(trainer, data[0])
    except CannotShare:
        assert name == "a user's"
        trainer = Trainer(model, nn.CrossEntropyLoss(), STREAM, mine, Options(), shares_steps=False)
        step = traced(trainer, data[0])
    for x, y in data:
        expected = eager_step(reference, theirs, x, y)
        torch.testing.assert_close(step(x, y), expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_clipping_accumulation_and_a_schedule() -> None:
    model, reference = mlp(), mlp()
    mine, theirs = adamw([*model.parameters()]), adamw([*reference.parameters()])
    own, other = (schedulers.StepLR(optimizer, 2, 0.5) for optimizer in (mine, theirs))
    data = batches(12)
    artifact = turbine.aot.export_training_step(
        model,
        nn.CrossEntropyLoss(),
        optimizer=mine,
        args=data[0],
        clip_grad_norm=0.5,
        accumulate=3,
        scheduler=own,
    ).compile()
    assert own.last_epoch == 0
    assert mine.param_groups[0]["lr"] == 1e-2
    for index, (x, y) in enumerate(data):
        loss = F.cross_entropy(reference(x), y)
        (loss / 3).backward()
        torch.testing.assert_close(artifact.train_step(x, y), loss.detach())
        if index % 3 == 2:
            nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
            theirs.step()
            other.step()
            theirs.zero_grad()
    check_weights(artifact, reference)
    assert int(artifact.state["trainer.step"]) == 4


def test_the_learning_rate_can_be_set() -> None:
    artifact, model = exported_mlp().compile(), mlp()
    optimizer, data = adamw([*model.parameters()]), batches(2)
    artifact.state["trainer.learning_rate.0"] = torch.tensor(0.2, dtype=torch.float64)
    optimizer.param_groups[0]["lr"] = 0.2
    for x, y in data:
        artifact.train_step(x, y)
        eager_step(model, optimizer, x, y)
    check_weights(artifact, model, 1e-4)


class Frozen(nn.Module):
    """A frozen base, two names for one weight, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.base.requires_grad_(False)
        self.one = nn.Linear(8, 8, bias=False)
        self.other = nn.Linear(8, 8, bias=False)
        self.other.weight = self.one.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.other(torch.tanh(self.one(self.base(x))))
        return result


def test_frozen_tied_and_unused_parameters() -> None:
    torch.manual_seed(0)
    model = Frozen()
    reference = copy.deepcopy(model)
    exported = turbine.aot.export_training_step(
        model, nn.MSELoss(), optimizer=adamw([*model.parameters()]), args=(torch.randn(4, 8),) * 2
    )
    artifact, optimizer = exported.compile(), adamw([*reference.parameters()])
    assert "base.weight" in artifact.weight_names
    assert {"base.weight", "other.weight"}.isdisjoint(artifact.state)
    for _ in range(3):
        x, y = torch.randn(4, 8), torch.randn(4, 8)
        optimizer.zero_grad()
        F.mse_loss(reference(x), y).backward()
        optimizer.step()
        artifact.train_step(x, y)
    torch.testing.assert_close(artifact.state["one.weight"], reference.one.weight.detach())


def test_bfloat16_in_the_loss_keeps_weights_in_float32() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(x)
        return F.cross_entropy(scores.float(), y)

    model, data = mlp(), batches(8)
    artifact = turbine.aot.export_training_step(
        model, loss, optimizer=optim.SGD(model.parameters(), 0.1), args=data[0]
    ).compile()
    first = artifact.train_step(*data[0])
    for _ in range(10):
        last = artifact.train_step(*data[0])
    assert last < first
    assert artifact.state["0.weight"].dtype == torch.float32


class Adapted(nn.Module):
    """A frozen layer, with a product of low rank that is trained."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + x @ self.down.t() @ self.up.t()
        return y


def adapted() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Adapted(nn.Linear(64, 96)), nn.GELU(), Adapted(nn.Linear(96, 64)), nn.Linear(64, 4)
    )


def test_adapters_train_over_a_base_of_4_bits() -> None:
    def adapters(model: nn.Module) -> optim.Optimizer:
        return optim.SGD([p for n, p in model.named_parameters() if "up" in n or "down" in n], 0.1)

    model, reference = adapted(), adapted()
    x, y = torch.randn(16, 64), torch.randint(0, 4, (16,))
    step = turbine.aot.export_training_step(
        model, nn.CrossEntropyLoss(), optimizer=adapters(model), args=(x, y), predict_args=()
    )
    small = turbine.aot.quantize(step, bits=4, group_size=32, include=["*.base"])
    assert small.quantization is not None
    assert [layer.name for layer in small.quantization.layers] == ["0.base.weight", "2.base.weight"]
    artifact = small.compile()
    with torch.no_grad():
        for layer in (reference[0], reference[2]):
            assert isinstance(layer, Adapted)
            rounded = grouped_product.pack(layer.base.weight.detach(), 4, 32).unpacked()
            layer.base.weight.copy_(rounded)
    theirs = adapters(reference)
    for _ in range(10):
        expected = eager_step(reference, theirs, x, y)
        torch.testing.assert_close(artifact.train_step(x, y), expected, rtol=1e-5, atol=1e-5)
    for name, weight in reference.named_parameters():
        if name in artifact.state:
            torch.testing.assert_close(artifact.state[name], weight.detach(), rtol=1e-4, atol=1e-5)


def test_the_loss_is_scaled_for_float16_as_by_a_grad_scaler() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            scores = model(x)
        return F.cross_entropy(scores.float(), y)

    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=3)

    model, reference = mlp(), mlp()
    theirs, keeper = optim.SGD(reference.parameters(), 0.1), scaler()
    data = batches(10)
    data[4][0].mul_(1e4)  # gradients of it overflow in float16
    artifact = turbine.aot.export_training_step(
        model,
        loss,
        optimizer=optim.SGD(model.parameters(), 0.1),
        args=data[0],
        grad_scaler=scaler(),
        predict_args=(),
    ).compile()
    for x, y in data:
        theirs.zero_grad()
        expected = loss(reference, x, y)
        keeper.scale(expected).backward()
        keeper.step(theirs)
        keeper.update()
        torch.testing.assert_close(
            artifact.train_step(x, y), expected.detach(), rtol=1e-2, atol=1e-3
        )
        assert float(artifact.state["trainer.loss_scale"]) == keeper.get_scale()
    assert int(artifact.state["trainer.skipped"]) > 0
    weights = dict(reference.named_parameters())
    torch.testing.assert_close(
        artifact.state["0.weight"], weights["0.weight"].detach(), rtol=1e-2, atol=1e-3
    )


@pytest.mark.parametrize("reduce", ["torch", "numpy"])
def test_processes_train_one_model(reduce: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_data_parallel.main(["--reduce", reduce, "--steps", "3"]) == 0
    assert "the same in all" in capsys.readouterr().out


# State


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(1024, 1024) / 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


def test_large_weights_are_updated_in_place() -> None:
    model = Wide()
    reference, x = copy.deepcopy(model), torch.randn(8, 1024)
    exported = turbine.aot.export_training_step(
        model, nn.MSELoss(), optimizer=adamw([*model.parameters()]), args=(x, x)
    )
    text = exported.lowered_for(TargetQuery(host.default_target)).text()
    assert "flow.dispatch @update" in text
    artifact, optimizer = exported.compile(), adamw([*reference.parameters()])
    for _ in range(3):
        reference.weight.grad = torch.randn_like(reference.weight)
        optimizer.step()
        artifact.apply({"weight": reference.weight.grad})
    check_weights(artifact, reference)
    before = artifact.evaluate(x, x)
    assert artifact.train_step(x, x) == before
    assert artifact.evaluate(x, x) != before
    artifact.reset()
    torch.testing.assert_close(artifact.state["weight"], Wide().weight.detach())


# Random numbers


class Noisy(nn.Module):
    """Dropout, and a sample as in a variational autoencoder."""

    def __init__(self, share: float = 0.25) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(4, 16)
        self.drop = nn.Dropout(share)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(self.drop(x)).chunk(2, -1)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.decode(sample), mean, spread


def elbo(model: nn.Module, x: Tensor) -> Tensor:
    y, mean, spread = model(x)
    loss: Tensor = F.mse_loss(y, x) - 0.05 * (1 + spread - mean * mean - spread.exp()).mean()
    return loss


def test_random_numbers_depend_on_the_seed_and_their_count() -> None:
    x = torch.randn(32, 16)

    def export(seed: int) -> turbine.aot.ExportOutput:
        model = Noisy()
        return turbine.aot.export_training_step(
            model, elbo, optimizer=optim.Adam(model.parameters(), 1e-2), args=(x,), seed=seed
        )

    seventh = export(7)
    one, same, other = seventh.compile(), seventh.compile(), export(8).compile()
    losses = [[float(a.train_step(x)) for _ in range(3)] for a in (one, same, other)]
    assert losses[0] == losses[1] != losses[2]
    assert len({*losses[0]}) == 3
    assert one.state["trainer.random"].tolist() == [7, 3 * (32 * 16 + 32 * 4)]
    for _ in range(60):
        last = one.train_step(x)
    assert last < losses[0][0]


def test_random_ops_have_the_distributions_of_pytorch() -> None:
    class Sample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> list[Tensor]:
            size = x.shape
            return [
                F.dropout(x, 0.3, training=True),
                torch.rand(size),
                torch.randn(size),
                torch.randint(2, 7, size).float(),
                torch.bernoulli(torch.full(size, 0.7)),
                torch.empty(size).uniform_(-1, 3),
                torch.empty(size).normal_(2, 0.5),
                torch.empty(size).exponential_(2),
                self.weight.expand(size),
            ]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return torch.stack([sample.mean() for sample in model(x)]).sum()

    model, x = Sample(), torch.ones(200, 500)
    artifact = turbine.aot.export_training_step(
        model, loss, optimizer=optim.SGD(model.parameters(), 0.1), args=(x,)
    ).compile()
    found = artifact.predict(x)
    torch.manual_seed(0)
    for mine, theirs in zip(found, model(x), strict=True):
        torch.testing.assert_close(mine.mean(), theirs.mean(), atol=0.02, rtol=0)
        torch.testing.assert_close(mine.std(), theirs.std(), atol=0.02, rtol=0)
    assert not torch.equal(found[1], artifact.predict(x)[1])


# Bad input


def test_updates_with_nan_are_left_out_and_counted() -> None:
    model, (x, y) = mlp(), batches(1)[0]
    artifact = turbine.aot.export_training_step(
        model,
        nn.CrossEntropyLoss(),
        optimizer=adamw([*model.parameters()]),
        args=(x, y),
        skip_nonfinite=True,
    ).compile()
    artifact.train_step(x, y)
    before = numbers(artifact)
    assert artifact.train_step(torch.full_like(x, torch.nan), y).isnan()
    after = numbers(artifact)
    assert after.pop("trainer.skipped") == 1
    before.pop("trainer.skipped")
    assert after == before
    assert artifact.train_step(x, y).isfinite()


class Normalized(nn.Module):
    """Buffers written by a batch norm and by assignment, and one that is only read."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.other = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("factor", torch.full((16,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.one(x))
        if self.training:
            self.largest = torch.maximum(self.largest, hidden.detach().max())
        y: Tensor = self.other(hidden * self.factor)
        return y


def test_a_batch_with_nan_leaves_buffers_as_they_were() -> None:
    model, (x, y) = Normalized(), batches(1)[0]
    artifact = turbine.aot.export_training_step(
        model,
        nn.CrossEntropyLoss(),
        optimizer=adamw([*model.parameters()]),
        args=(x, y),
        accumulate=2,
        skip_nonfinite=True,
    ).compile()
    names = [name for name, _ in model.named_buffers() if name in artifact.state]
    assert names == ["largest", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    bad = torch.full_like(x, torch.inf)
    for given in (x, bad, bad, x):
        artifact.train_step(given, y)
        model(x) if given is x else None
    assert artifact.gradients(bad, y)[0].isnan()
    for name in names:
        torch.testing.assert_close(artifact.state[name], model.get_buffer(name), msg=name)
    assert int(artifact.state["trainer.skipped"]) == 2
    assert artifact.evaluate(x, y).isfinite()


@pytest.mark.parametrize("skip_nonfinite", [False, True])
def test_a_grad_scaler_alone_updates_buffers_in_skipped_steps(skip_nonfinite: bool) -> None:
    model, (x, y) = Normalized(), batches(1)[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    options = Options(skip_nonfinite=skip_nonfinite, scaler=scaler)
    optimizer = adamw([*model.parameters()])
    trainer = Trainer(model, nn.CrossEntropyLoss(), STREAM, optimizer, options)
    traced(trainer, (x, y))(x * 1e3, y)
    values = trainer.root.values()
    assert int(values["trainer.skipped"]) == 1
    assert int(values["norm.num_batches_tracked"]) == (0 if skip_nonfinite else 1)


def export(model: nn.Module | None = None, **options: Any) -> None:
    model = model or mlp()
    given: dict[str, Any] = {"optimizer": adamw([*model.parameters()]), "args": batches(1)[0]}
    loss = options.pop("loss", nn.CrossEntropyLoss())
    turbine.aot.export_training_step(model, loss, **(given | options))


def test_what_cannot_be_exported_says_so() -> None:
    model = mlp()
    halves = mlp()
    both = torch.randn(2, 16, 8)
    halves[0].weight, halves[2].weight = (nn.Parameter(both[0]), nn.Parameter(both[1, :4]))
    taken = mlp()
    taken.trainer = nn.Linear(2, 2)
    cases: list[tuple[str, dict[str, Any]]] = [
        (r"0\.weight and 2\.weight share memory", {"model": halves}),
        ("has an attribute 'trainer'", {"model": taken}),
        ("the loss has shape", {"loss": nn.CrossEntropyLoss(reduction="none")}),
        ("the loss is a float", {"loss": lambda y, target: 1.0}),
        ("LBFGS", {"model": model, "optimizer": optim.LBFGS(model.parameters())}),
        ("not one of the model's", {"optimizer": adamw([*mlp().parameters()])}),
        ("the optimizer is a str", {"optimizer": "adam"}),
        ("expected a tuple", {"args": [1, 2]}),
        ("accumulate is 0", {"accumulate": 0}),
        ("clip_grad_norm is -1.0", {"clip_grad_norm": -1.0}),
        ("clip_grad_norm is nan", {"clip_grad_norm": float("nan")}),
    ]
    for message, options in cases:
        with pytest.raises(errors.ExportError, match=message):
            export(**options)


def test_schedulers_that_cannot_be_exported_say_so() -> None:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    cycle = schedulers.OneCycleLR(optimizer, 0.1, total_steps=10)
    with pytest.raises(errors.ExportError, match="changes momentum"):
        export(model, optimizer=optimizer, scheduler=cycle)
    plateau = schedulers.ReduceLROnPlateau(optimizer)
    with pytest.raises(errors.ExportError, match="ReduceLROnPlateau"):
        export(model, optimizer=optimizer, scheduler=plateau)
