"""Calls that torch.compile leaves to PyTorch's library, with fixed measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import turbine
from turbine import errors
from turbine.cli import doctor
from turbine.dynamo import calibration, graph_autotuning, library, small_graphs
from turbine.dynamo import options as backend_options
from turbine.dynamo.calibration import Example, Seconds
from turbine.dynamo.entry import backend

pytestmark = pytest.mark.sweep(2)

FLOP = 1e6
NOTHING_IS_SMALL = Seconds(1.0, -inf, 1.0)
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def forget_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo makes sizes dynamic that another test had with other values."""
    torch.compiler.reset()
    # Whole graphs are not timed.
    monkeypatch.setattr(graph_autotuning, "can_benchmark", lambda graph: False)


def compiled(function: Callable[..., Any], choice: str, **options: Any) -> Any:
    return torch.compile(
        function, backend=partial(backend, options={"library_calls": choice}), **options
    )


def fix_seconds(
    patch: pytest.MonkeyPatch,
    compiled_seconds: float,
    library_seconds: float,
    of_small_ops: Seconds = NOTHING_IS_SMALL,
) -> list[str]:
    """Fix the time of a million operations; return the measured kinds."""
    asked: list[str] = []

    def measure_once(kind: str, make: Callable[[], Example]) -> Seconds:
        if kind == small_graphs.KIND:
            return of_small_ops
        asked.append(kind)
        return Seconds(FLOP, compiled_seconds, library_seconds)

    patch.setattr(calibration, "measure_once", measure_once)
    return asked


@contextmanager
def calls_counted() -> Iterator[Callable[[], int]]:
    before = turbine.counters()["library_calls"]
    yield lambda: turbine.counters()["library_calls"] - before


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64))
    return nn.Sequential(*layers).requires_grad_(False)


def test_the_faster_side_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(128, 64)
    with turbine.config.override(library_calls="auto"):
        asked = fix_seconds(monkeypatch, 3e-3, 1e-3)
        slow = turbine.explain(mlp(), x)
        fix_seconds(monkeypatch, 1e-3, 3e-3)
        quick = turbine.explain(mlp(), x)
    kinds = {"matmul of float32", "layer norm of float32", "gelu of float32"}
    assert set(asked) == kinds
    chosen = [op for op in slow.left if op.is_chosen]
    assert [op.op for op in chosen] == ["aten.addmm.default"] * 2
    assert chosen[0].reason == "faster in PyTorch: about 1 ms, compiled 3.1 ms"
    assert "2 library calls, " in str(slow)
    assert not any(op.is_chosen for op in quick.left)
    assert "library calls" not in str(quick)


@pytest.mark.parametrize(("compiled_seconds", "count"), [(1.05e-3, 0), (1.2e-3, 1)])
def test_calls_are_left_if_that_saves_a_tenth(
    compiled_seconds: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with turbine.config.override(library_calls="auto"):
        fix_seconds(monkeypatch, compiled_seconds, 1e-3)
        report = turbine.explain(lambda x: (x @ x).relu() + 1, torch.randn(128, 128))
    assert sum(op.is_chosen for op in report.left) == count


def test_graphs_are_not_split_for_a_small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_once(kind: str, make: Callable[[], Example]) -> Seconds:
        if kind == small_graphs.KIND:
            return NOTHING_IS_SMALL
        return Seconds(FLOP, 2e-3 if "matmul of 8 rows" in kind else 1e-3, 1e-3)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[:8] @ y).sum() + (x @ y @ y).relu()

    monkeypatch.setattr(calibration, "measure_once", measure_once)
    with turbine.config.override(library_calls="auto"):
        report = turbine.explain(function, torch.randn(256, 256), torch.randn(256, 256))
    assert not report.left


def test_calls_that_save_too_little_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with turbine.config.override(library_calls="auto"):
        fix_seconds(monkeypatch, 3e-3, 1e-3)
        report = turbine.explain(lambda x: (x @ x).relu() + 1, torch.randn(16, 16))
    assert not report.left  # 8,192 operations: 25 us against 8


@pytest.mark.parametrize(("of_a_part", "count"), [(1e-3, 1), (1e-2, 0)])
def test_calls_that_take_longer_than_they_save_are_compiled(
    of_a_part: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with turbine.config.override(library_calls="auto"):
        # 4.2 million operations: 12.6 ms against 4.2, and three small ops, and one more part
        fix_seconds(monkeypatch, 3e-3, 1e-3, Seconds(1.0, of_a_part, 8e-3))
        report = turbine.explain(lambda x: (x @ x).relu() + 1, torch.randn(128, 128))
    assert sum(op.is_chosen for op in report.left) == count


def test_weights_reused_by_many_steps_stay_in_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix_seconds(monkeypatch, 1.0, 1e-3)

    def steps(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = torch.tanh(x @ w.t()) + 1
        return x

    x, w = torch.randn(8, 16), torch.randn(16, 16)
    with turbine.config.override(library_calls="auto"):
        few, many = (turbine.explain(steps, x, w, count) for count in (3, 4))
    assert sum(op.is_chosen for op in few.left) == 3
    assert not many.left


@pytest.mark.parametrize(
    ("seconds", "is_left"), [((inf, 1e-3), True), ((1e-3, inf), False), ((inf, inf), False)]
)
def test_calls_that_cannot_be_measured_have_a_default(
    seconds: tuple[float, float], is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_seconds(monkeypatch, *seconds)
    with turbine.config.override(library_calls="auto"):
        report = turbine.explain(lambda x: (x @ x).relu() + 1, torch.randn(128, 128))
    assert any(op.is_chosen for op in report.left) == is_left


def test_kinds_distinguish_what_affects_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fix_seconds(monkeypatch, 1.0, 0.0)

    def calls(x: torch.Tensor, y: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        heads = x.reshape(1, 2, 16, 8)
        return [
            x.bfloat16().reshape(16, 16) @ y.bfloat16(),
            x.reshape(16, 16)[:2] @ y,
            torch.bmm(x.reshape(2, 8, 16), x.reshape(2, 16, 8)),
            F.conv2d(image, torch.ones(4, 3, 3, 3)),
            F.conv2d(image.repeat(1, 4, 1, 1), torch.ones(12, 1, 3, 3), groups=12),
            F.conv1d(image.flatten(2), torch.ones(8, 3, 3)),
            F.scaled_dot_product_attention(heads, heads, heads),
            x.double().reshape(16, 16) @ y.double(),
            F.layer_norm(y, (16,)).softmax(-1),
            F.gelu(y).log_softmax(-1),
            y.softmax(0),
        ]

    compiled(calls, "auto", dynamic=False)(
        torch.randn(256), torch.randn(16, 16), torch.randn(1, 3, 8, 8)
    )
    assert set(asked) == {
        "matmul of bfloat16",
        "matmul of 4 rows of float32",
        "batched matmul of float32",
        "2-d convolution of 3 to 4 channels, 3 taps, stride 1, of float32",
        "2-d depthwise convolution of float32",
        "1-d convolution of 3 to 8 channels, 3 taps, stride 1, of float32",
        "attention of float32",
        "matmul of float64",
        "layer norm of float32",
        "softmax of float32",
        "log_softmax of float32",
        "gelu of float32",
    }


class Network(nn.Module):
    """A convolution, attention and products."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.inner = nn.Linear(16, 48)
        self.between = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        q, k, v = (
            self.inner(F.gelu(tokens, approximate="tanh"))
            .unflatten(-1, (2, 24))
            .transpose(1, 2)
            .chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        normed = self.between(mixed.transpose(1, 2).flatten(2)).softmax(-1)
        logits: torch.Tensor = self.head(normed.mean(1))
        return logits


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_steps_with_library_calls_match_eager(dynamic: bool) -> None:
    torch.manual_seed(0)
    model, images = Network(), torch.randn(3, 3, 6, 6)
    again = Network()
    again.load_state_dict(model.state_dict())
    labels = torch.tensor([0, 3, 4])
    step = compiled(again, "always", dynamic=dynamic)
    with calls_counted() as count:
        for rows in (3, 2):
            ours = F.cross_entropy(step(images[:rows]), labels[:rows])
            theirs = F.cross_entropy(model(images[:rows]), labels[:rows])
            ours.backward()
            theirs.backward()
            torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    assert count() >= 16  # eight calls, forward and backward
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=TOLERANCE, msg=name)


@pytest.fixture
def no_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing is measured yet."""
    monkeypatch.setattr(calibration, "KNOWN", {})
    with turbine.config.override(cache_dir=tmp_path):
        yield


@pytest.mark.usefixtures("no_times")
def test_each_kind_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    measure = calibration.measure

    def listen(kind: str, make: Callable[[], Example]) -> Seconds:
        made.append(kind)
        return measure(kind, make)

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = torch.tanh(x @ x) + 1
        return x

    monkeypatch.setattr(calibration, "measure", listen)
    x = torch.randn(32, 32)
    with turbine.config.override(library_calls="auto"):
        assert "nothing measured" in doctor.CHECKS["library calls"]()
        torch.testing.assert_close(compiled(function, "auto")(x), function(x))
        assert made == ["matmul of float32", small_graphs.KIND]
        for seconds in calibration.read_all().values():
            assert 0 < seconds.compiled < inf
            assert 0 < seconds.library < inf
        assert "matmul of float32" in doctor.CHECKS["library calls"]()
        monkeypatch.setattr(calibration, "KNOWN", {})  # as in another process
        turbine.explain(function, x)
    assert len(made) == 2


def no_example() -> Example:
    raise AssertionError("the measurement is fake")


@pytest.mark.usefixtures("no_times")
def test_times_of_other_machines_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "measure", lambda kind, make: Seconds(FLOP, 2.0, 1.0))
    calibration.measure_once("kind", no_example)
    assert calibration.read_all() == {"kind": Seconds(FLOP, 2.0, 1.0)}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert calibration.read_all() == {}


@pytest.mark.usefixtures("no_times")
@pytest.mark.parametrize("seconds", [(inf, 1.0), (1.0, inf), (inf, inf)])
def test_failed_measurements_are_not_kept(
    seconds: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([Seconds(FLOP, *seconds), Seconds(FLOP, 2.0, 1.0)])
    monkeypatch.setattr(calibration, "measure", lambda kind, make: next(results))
    assert not calibration.measure_once("kind", no_example).is_complete
    assert calibration.read_all() == {}
    monkeypatch.setattr(calibration, "KNOWN", {})  # as in another process
    assert calibration.measure_once("kind", no_example).is_complete


@pytest.fixture
def run_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], tuple[int, str]]:
    """`turbine doctor --calibrate` without the other checks: exit code and output."""
    name = "library calls"
    monkeypatch.setattr(doctor, "CHECKS", {name: doctor.CHECKS[name]})
    return lambda: (doctor.check_installation(calibrate=True), capsys.readouterr().out)


@pytest.mark.usefixtures("no_times")
def test_the_doctor_measures_the_usual_calls_once(
    monkeypatch: pytest.MonkeyPatch, run_doctor: Callable[[], tuple[int, str]]
) -> None:
    made: list[str] = []

    def measure(kind: str, make: Callable[[], Example]) -> Seconds:
        made.append(kind)
        return Seconds(make().flop, 3.0, 2.0)

    monkeypatch.setattr(calibration, "measure", measure)
    first = run_doctor()
    assert first == run_doctor()
    assert first[0] == 0
    assert "matmul of float32 1.50" in first[1]
    assert set(calibration.read_all()) == set(made)
    assert len(made) == len(set(made)) == len(library.usual_calls())
    for op in ("matmul of 1 row", "2-d convolution", "attention", "layer norm", "softmax"):
        assert f"{op} of float32" in made


@pytest.mark.usefixtures("no_times")
def test_the_doctor_names_calls_that_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, run_doctor: Callable[[], tuple[int, str]]
) -> None:
    monkeypatch.setattr(calibration, "measure", lambda kind, make: Seconds(1.0, inf, inf))
    code, text = run_doctor()
    assert code == 1
    assert "cannot time matmul of float32, " in text
    with turbine.config.override(cache=False):
        code, text = run_doctor()
    assert code == 1
    assert "the cache, which is off" in text


def test_calls_whose_measurement_fails_are_compiled() -> None:
    def fail() -> Example:
        raise RuntimeError("not implemented for 'Half'")

    assert calibration.measure("a kind", fail) == Seconds(1.0, inf, inf)


def test_choices_apply_to_later_graphs() -> None:
    """An op that was left whole has not met the rules that keep IREE from miscompiling it."""
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3)
    with turbine.config.override(library_calls="always"), calls_counted() as count:
        y = torch.compile(lambda x: F.conv2d(x, weight), backend=backend)(x)
        assert count() == 1
    with calls_counted() as count:
        y.sum().backward()
    assert count() == 1
    torch.testing.assert_close(
        x.grad, torch.autograd.grad(F.conv2d(x, weight).sum(), x)[0], rtol=1e-4, atol=TOLERANCE
    )


def test_an_unknown_choice_is_rejected() -> None:
    with pytest.raises(errors.ConfigError, match=r"library_calls 'sometimes'; valid: always, auto"):
        backend_options.check({"library_calls": "sometimes"}, None)


def test_frozen_graphs_are_compiled_unless_much_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_once(kind: str, make: Callable[[], Example]) -> Seconds:
        if kind == small_graphs.KIND:
            return NOTHING_IS_SMALL
        # The library is faster for the first matmul only, which has few rows.
        return Seconds(FLOP, 9e-3 if "matmul of 8 rows" in kind else 1e-3, 1e-3)

    class Rows(nn.Module):
        def __init__(self, columns: int) -> None:
            super().__init__()
            self.few, self.many = nn.Linear(64, 64), nn.Linear(64, columns)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.many(self.few(x).repeat(16, 1).tanh())
            return y

    monkeypatch.setattr(calibration, "measure_once", measure_once)
    with torch.no_grad(), turbine.config.override(library_calls="auto", freezing=True):
        much, little = (turbine.explain(Rows(n), torch.randn(8, 64)) for n in (64, 4096))
    assert [op.op for op in much.left if op.is_chosen] == ["aten.addmm.default"]
    assert not little.left


def test_freezing_changes_nothing_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_seconds(monkeypatch, compiled_seconds=1.0, library_seconds=0.1)
    q = torch.randn(2, 4, 64, 32)
    with torch.no_grad(), turbine.config.override(library_calls="auto", freezing=True):
        report = turbine.explain(F.scaled_dot_product_attention, q, q, q)
    assert any("attention" in one.op for one in report.graphs[0].left)


def test_a_matmul_between_library_calls_is_compiled_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure_once(kind: str, make: Callable[[], Example]) -> Seconds:
        if kind == small_graphs.KIND:
            return NOTHING_IS_SMALL
        return Seconds(FLOP, *((1.0, 0.1) if "gelu" in kind else (1e-3, matmul)))

    monkeypatch.setattr(calibration, "measure_once", measure_once)
    model, x = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), torch.randn(64, 64)
    with torch.no_grad(), turbine.config.override(library_calls="auto"):
        matmul = 1e-2
        faster = turbine.explain(model, x)
        matmul = 1.5e-3
        similar = turbine.explain(model, x)
    assert [len(part.ops) for part in faster.graphs[0].parts] == [1, 1]
    assert not similar.graphs[0].parts
