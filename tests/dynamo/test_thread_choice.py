"""A part between PyTorch ops runs on one thread or on all, as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from turbine import errors
from turbine.dynamo.thread_choice import TURNS, ThreadChoice


class Machine:
    """Calls that take as long as they are told, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr("turbine.dynamo.thread_choice.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("turbine.dynamo.thread_choice.device.thread_count", lambda: 2)

    def call(self, name: str, seconds: Sequence[float]) -> Callable[..., list[Any]]:
        turns: Iterator[float] = iter(seconds)

        def run(args: Sequence[Any]) -> list[Any]:
            self.now += next(turns, seconds[-1])
            self.calls.append(name)
            return list(args)

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def run(choice: ThreadChoice, calls: int) -> None:
    for number in range(calls):
        assert choice([number]) == [number]


@pytest.mark.parametrize(
    ("on_one", "on_all", "chosen"),
    [
        ([9e-3, 3e-3], [9e-3, 1.5e-3], "all"),
        ([3e-3], [2.95e-3], "one"),  # PyTorch's threads start again, which costs more
        ([3e-3], [5e-3], "one"),
        ([9e-3, 3e-3, 1e-4], [1e-5], "one"),  # too short for a trial
    ],
)
def test_the_faster_is_kept(
    machine: Machine, on_one: list[float], on_all: list[float], chosen: str
) -> None:
    told: list[str] = []
    everywhere = machine.call("all", on_all)
    choice = ThreadChoice(
        machine.call("one", on_one), lambda: everywhere, lambda: told.append("all")
    )
    run(choice, 3 * TURNS)
    assert machine.calls[:TURNS] == ["one"] * TURNS
    assert set(machine.calls[2 * TURNS :]) == {chosen}
    assert told == ["all"] * (chosen == "all")


def test_code_that_does_not_load_again_stays_on_one_thread(machine: Machine) -> None:
    def fail() -> Any:
        raise errors.RunError("no memory")

    choice = ThreadChoice(machine.call("one", [3e-3]), fail, lambda: None)
    run(choice, 3 * TURNS)
    assert set(machine.calls) == {"one"}
