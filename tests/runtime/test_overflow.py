"""Calls run on their own thread if that ends first, and return the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import iree.runtime as iree
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.forked import in_child
from tests.odd_models.catalog import ODD
from turbine.runtime import device as devices
from turbine.runtime import overflow
from turbine.runtime.device import Placement
from turbine.runtime.overflow import Overflow

HERE = Placement(threads=2, cores=(4095,))  # no device is made


class Writing(nn.Module):
    """Returns one result, and adds to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        total += x
        found: Tensor = self.layer(x)
        return found


@pytest.fixture
def threads() -> Iterator[overflow._Threads]:
    overflow._threads.cache_clear()
    yield overflow._threads(HERE)
    overflow._threads.cache_clear()


@pytest.fixture
def places() -> list[str]:
    return []


@pytest.fixture
def calls(places: list[str], threads: overflow._Threads) -> Overflow:
    return Overflow(
        HERE,
        lambda *given: places.append("threads"),
        lambda *given: places.append("caller"),
        is_static=False,
    )


def invoke(calls: Overflow) -> None:
    devices.instance()  # IREE makes lists in an instance
    calls.invoke(iree.VmVariantList(0), 0)


def test_the_first_call_waits_for_the_threads(
    calls: Overflow, places: list[str], threads: overflow._Threads
) -> None:
    threads.ends[object()] = perf_counter() + 100
    invoke(calls)
    assert places == ["threads"]


@pytest.mark.parametrize(
    ("known", "backlog", "place"),
    [
        ((0.1, None), 100.0, "caller"),
        ((0.1, None), 0.1, "threads"),  # two threads: it may take 0.2 on one
        ((0.1, 50.0), 20.0, "threads"),
        ((10.0, 0.01), 1.0, "caller"),
    ],
)
def test_a_call_goes_where_it_ends_first(
    known: tuple[float, float | None],
    backlog: float,
    place: str,
    calls: Overflow,
    places: list[str],
    threads: overflow._Threads,
) -> None:
    on_threads, on_caller = (
        overflow._Times() if seconds is None else overflow._Times(1, seconds, seconds)
        for seconds in known
    )
    calls._places[0] = overflow._Places(on_threads, on_caller)
    threads.ends[object()] = perf_counter() + backlog
    invoke(calls)
    assert places == [place]


@pytest.mark.parametrize(
    ("on_threads", "on_caller", "place"),
    [(0.0015, 0.001, "caller"), (0.001, 0.001, "threads"), (0.1, 0.01, "threads")],
)
@pytest.mark.parametrize("is_static", [False, True])
def test_short_calls_are_tried_in_both_places(
    on_threads: float,
    on_caller: float,
    place: str,
    is_static: bool,
    places: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def taking(name: str, seconds: float) -> Any:
        def run(*_: Any) -> None:
            places.append(name)
            clock[0] += seconds

        return run

    monkeypatch.setattr(overflow, "perf_counter", lambda: clock[0])
    calls = Overflow(
        HERE, taking("threads", on_threads), taking("caller", on_caller), is_static=is_static
    )
    for _ in range(20):
        invoke(calls)
    tried = 4 if on_threads < 0.002 else 0  # longer ones are never tried on the caller
    assert places == ["threads"] * 4 + ["caller"] * tried + [place] * (16 - tried)


def test_a_call_that_ends_or_fails_leaves_no_backlog(threads: overflow._Threads) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("broken")

    calls = Overflow(HERE, fail, fail, is_static=True)
    with pytest.raises(ValueError, match="broken"):
        invoke(calls)
    assert not threads.ends


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> turbine.Artifact:
    path = tmp_path_factory.mktemp("overflow") / "writing.turbine"
    example = (torch.zeros(3, 32), torch.zeros(3, 32))
    turbine.aot.export(Writing(), args=example).compile(path)
    with turbine.config.override(sync_limit_mflop=0.0):
        return turbine.load(path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_results_and_mutated_arguments_are_the_same_on_both(artifact: turbine.Artifact) -> None:
    assert artifact.driver == devices.TASK
    calls: Overflow = artifact.function().entry.invoke.__self__  # type: ignore[attr-defined]
    x, on_threads, on_caller = torch.randn(3, 32), torch.ones(3, 32), torch.ones(3, 32)
    expected = artifact(x, on_threads)
    threads = overflow._threads(calls._placement)
    call = object()
    threads.ends[call] = math.inf
    try:
        assert torch.equal(artifact(x, on_caller), expected)
    finally:
        del threads.ends[call]
    (times,) = calls._places.values()
    assert times.caller.count  # it was there
    assert torch.equal(on_caller, on_threads)
    array = (x.numpy(), on_caller.numpy())
    assert in_child(lambda: str((artifact(*array) == expected.numpy()).all())) == "True"


def test_large_programs_and_those_with_state_are_loaded_once(
    artifact: turbine.Artifact, tmp_path: Path
) -> None:
    artifact.save(tmp_path / "copy.turbine")
    with turbine.config.override(overflow_mb=0, sync_limit_mflop=0.0):
        large = turbine.load(tmp_path / "copy.turbine")
        counter = ODD["counter"]()
        kept = turbine.aot.export(counter.model, args=counter.args).compile()
    alone = turbine.load(tmp_path / "copy.turbine", threads=1)
    assert [large.driver, kept.driver, alone.driver] == [devices.TASK, devices.TASK, devices.SYNC]
    for loaded in (large, kept, alone):
        assert loaded._executable._on_caller is None
