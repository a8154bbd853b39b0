"""Artifacts and sessions in other processes: pickles by path and by content, forks and spawns."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import turbine
from tests.odd_models.catalog import ODD
from turbine import aot, errors

TIMEOUT = 60
ONES = torch.ones(2, 4)
ZEROS = torch.zeros(3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds linear.turbine, and counter.turbine, which adds the number of calls so far."""
    folder = tmp_path_factory.mktemp("pickling")
    torch.manual_seed(0)
    aot.export(nn.Linear(4, 3), args=(ONES,)).compile(folder / "linear.turbine")
    example = ODD["counter"]()
    aot.export(example.model, args=example.args).compile(folder / "counter.turbine")
    return folder


@pytest.fixture
def linear(folder: Path) -> turbine.Artifact:
    return turbine.load(folder / "linear.turbine")


@pytest.fixture
def counter(folder: Path) -> turbine.Artifact:
    return turbine.load(folder / "counter.turbine")


def count(program: turbine.runtime.program.Program) -> int:
    return int(program(ZEROS)[0, 0])


def test_a_pickle_is_a_path_and_can_be_the_content(linear: turbine.Artifact) -> None:
    by_path = pickle.dumps(linear)
    with turbine.config.override(pickle_content=True):
        by_content = pickle.dumps(linear)
    assert len(by_path) < 1000 < len(by_content)
    for pickled in (by_path, by_content):
        assert torch.equal(pickle.loads(pickled)(ONES), linear(ONES))


def test_an_artifact_in_memory_is_pickled_by_content(folder: Path) -> None:
    artifact = aot.export(nn.Linear(4, 3), args=(ONES,)).compile()
    assert torch.equal(pickle.loads(pickle.dumps(artifact))(ONES), artifact(ONES))


def test_weights_and_threads_go_with_a_pickle(folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    weights = {"weight": numpy.ones((3, 4), "float32"), "bias": numpy.zeros(3, "float32")}
    save_file(weights, tmp_path / "ones.safetensors")
    artifact = turbine.load(
        folder / "linear.turbine", weights=tmp_path / "ones.safetensors", threads=1
    )
    with turbine.config.override(sync_limit_mflop=0.0):
        copied = pickle.loads(pickle.dumps(artifact))
    assert copied.driver == "local-sync"
    assert torch.equal(copied(ONES), torch.full((2, 3), 4.0))


def test_values_of_a_state_dict_go_with_a_pickle(folder: Path) -> None:
    values = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}
    artifact = turbine.load(folder / "linear.turbine", weights=values)
    values["weight"].zero_()
    assert torch.equal(pickle.loads(pickle.dumps(artifact))(ONES), torch.full((2, 3), 4.0))


def test_another_file_at_the_path_is_an_error(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.turbine"
    path.write_bytes((folder / "linear.turbine").read_bytes())
    pickled = pickle.dumps(turbine.load(path))
    path.write_bytes((folder / "counter.turbine").read_bytes())
    with pytest.raises(errors.ArtifactError, match="not the one that the pickled artifact"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(errors.ArtifactError, match="cannot open"):
        pickle.loads(pickled)


def test_copies_without_state_are_shared(linear: turbine.Artifact) -> None:
    assert copy.deepcopy(linear) is linear
    pickled = pickle.dumps(linear)
    assert pickle.loads(pickled) is pickle.loads(pickled)


def test_copies_have_the_state_and_go_on_by_themselves(counter: turbine.Artifact) -> None:
    assert count(pickle.loads(pickle.dumps(counter))) == 1
    assert [count(counter), count(counter)] == [1, 2]
    with turbine.config.override(pickle_content=True):
        by_content = pickle.loads(pickle.dumps(counter))
    copies = [pickle.loads(pickle.dumps(counter)), copy.deepcopy(counter), by_content]
    assert [count(copied) for copied in copies] == [3, 3, 3]
    assert count(counter) == 3


def test_sessions_are_pickled_with_their_state(counter: turbine.Artifact) -> None:
    one, other = counter.session(), counter.session()
    count(one)
    first, second = pickle.loads(pickle.dumps([one, other]))
    assert [count(first), count(second), count(one)] == [2, 1, 2]
    assert first.artifact is second.artifact
    one.close()
    with pytest.raises(errors.StateError, match="the session is closed"):
        pickle.dumps(one)


def test_an_entry_point_is_not_pickled(linear: turbine.Artifact) -> None:
    with pytest.raises(errors.ArgumentError, match="cannot be pickled"):
        pickle.dumps(linear.function())


# Other processes. Each ends by itself or is killed.


class Scored(Dataset[Tensor]):
    """Results of an artifact, for the workers of a DataLoader."""

    def __init__(self, artifact: turbine.Artifact) -> None:
        self.artifact = artifact

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        result: Tensor = self.artifact(torch.full((2, 4), float(index)))
        return result


@pytest.mark.sweep(1)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_call_an_artifact(start: str, linear: turbine.Artifact) -> None:
    expected = [linear(torch.full((2, 4), float(index))) for index in range(6)]
    loader = DataLoader(
        Scored(linear),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=start,
        timeout=TIMEOUT,
    )
    for found, value in zip(loader, expected, strict=True):
        assert torch.equal(found, value)


POOL = """
import multiprocessing, sys, numpy
from turbine.runtime.artifact import load

if __name__ == "__main__":
    linear, counter = load(sys.argv[2] + "/linear.turbine"), load(sys.argv[2] + "/counter.turbine")
    arguments = [numpy.full((2, 4), n, "float32") for n in range(8)]
    expected = [linear(argument) for argument in arguments]
    counter(numpy.zeros((3, 4), "float32"))
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        found = pool.map_async(linear, arguments).get(60)
        counts = pool.map_async(counter, [numpy.zeros((3, 4), "float32")] * 3, 1).get(60)
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))
    print([int(result[0, 0]) for result in counts])
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_pools_call_artifacts(start: str, folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), start, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "TURBINE_SYNC_LIMIT_MFLOP": "0"},
        timeout=2 * TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "[2, 2, 2]"  # each task has a copy of the state
