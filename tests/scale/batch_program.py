"""What test_ray.py runs: examples/scale/ray_batch.py on a cluster of its own, with failures."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import ray

from examples.scale import ray_batch

ROWS = 4000
DEADLY_ROW = ROWS // 2


class Recording(ray_batch.Model):
    """Writes down each call."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.folder = path.parent

    def __call__(self, batch: ray_batch.Batch) -> ray_batch.Batch:
        scored = super().__call__(batch)
        with (self.folder / "calls").open("a") as file:
            file.write(f"{os.getpid()} {len(scored['id'])}\n")
        return scored


class Dying(Recording):
    """Is killed once, between the call of a batch and its end."""

    def __call__(self, batch: ray_batch.Batch) -> ray_batch.Batch:
        scored = super().__call__(batch)
        killed = self.folder / "killed"
        if DEADLY_ROW in batch["id"] and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return scored


class Slow(Recording):
    """Takes long enough for a cluster to be ended meanwhile."""

    def __call__(self, batch: ray_batch.Batch) -> ray_batch.Batch:
        time.sleep(0.1)
        return super().__call__(batch)


MODELS = {"recording": Recording, "dying": Dying, "slow": Slow}


def main(folder: Path, model: str) -> int:
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    try:
        if not (folder / "model.turbine").exists():
            ray_batch.write_inputs(folder / "inputs", ROWS)
            ray_batch.export_model(folder / "model.turbine")
        ray_batch.score(folder, 1, MODELS[model])
        return ray_batch.check(folder)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
