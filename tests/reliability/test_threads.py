"""Concurrent compiles, calls, exports and loads return correct results."""

from __future__ import annotations

import copy
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import turbine
from turbine import target
from turbine.compiler import pipeline

Amount = Callable[[int, int], int]
THREADS = 8
SIZES = range(2, 10)


class Mixer:
    """Actions of the threads; each compares its result with PyTorch."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
        self.artifact = self.exported(5).compile(folder / "shared.turbine")
        self.compiled = torch.compile(copy.deepcopy(self.model), backend="turbine")

    def exported(self, rows: int) -> turbine.aot.ExportOutput:
        # A copy: torch.export puts fake tensors into the model that it traces.
        return turbine.aot.export(copy.deepcopy(self.model), args=(torch.randn(rows, 4),))

    def check(self, call: Callable[[torch.Tensor], torch.Tensor], rows: int) -> None:
        x = torch.randn(rows, 4)
        with torch.no_grad():
            torch.testing.assert_close(call(x), self.model(x))

    def compile_ir(self, number: int) -> None:
        source = f"func.func @f{number % 50}() -> i32 {{ %0 = arith.constant {number % 50} : i32 "
        compiled = pipeline.compile_ir(
            f"{source} return %0 : i32 }}".encode(), target.parse("cpu"), strategy="plain-O0"
        )
        assert compiled.data

    def run(self, number: int) -> None:
        self.check(self.artifact, 5)

    def export(self, number: int) -> None:
        rows = SIZES[number % len(SIZES)]
        self.check(self.exported(rows).compile(), rows)

    def load(self, number: int) -> None:
        self.check(turbine.load(self.folder / "shared.turbine"), 5)

    def save(self, number: int) -> None:
        path = self.folder / f"copy-{number % 4}.turbine"
        self.artifact.save(path)
        self.check(turbine.load(path), 5)

    def torch_compile(self, number: int) -> None:
        self.check(self.compiled, SIZES[number % len(SIZES)])

    def call_custom_op(self, number: int) -> None:
        # Each rank and dtype is traced at its first call.
        x = torch.randn([2] * (number % 6), dtype=DTYPES[number % len(DTYPES)])
        torch.testing.assert_close(shifted(x), x + 1.5)


@turbine.ops.custom_op("reliability::shifted(Tensor x) -> Tensor")
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1.5


DTYPES = (torch.float32, torch.float64)
# Not in one mix: a compiled function that is called while another thread exports can fail in
# PyTorch, whatever the backend (docs/facts.md).
ANY = [Mixer.compile_ir, Mixer.run, Mixer.load, Mixer.save, Mixer.call_custom_op]
MIXES = {"export": [*ANY, Mixer.export], "torch.compile": [*ANY, Mixer.torch_compile]}


@pytest.mark.run
@pytest.mark.sweep(1)
@pytest.mark.parametrize("mix", MIXES)
def test_concurrent_compiles_exports_and_loads_return_correct_results(
    mix: str, tmp_path: Path, amount: Amount
) -> None:
    mixer, actions = Mixer(tmp_path), MIXES[mix]
    end = time.monotonic() + amount(1, 300)
    faults: list[str] = []
    done: Counter[str] = Counter()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        action = actions[seed % len(actions)]  # so that each has its turn, however little time
        while (not done[action.__name__] or time.monotonic() < end) and not faults:
            try:
                action(mixer, chance.randrange(10_000))
                done[action.__name__] += 1
                action = chance.choice(actions)
            except BaseException:
                faults.append(f"{action.__name__}: {traceback.format_exc()}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600 + 120)
    assert faults == [], "\n".join(faults)
    assert not any(thread.is_alive() for thread in threads)
    assert set(done) == {action.__name__ for action in actions}, done
