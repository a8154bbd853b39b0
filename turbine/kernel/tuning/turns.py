"""Time calls in turns: a call in, its seconds out, on a CPU by the clock and on a GPU by events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]
# Cycles for which a GPU waits, so that launches are ahead of it.
_HEAD_START = 1_000_000


@dataclass(frozen=True)
class Clock:
    """How calls on a device are timed; `restore` is run before each."""

    device: torch.device
    restore: Callable[[], None] | None = None

    def turn(self, call: Call, count: int) -> float:
        """The median seconds of some calls, after one that does not count."""
        self._prepare()
        call()
        measure = self._on_cpu if self.device.type == "cpu" else self._on_gpu
        return statistics.median(measure(call, count))

    def _prepare(self) -> None:
        if self.restore is not None:
            self.restore()

    def _on_cpu(self, call: Call, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            self._prepare()
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
        return taken

    def _on_gpu(self, call: Call, count: int) -> list[float]:
        with torch.cuda.device(self.device):
            torch.cuda._sleep(_HEAD_START)
            pairs = []
            for _ in range(count):
                self._prepare()
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                call()
                last.record()
                pairs.append((first, last))
            torch.cuda.synchronize()
        return [1e-3 * first.elapsed_time(last) for first, last in pairs]
