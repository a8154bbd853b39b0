"""Quick and slow compile requests, and helpers that wait for their processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from turbine import target
from turbine.compiler.session import Request

FLAGS = target.parse("cpu:generic").flags


SMALL = Request(b"func.func @f() { return }", FLAGS)


# So many matmuls that share no code keep the compiler busy for a minute or more.
MATMUL = """
func.func @f{n}(%a: tensor<{n}x64xf32>, %b: tensor<64x{n}xf32>, %c: tensor<{n}x{n}xf32>)
    -> tensor<{n}x{n}xf32> {{
  %0 = linalg.matmul ins(%a, %b : tensor<{n}x64xf32>, tensor<64x{n}xf32>)
                     outs(%c : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  return %0 : tensor<{n}x{n}xf32>
}}
"""


SLOW = Request("".join(MATMUL.format(n=n) for n in range(11, 611)).encode(), FLAGS)


def soon(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Whether a condition comes true within the time a very busy machine may need."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def exists(pid: int) -> bool:
    """Whether a process lives or waits as a zombie to be reaped."""
    return Path(f"/proc/{pid}").exists()
