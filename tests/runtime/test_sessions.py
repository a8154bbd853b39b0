"""Sessions: states beside each other over the same weights, from threads and across failures."""

from __future__ import annotations

import copy
import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.forked import in_child
from tests.threads import TIMEOUT, run_threads
from turbine import aot, errors
from turbine.runtime import device as devices
from turbine.runtime.executable import Executable
from turbine.runtime.session import Session

ROWS, WIDTH = 8, 16


class Memory(nn.Module):
    """Keeps the last rows that it was given, as a KV cache does, and reads all of them."""

    rows: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("rows", torch.zeros(ROWS, WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        place = (self.count % ROWS).reshape(1)
        self.rows.index_copy_(0, place, self.layer(x)[None])
        self.count += 1
        scores: Tensor = self.rows @ x
        return scores.softmax(0) @ self.rows


class Checked(aot.CompiledModule):
    total = aot.export_global(aot.AbstractIndex, mutable=True)

    def add(self, x: Any = aot.AbstractTensor(1), at: Any = aot.AbstractIndex) -> Any:
        self.total = self.total + 1
        return aot.IREE.tensor_slice(x, at)

    def read(self) -> Any:
        return self.total


@pytest.fixture(scope="module")
def memory_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sessions") / "memory.turbine"
    aot.export(Memory(), args=(torch.zeros(WIDTH),)).compile(path)
    return path


@pytest.fixture(params=[devices.SYNC, devices.TASK])
def memory(memory_file: Path, request: pytest.FixtureRequest) -> turbine.Artifact:
    limit = 1.0 if request.param == devices.SYNC else 0.0
    with turbine.config.override(sync_limit_mflop=limit):
        artifact = turbine.load(memory_file)
    assert artifact.driver == request.param
    return artifact


def answers(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Arguments of a conversation and what PyTorch returns."""
    model, random = Memory(), torch.Generator().manual_seed(seed)
    arguments = [torch.randn(WIDTH, generator=random) for _ in range(count)]
    with torch.no_grad():
        return [(x, model(x)) for x in arguments]


def test_sessions_do_not_see_each_other(memory: turbine.Artifact) -> None:
    sessions = [memory.session() for _ in range(3)]
    conversations = [answers(2 * ROWS, seed) for seed in range(3)]
    for turn in zip(*conversations, strict=True):
        for session, (x, expected) in zip(sessions, turn, strict=True):
            torch.testing.assert_close(session(x), expected)
    assert [int(session.state["count"]) for session in sessions] == [2 * ROWS] * 3


def test_threads_with_a_session_each_get_their_own_answers(memory: turbine.Artifact) -> None:
    conversations = [answers(40, seed) for seed in range(8)]

    def converse(seed: int) -> None:
        with memory.session() as session:
            for x, expected in conversations[seed]:
                torch.testing.assert_close(session(x), expected)

    run_threads([partial(converse, seed) for seed in range(8)])


def test_threads_may_share_a_session(memory: turbine.Artifact) -> None:
    session, other = memory.session(), memory.session()
    x = torch.ones(WIDTH)

    def call(one: Session) -> None:
        for _ in range(30):
            one(x)

    run_threads([lambda: call(session), lambda: call(other), lambda: call(session)])
    assert (int(session.state["count"]), int(other.state["count"])) == (60, 30)


def test_calls_of_sessions_run_at_the_same_time(
    memory: turbine.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, x = [memory.session() for _ in range(3)], torch.ones(WIDTH)
    expected = sessions[0](x)
    inside, run = threading.Barrier(2), Executable._run

    def meet(self: Executable, *given: Any) -> None:
        inside.wait(TIMEOUT)
        run(self, *given)

    monkeypatch.setattr(Executable, "_run", meet)
    run_threads(
        [
            lambda: torch.testing.assert_close(sessions[1](x), expected),
            lambda: torch.testing.assert_close(sessions[2](x), expected),
        ]
    )


def test_sessions_share_what_loading_computes(
    memory: turbine.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable, x = memory._executable, torch.ones(WIDTH)
    one, other = memory.session(), memory.session()
    expected = one(x)
    monkeypatch.setattr(executable, "_providers", None)  # weights are not read again
    torch.testing.assert_close(other(x), expected)
    get, _ = executable._sharing
    given = [iree.VmVariantList(0), executable._shared]
    other._owner.context.invoke(get, iree.VmVariantList(0), given[0])
    assert len(given[0]) == len(given[1]) > 2
    one.reset()
    torch.testing.assert_close(one(x), expected)


def test_state_that_starts_anew_leaves_sessions_alone(memory: turbine.Artifact) -> None:
    conversation = answers(6, 3)
    with memory.session() as session:
        for x, expected in conversation[:3]:
            torch.testing.assert_close(session(x), expected)
        memory.reset()
        assert int(memory.state["count"]) == 0
        for x, expected in conversation[3:]:
            torch.testing.assert_close(session(x), expected)
    for x, expected in conversation:
        torch.testing.assert_close(memory(x), expected)


def test_a_session_starts_with_the_state_of_the_artifact(memory: turbine.Artifact) -> None:
    conversation = answers(6, 1)
    for x, _ in conversation[:3]:
        memory(x)  # a prompt that all conversations begin with
    for session in (memory.session(), memory.session()):
        for x, expected in conversation[3:]:
            torch.testing.assert_close(session(x), expected)
        session.reset()
        assert int(session.state["count"]) == 3


def test_a_copy_of_a_session_goes_on_by_itself(memory: turbine.Artifact) -> None:
    conversation = answers(6, 2)
    session = memory.session()
    for x, _ in conversation[:3]:
        session(x)
    copied = copy.deepcopy(session)
    for x, expected in conversation[3:]:
        torch.testing.assert_close(copied(x), expected)
    assert (int(session.state["count"]), int(copied.state["count"])) == (3, 6)


def test_state_of_a_session_is_set_and_saved(memory: turbine.Artifact, tmp_path: Path) -> None:
    one, other = memory.session(), memory.session()
    one.state["count"] = torch.tensor(5)
    one.save_checkpoint(tmp_path / "one.safetensors")
    assert int(other.state["count"]) == 0
    other.load_checkpoint(tmp_path / "one.safetensors")
    assert int(other.state["count"]) == 5
    assert int(memory.state["count"]) == 0


def test_a_failed_call_leaves_all_sessions_as_they_were() -> None:
    artifact = aot.export(Checked).compile()
    one, other, x = artifact.session(), artifact.session(), torch.ones(1)
    one.add(x, 0)
    other.add(x, 0)
    other.add(x, 0)
    with pytest.raises(errors.RunError):
        one.add(x, 1)
    assert [s.read() for s in (one, other, one)] == [1, 2, 1]
    one.add(x, 0)
    assert [s.read() for s in (other, one, artifact.session())] == [2, 2, 0]


@pytest.mark.sweep(1)
def test_calls_of_an_artifact_with_open_sessions_are_errors(memory: turbine.Artifact) -> None:
    x = torch.ones(WIDTH)
    memory(x)
    session = memory.session()
    with pytest.raises(errors.StateError, match="has open sessions"):
        memory(x)
    assert int(memory.state["count"]) == 1
    session.close()
    memory(x)
    assert int(memory.state["count"]) == 2
    session = memory.session()
    del session
    gc.collect()
    memory(x)  # a session that nothing refers to is closed
    memory.reset()
    assert int(memory.state["count"]) == 0


def test_a_closed_session_is_an_error(memory: turbine.Artifact) -> None:
    x = torch.ones(WIDTH)
    with memory.session() as session:
        session(x)
    session.close()
    for use in (lambda: session(x), lambda: session.state["count"], session.reset):
        with pytest.raises(errors.StateError, match="the session is closed"):
            use()
    with pytest.raises(errors.StateError, match="the session is closed"):
        copy.deepcopy(session)
    assert "closed session" in repr(session)


def test_a_program_without_state_has_no_sessions() -> None:
    artifact = aot.export(nn.Linear(2, 2), args=(torch.ones(1, 2),)).compile()
    with pytest.raises(errors.StateError, match="keeps no state"):
        artifact.session()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_session_does_not_cross_a_fork(memory: turbine.Artifact) -> None:
    session, x = memory.session(), numpy.ones(WIDTH, "float32")
    session(x)

    def work() -> str:
        try:
            session(x)
        except errors.RunError as error:
            refusal = error.fact
        memory.reset()
        session.reset()
        session(x)
        return f"{refusal}; {int(session.state['count'])}"

    answer = in_child(work)
    assert answer == "the program keeps state, and was called before this process was forked; 1"
    session(x)
    assert int(session.state["count"]) == 2
