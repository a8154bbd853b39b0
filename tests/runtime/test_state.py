"""State between calls, and mutation of the caller's tensors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.forked import in_child
from tests.odd_models.catalog import ODD
from turbine import aot, errors
from turbine.runtime import device as devices

pytestmark = pytest.mark.sweep(3)

# Rather long: it is reached only if something hangs.
TIMEOUT = 60
ZEROS = torch.zeros(3, 4)


@pytest.fixture(scope="module")
def counter_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that adds the number of calls so far."""
    path = tmp_path_factory.mktemp("state") / "counter.turbine"
    example = ODD["counter"]()
    turbine.aot.export(example.model, args=example.args).compile(path)
    return path


def count(artifact: turbine.Artifact) -> int:
    return int(artifact(ZEROS)[0, 0])


# Buffers that the program writes.


def test_a_counter_counts_and_starts_again_after_reset(counter_file: Path) -> None:
    artifact = turbine.load(counter_file)
    assert [count(artifact) for _ in range(3)] == [1, 2, 3]
    artifact.reset()
    assert [count(artifact) for _ in range(2)] == [1, 2]


def test_reset_before_the_first_call_is_allowed(counter_file: Path) -> None:
    artifact = turbine.load(counter_file)
    artifact.reset()
    assert count(artifact) == 1


def test_two_loads_of_one_file_share_no_state(counter_file: Path) -> None:
    first, second = turbine.load(counter_file), turbine.load(counter_file)
    assert [count(first), count(first), count(second), count(first)] == [1, 2, 1, 3]


def test_calls_do_not_write_state_to_the_file(counter_file: Path, tmp_path: Path) -> None:
    artifact = turbine.load(counter_file)
    count(artifact)
    artifact.save(tmp_path / "copy.turbine")
    assert count(turbine.load(tmp_path / "copy.turbine")) == 1
    assert count(turbine.load(counter_file)) == 1


def test_a_rejected_call_does_not_change_the_state(counter_file: Path) -> None:
    artifact = turbine.load(counter_file)
    count(artifact)
    with pytest.raises(errors.ArgumentError):
        artifact(torch.zeros(3, 5))
    assert count(artifact) == 2


def test_the_manifest_names_the_state(counter_file: Path) -> None:
    assert turbine.load(counter_file).state.keys() == {"count"}


@pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning")
def test_batch_norm_statistics_match_eager() -> None:
    example = ODD["batchnorm_train"]()
    artifact = turbine.aot.export(example.model, args=example.args).compile()
    model = ODD["batchnorm_train"]().model
    random = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(3, 4, generator=random)
        torch.testing.assert_close(artifact(x), model(x).detach())
    torch.testing.assert_close(artifact.state["1.running_mean"], model.get_buffer("1.running_mean"))


class Memory(nn.Module):
    """Returns the last input, the sum of all inputs and the buffer."""

    last: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(64))
        self.register_buffer("total", torch.zeros(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.last.clone()
        self.last.copy_(x)
        self.total.add_(x)
        return before, self.total


@pytest.fixture(scope="module")
def memory() -> turbine.Artifact:
    return turbine.aot.export(Memory(), args=(torch.zeros(64),)).compile()


def test_state_shares_no_memory_with_arguments_and_results(memory: turbine.Artifact) -> None:
    memory.reset()
    x = torch.ones(64)
    before, total = memory(x)
    assert (before[0], total[0]) == (0, 1)
    for mine in (x, before, total):
        mine.fill_(100)
    kept_before, kept_total = memory(torch.full((64,), 2.0))
    assert (kept_before[0], kept_total[0]) == (1, 3)
    memory(torch.full((64,), 5.0))
    assert (kept_before[0], kept_total[0]) == (1, 3)


# Calls that fail.


class Notes(aot.CompiledModule):
    """A page of rows written in place, and how many were."""

    page = aot.export_global(torch.zeros(4, 64), mutable=True)
    count = aot.export_global(aot.AbstractIndex, mutable=True)

    def write(self, row=aot.AbstractTensor(1, 64), at=aot.AbstractIndex):  # type: ignore[no-untyped-def]
        self.page = aot.IREE.tensor_update(self.page, row, at, 0)
        self.count = self.count + 1
        return self.count

    def read(self, rows=aot.AbstractTensor(2, dtype=torch.int64)):  # type: ignore[no-untyped-def]
        self.count = self.count + 1
        return self.pick(self.page, rows)

    @aot.jittable
    def pick(page: Tensor, rows: Tensor) -> Tensor:
        return page[rows]


ROWS = torch.tensor([0, 3])
ONES = torch.ones(1, 64)
FAILURES: dict[str, Callable[[turbine.Artifact], Any]] = {
    "the function that writes": lambda notes: notes.write(9 * ONES, 7),
    "another function": lambda notes: notes.read(torch.tensor([0, 100])),
}


@pytest.fixture(scope="module")
def notes() -> turbine.Artifact:
    return aot.export(Notes).compile()


@pytest.mark.parametrize("where", FAILURES)
def test_a_failed_call_does_not_change_the_state(where: str, notes: turbine.Artifact) -> None:
    notes.reset()
    assert notes.write(ONES, 3) == 1
    for _ in range(2):
        with pytest.raises(errors.RunError, match="out of range"):
            FAILURES[where](notes)
    assert notes.write(2 * ONES, 0) == 2
    with pytest.raises(errors.RunError, match="out of range"):
        FAILURES[where](notes)
    assert notes.state["count"] == 2
    assert torch.equal(notes.read(ROWS), torch.cat([2 * ONES, ONES]))


def test_reset_after_a_failed_call_restores_the_initial_state(notes: turbine.Artifact) -> None:
    notes.write(ONES, 3)
    with pytest.raises(errors.RunError):
        notes.read(torch.tensor([0, 100]))
    notes.reset()
    assert notes.state["count"] == 0
    assert not notes.state["page"].any()


class Cached(nn.Module):
    """Write a row of the buffer, then look up words."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 64))
        self.words = nn.Embedding(8, 64)

    def forward(self, at: Tensor, word: Tensor) -> Tensor:
        self.cache[at] = self.cache[at] + 1
        found: Tensor = self.words(word) + self.cache[at]
        return found


def test_arguments_are_checked_before_buffers_are_written_in_place() -> None:
    model = Cached().requires_grad_(False)
    good, bad = torch.tensor([1]), torch.tensor([8])
    artifact = aot.export(model, args=(good, good)).compile()
    torch.testing.assert_close(artifact(good, good), model(good, good))
    with pytest.raises(errors.RunError, match="embedding"):
        artifact(good, bad)
    torch.testing.assert_close(artifact(good, good), model(good, good))
    assert torch.equal(artifact.state["cache"], model.cache)


# Arguments that the program writes.


class Writes(nn.Module):
    """Swap x and y, add one to z, and return the old x."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        before = x.clone()
        x.copy_(y)
        y.copy_(before)
        z.add_(1)
        return before


@pytest.fixture(scope="module")
def writes() -> turbine.Artifact:
    arguments = (torch.zeros(4, 6), torch.zeros(4, 6), torch.zeros(4, 6))
    return turbine.aot.export(Writes(), args=arguments).compile()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.T.clone().T,
    "strided": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "unaligned": lambda x: torch.cat([torch.zeros(1), x.reshape(-1)])[1:].reshape(x.shape),
    "needs gradient": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_mutated_tensors_are_updated_in_place(name: str, writes: turbine.Artifact) -> None:
    x, y, z = (torch.arange(24.0).reshape(4, 6) + start for start in (0, 100, 200))
    ours = [LAYOUTS[name](value) for value in (x, y, z)]
    addresses = [tensor.data_ptr() for tensor in ours]
    found = writes(*ours)
    assert torch.equal(found, x)
    for tensor, expected in zip(ours, (y, x, z + 1), strict=True):
        assert torch.equal(tensor, expected)
    assert [tensor.data_ptr() for tensor in ours] == addresses


@pytest.mark.parametrize("order", ["C", "F"])
def test_mutated_arrays_are_updated_in_place(order: Any, writes: turbine.Artifact) -> None:
    x, y, z = (numpy.arange(24, dtype="float32").reshape(4, 6) + start for start in (0, 100, 200))
    ours = [value.copy(order) for value in (x, y, z)]
    found = writes(*ours)
    assert (found == x).all()
    for array, expected in zip(ours, (y, x, z + 1), strict=True):
        assert (array == expected).all()


def test_results_do_not_alias_mutated_arguments(writes: turbine.Artifact) -> None:
    x, y, z = torch.ones(4, 6), torch.zeros(4, 6), torch.zeros(4, 6)
    found = writes(x, y, z)
    found.fill_(9)
    assert [float(tensor[0, 0]) for tensor in (x, y, z)] == [0, 1, 1]


def test_read_only_memory_is_rejected_before_the_call(
    writes: turbine.Artifact,
) -> None:
    x = torch.zeros(4, 6)
    read_only = numpy.zeros((4, 6), "float32")
    read_only.flags.writeable = False
    for wrong in (torch.zeros(6).expand(4, 6), read_only):
        with pytest.raises(errors.ArgumentError, match="'z' cannot be written to"):
            writes(x, x.clone(), wrong)
    assert not x.any()


# Processes: forks and exits.


@pytest.fixture(scope="module")
def linear_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "linear.turbine"
    turbine.aot.export(nn.Linear(4, 3), args=(ZEROS,)).compile(path)
    return path


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("driver", [devices.SYNC, devices.TASK])
@pytest.mark.parametrize("called", [True, False], ids=["called", "not called"])
def test_a_forked_child_can_call_artifacts_of_its_parent(
    driver: str, called: bool, linear_file: Path
) -> None:
    with turbine.config.override(sync_limit_mflop=1.0 if driver == devices.SYNC else 0.0):
        artifact = turbine.load(linear_file)
    assert artifact.driver == driver
    ones = numpy.ones((3, 4), "float32")
    expected = turbine.load(linear_file)(ones)
    if called:
        artifact(ones)

    def work() -> str:
        right = all((artifact(ones) == expected).all() for _ in range(3))
        return f"{right} {(turbine.load(linear_file)(ones) == expected).all()}"

    assert in_child(work) == "True True"
    assert (artifact(ones) == expected).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_state_in_a_forked_child_is_an_error(counter_file: Path) -> None:
    artifact = turbine.load(counter_file)
    zeros = ZEROS.numpy()
    artifact(zeros)

    def work() -> str:
        try:
            artifact(zeros)
        except errors.RunError as error:
            refusal = error.hint or ""
        artifact.reset()
        return f"{refusal}; {artifact(zeros)[0, 0]}"

    assert in_child(work) == "load the artifact again in this process, or call reset(); 1.0"
    assert artifact(zeros)[0, 0] == 2


EXITS = {
    "results are everywhere": """
        import types, torch
        sys.modules["kept"] = types.ModuleType("kept")
        sys.modules["kept"].results = [artifact(ones), artifact(torch.ones(3, 4))]
        class Box: pass
        box = Box(); box.me = box; box.results = [artifact(ones), artifact(torch.ones(3, 4))]
        alive, results = load(path), [artifact(torch.ones(3, 4)), artifact(ones)]
        alive(ones)
        del artifact
        def main():
            mine = results[0]
            sys.exit(0)
        main()
        """,
    "nothing was called": "",
    "a thread is calling": """
        import threading, time
        def forever():
            while True: artifact(ones)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
        """,
    "an exit handler of an earlier date calls": """
        import atexit
        artifact(ones)
        atexit.unregister(executable.stop_calls)
        atexit.register(lambda: artifact(ones))
        atexit.register(executable.stop_calls)
        """,
}


@pytest.mark.parametrize("name", EXITS)
@pytest.mark.parametrize("driver", [devices.SYNC, devices.TASK])
def test_the_process_exits_without_output(name: str, driver: str, linear_file: Path) -> None:
    program = f"""
import sys, numpy
from turbine.runtime import executable
from turbine.runtime.artifact import load
path = {str(linear_file)!r}
artifact = load(path)
assert artifact.driver == {driver!r}
ones = numpy.ones((3, 4), "float32")
{textwrap.dedent(EXITS[name])}
"""
    limit = "1" if driver == devices.SYNC else "0"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TURBINE_SYNC_LIMIT_MFLOP": limit},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_state_is_read_and_set_by_name(counter_file: Path) -> None:
    artifact = turbine.load(counter_file)
    count(artifact)
    seen = artifact.state["count"]
    assert int(seen) == 1
    value = seen + 40
    artifact.state["count"] = value
    value.fill_(0)
    assert count(artifact) == 42
    assert (int(seen), int(artifact.state["count"])) == (1, 42)
    assert turbine.load(counter_file).state["count"] == 0


def test_set_state_rejects_unknown_names_and_types(counter_file: Path) -> None:
    artifact = turbine.load(counter_file)
    with pytest.raises(errors.StateError, match="unknown state 'cuont'; valid: count"):
        artifact.state["cuont"]
    with pytest.raises(errors.ArgumentError, match="count"):
        artifact.state["count"] = torch.zeros(2, dtype=torch.int64)
    assert "other" not in artifact.state
    assert count(artifact) == 1
