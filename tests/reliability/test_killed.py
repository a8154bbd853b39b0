"""kill -9 during a compile, a cache write or a save leaves only whole files."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import turbine
from tests.reliability import processes
from turbine import config, target
from turbine.compiler import cache, pipeline

Amount = Callable[[int, int], int]
DELAY = 1.5  # seconds in which the victim is killed; it starts to write after about one third

VICTIM = """
import sys
from pathlib import Path
import turbine
from turbine import target
from turbine.compiler import cache, pipeline
artifact, start = turbine.load(sys.argv[1]), int(sys.argv[3])
print("ready", flush=True)
for number in range(start, start + 1000):
    artifact.save(sys.argv[2])
    cache.write(cache.key_of([str(number % 7)]), cache.Entry(bytes([number % 7]) * 1_000_000, {}))
    source = f"func.func @f() -> i32 {{ %0 = arith.constant {number} : i32 return %0 : i32 }}"
    pipeline.compile_ir(source.encode(), target.parse("cpu:generic"), strategy="plain-O0")
"""


@pytest.mark.run
def test_a_killed_process_leaves_only_whole_files(tmp_path: Path, amount: Amount) -> None:
    torch.manual_seed(0)
    whole, saved = tmp_path / "whole.turbine", tmp_path / "saved.turbine"
    model, ones = nn.Linear(4, 3), torch.ones(2, 4)
    turbine.aot.export(model, args=(ones,)).compile(whole)
    folder = tmp_path / "cache"
    chance = random.Random(0)
    for number in range(amount(2, 200)):
        mark = f"{os.getpid()}-{number}"
        where = {"TURBINE_CACHE_DIR": str(folder), "TMPDIR": str(tmp_path)}
        words = (str(whole), str(saved), str(number * 1000))
        with processes.start(VICTIM, *words, mark=mark, **where) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, DELAY))
            victim.kill()
        assert processes.ends(mark)
        with config.override(cache_dir=folder):
            _check_entries()
        if saved.exists():
            numpy.testing.assert_array_equal(turbine.load(saved)(ones), turbine.load(whole)(ones))
    with config.override(cache_dir=folder):
        _check_a_compile_is_kept()


def _check_entries() -> None:
    """Check that every visible entry is whole and belongs to its key."""
    for listing in cache.listings():
        entry = cache.read(listing.key)
        assert entry is not None
        if len(entry.data) == 1_000_000:
            assert len(set(entry.data)) == 1
            assert cache.key_of([str(entry.data[0])]) == listing.key


def _check_a_compile_is_kept() -> None:
    """Check that no lock is left: the next process compiles and then hits the cache."""
    source = b"func.func @after() { return }"
    for cached in (False, True):
        compiled = pipeline.compile_ir(source, target.parse("cpu:generic"), strategy="plain-O0")
        assert compiled.cached is cached


def test_old_temporary_files_of_killed_saves_are_removed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "model.turbine"
    artifact = turbine.aot.export(nn.Linear(4, 3), args=(torch.ones(2, 4),)).compile()
    for name, age in (("old", 3700), ("new", 0)):
        draft = tmp_path / f".turbine-1-{name}"
        draft.write_bytes(b"part")
        os.utime(draft, (time.time() - age,) * 2)
    artifact.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".turbine-1-new", "model.turbine"]
