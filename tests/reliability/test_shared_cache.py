"""Two processes share a cache folder on a full disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


def _mounting(folder: Path, command: str) -> list[str]:
    mount = f"mount -t tmpfs -o size={CAPACITY},mode=700 tmpfs {folder}"
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f"{mount} && {command}"]


def _can_mount(tmp_path: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    (tmp_path / "try").mkdir()
    return subprocess.run(_mounting(tmp_path / "try", "true"), capture_output=True).returncode == 0
