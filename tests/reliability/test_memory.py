"""Thousands of calls, loads and recompiles do not leak memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Amount = Callable[[int, int], int]
LIMIT_MB = 5.0

PROGRAM = """
import gc, sys, tempfile
from pathlib import Path
import torch, turbine
from turbine import target
from turbine.compiler import pipeline
from turbine.runtime.launch import Launchable

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
x = torch.randn(4, 8)

def resident():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20

def growth(action, warming, count):
    for number in range(warming):
        action(number)
    before = resident()
    for number in range(warming, warming + count):
        action(number)
    return resident() - before

def call(number):
    artifact(x)

def call_compiled(number):
    compiled(x)

def load(number):
    turbine.load(path)(x)

def recompile(number):
    lines = "%x: tensor<4xf32>) -> tensor<4xf32> { %c = arith.constant dense<" + f"{number}.0"
    body = "> : tensor<4xf32> %0 = arith.addf %x, %c : tensor<4xf32> return %0 : tensor<4xf32> }"
    kernel = Launchable.jit_compile(f"func.func @main({lines}{body}")
    assert kernel(x[0, :4])[0] == x[0, 0] + number

with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    path = Path(folder) / "model.turbine"
    artifact = turbine.aot.export(model, args=(x,)).compile(path)
    compiled = torch.compile(model, backend="turbine")
    actions = {"call": call, "call_compiled": call_compiled, "load": load, "recompile": recompile}
    for words in sys.argv[1:]:
        name, warming, count = words.split(":")
        print(name, round(growth(actions[name], int(warming), int(count)), 2), flush=True)
"""


@pytest.mark.run
def test_memory_does_not_grow(tmp_path: Path, amount: Amount) -> None:
    counts = {
        "call": (500, amount(2_000, 100_000)),
        "call_compiled": (500, amount(2_000, 100_000)),
        "load": (20, amount(20, 300)),
        "recompile": (amount(2, 30), amount(3, 1000)),
    }
    words = [f"{name}:{warming}:{count}" for name, (warming, count) in counts.items()]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "TURBINE_CACHE_DIR": str(tmp_path)},
        timeout=amount(300, 3600),
    )
    assert found.returncode == 0, found.stderr
    grown = {name: float(size) for name, size in map(str.split, found.stdout.splitlines())}
    assert grown.keys() == counts.keys()
    assert {name: size for name, size in grown.items() if size > LIMIT_MB} == {}
