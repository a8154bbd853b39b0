"""Processes share a cache folder: on a full disk, and while some of them are killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.reliability import processes
from turbine import config
from turbine.compiler import cache

Amount = Callable[[int, int], int]
KIB = 1024
CAPACITY = 512 * KIB

# Compiles the same programs as its twin, and fills the rest of the disk with entries.
SHARER = """
import resource, sys, warnings
from turbine import target
from turbine.compiler import cache, pipeline
count, limit = int(sys.argv[1]), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for number in range(count):
        source = f"func.func @f() -> i32 {{ %0 = arith.constant {number} : i32 return %0 : i32 }}"
        compiled = pipeline.compile_ir(
            source.encode(), target.parse("cpu:generic"), strategy="plain-O0"
        )
        assert compiled.data, number
        key = cache.key_of([str(number)])
        cache.write(key, cache.Entry(bytes([number % 256]) * 100_000, {}))
        found = cache.read(key)
        assert found is None or found.data == bytes([number % 256]) * 100_000, number
# In one write: the twin prints to the same pipe.
kinds = {type(warning.message).__name__ for warning in told}
sys.stdout.write(f"{len(told)} {kinds}\\n")
"""


def test_two_processes_share_a_cache_on_a_full_disk(tmp_path: Path, amount: Amount) -> None:
    folder, small = tmp_path / "disk" / "cache", _can_mount(tmp_path)
    (tmp_path / "disk").mkdir()
    script = tmp_path / "sharer.py"
    script.write_text(SHARER)
    # A small file system if we may mount one, else files that may not grow beyond a limit.
    one = f"{sys.executable} {script} {amount(12, 100)} {0 if small else 50_000}"
    leave = f"cp -r {folder} {tmp_path}/kept 2>/dev/null; true" if small else "true"
    both = f"{one} & {one}; first=$?; wait $! || exit 1; {leave}; exit $first"
    command = ["sh", "-c", both]
    if small:
        command = _mounting(tmp_path / "disk", both)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "TURBINE_CACHE_DIR": str(folder)},
        timeout=amount(120, 1200),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 {'RuntimeWarning'}"] * 2
    if small:
        shutil.move(tmp_path / "kept", folder)
    with config.override(cache_dir=folder):
        assert len(cache.listings()) > 0
        assert all(cache.read(listing.key) is not None for listing in cache.listings())


# Compiles programs that others compile too, and compares what they compute.
COMPILER = """
import sys
import torch
from turbine.runtime import Launchable
size = "tensor<2xi32>"
for number in range(int(sys.argv[1])):
    constant = f"%0 = arith.constant dense<{number}> : {size}"
    body = f"{constant} %1 = arith.addi %x, %0 : {size} return %1 : {size}"
    source = f"func.func @main(%x: {size}) -> {size} {{ {body} }}"
    found = Launchable.jit_compile(source)(torch.ones(2, dtype=torch.int32))
    assert found.tolist() == [number + 1] * 2, (number, found)
    print(number, flush=True)
"""


def test_processes_that_are_killed_share_a_cache_with_others(
    tmp_path: Path, amount: Amount
) -> None:
    programs, count = amount(2, 40), amount(1, 8)
    where, mark = {"TURBINE_CACHE_DIR": str(tmp_path / "cache")}, f"{os.getpid()}-sharing"
    with ExitStack() as stack:
        pairs = [
            [
                stack.enter_context(processes.start(COMPILER, str(programs), mark=name, **where))
                for name in (mark, f"{mark}-victim")
            ]
            for _ in range(count)
        ]
        for number, (_, victim) in enumerate(pairs):
            assert victim.stdout is not None
            for _ in range(1 + number % programs):  # it is in the midst of the next program
                victim.stdout.readline()
            victim.kill()
        answers = [survivor.communicate(timeout=amount(120, 1200)) for survivor, _ in pairs]
        assert [survivor.returncode for survivor, _ in pairs] == [0] * count, answers
    assert processes.ends(f"{mark}-victim")
    with config.override(cache_dir=tmp_path / "cache"):
        found = [cache.read(listing.key) for listing in cache.listings()]
    assert len(found) >= programs
    assert None not in found


def _mounting(folder: Path, command: str) -> list[str]:
    mount = f"mount -t tmpfs -o size={CAPACITY},mode=700 tmpfs {folder}"
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f"{mount} && {command}"]


def _can_mount(tmp_path: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    (tmp_path / "try").mkdir()
    return subprocess.run(_mounting(tmp_path / "try", "true"), capture_output=True).returncode == 0
