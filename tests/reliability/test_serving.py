"""Threads that call artifacts and sessions, fail, copy and reset get the answers of PyTorch."""

from __future__ import annotations

import copy
import os
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from tests.odd_models.catalog import ODD
from tests.threads import run_threads
from turbine import errors
from turbine.runtime.session import Session

Amount = Callable[[int, int], int]
THREADS = 8
ROWS = 400


class Lookup(nn.Module):
    """Rows of a table through layers; a wrong index fails."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, index: Tensor) -> Tensor:
        found: Tensor = self.layers(self.table(index))
        return found


class Served:
    """Artifacts that all threads share, and actions on them; each raises if an answer is wrong."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = Lookup().eval()
        path = folder / "lookup.turbine"
        shapes = ({0: Dim("rows", min=1, max=ROWS)},)
        exported = copy.deepcopy(self.model)
        turbine.aot.export(exported, args=(torch.arange(3),), dynamic_shapes=shapes).compile(path)
        with turbine.config.override(sync_limit_mflop=0.0):
            self.loads = [
                turbine.load(path, threads=1),
                turbine.load(path),
                turbine.load(path, cores=[min(os.sched_getaffinity(0))]),
            ]
        counter = ODD["counter"]()
        turbine.aot.export(counter.model, args=counter.args).compile(folder / "counter.turbine")
        self.counter = turbine.load(folder / "counter.turbine")

    def call(self, chance: random.Random) -> None:
        index = torch.randint(100, (chance.randrange(1, ROWS),))
        with torch.no_grad():
            expected = self.model(index)
        torch.testing.assert_close(chance.choice(self.loads)(index), expected)

    def fail(self, chance: random.Random) -> None:
        with pytest.raises(errors.RunError):
            chance.choice(self.loads)(torch.tensor([5, 100]))

    def reset(self, chance: random.Random) -> None:
        chance.choice(self.loads).reset()

    def converse(self, chance: random.Random) -> None:
        with self.counter.session() as session:
            count_on(session, 1, chance)
            with copy.deepcopy(session) as copied:
                count_on(copied, int(session.state["count"]) + 1, chance)

    def move(self, chance: random.Random) -> None:
        with self.counter.session() as session:
            count_on(session, 1, chance)
            moved = pickle.loads(pickle.dumps(session))
            count_on(moved, int(session.state["count"]) + 1, chance)


def count_on(session: Session, first: int, chance: random.Random) -> None:
    """Call a session a few times; it adds the number of the call."""
    for number in range(first, first + chance.randrange(1, 10)):
        assert torch.equal(session(torch.zeros(3, 4)), torch.full((3, 4), float(number)))


# More often the calls whose results could be of another thread.
ACTIONS = [Served.call] * 6 + [Served.converse] * 2 + [Served.fail, Served.reset, Served.move]


@pytest.mark.run
def test_threads_get_the_answers_of_their_own_calls(tmp_path: Path, amount: Amount) -> None:
    served = Served(tmp_path)
    end = time.monotonic() + amount(1, 300)
    done: Counter[str] = Counter()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        pending = chance.sample(ACTIONS, len(ACTIONS))  # each has its turn
        while pending or time.monotonic() < end:
            action = pending.pop() if pending else chance.choice(ACTIONS)
            action(served, chance)
            done[action.__name__] += 1

    run_threads([partial(work, seed) for seed in range(THREADS)], timeout=amount(1, 300) + 60)
    assert set(done) == {action.__name__ for action in ACTIONS}
