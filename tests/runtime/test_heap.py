"""Memory of calls that the process keeps for the next one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Calls with a block of 80 MB, which only a threshold above glibc's own keeps.
CALLS = """
import resource
import torch
import turbine

class Add(torch.nn.Module):
    def forward(self, x):
        return x + 1.0

x = torch.zeros(20_000_000)
add = turbine.aot.export(Add(), args=(x,)).compile()
for _ in range(3):
    add(x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    add(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 80_000_000 // 4096


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("settings", "is_kept"),
    [
        ({}, True),
        ({"TURBINE_KEEP_MEMORY_MB": "0"}, False),
        ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, False),
    ],
)
def test_memory_of_a_call_is_used_again(settings: dict[str, str], is_kept: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CALLS],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert (int(ran.stdout) < PAGES) == is_kept
