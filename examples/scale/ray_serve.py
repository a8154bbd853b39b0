"""Online serving on Ray Serve: requests of many clients become batches of one call.

python examples/scale/ray_serve.py --requests 200

It serves a small model on http://127.0.0.1:8000/, sends requests, compares the answers and shuts
down; --forever leaves it running. Needs `pip install turbine[ray]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse
from torch.export import Dim

import turbine
from turbine import zoo

WIDTH, LARGEST = 32, 32
Row = numpy.ndarray[Any, Any]


@serve.deployment(
    num_replicas=2,
    ray_actor_options={"num_cpus": 1},  # a call runs on one thread
    max_ongoing_requests=4 * LARGEST,  # of a replica; others wait in the proxy
    health_check_period_s=5,
    graceful_shutdown_timeout_s=10,
)
class Scorer:
    """A replica: the artifact, which is mapped once on each machine, and a queue of rows."""

    def __init__(self, path: Path) -> None:
        self.artifact = turbine.load(path, threads=1)
        self.zeros = numpy.zeros((1, WIDTH), numpy.float32)
        self.expected = numpy.asarray(self.artifact(self.zeros))

    async def __call__(self, request: Request) -> Any:
        row = numpy.asarray(await request.json(), numpy.float32)
        if row.shape != (WIDTH,):
            # One bad row is refused here: in a batch it would fail those of other clients.
            return JSONResponse(f"expected {WIDTH} numbers, got shape {row.shape}", 400)
        return await self.score(row)

    @serve.batch(max_batch_size=LARGEST, batch_wait_timeout_s=0.005)
    async def score(self, rows: list[Row]) -> list[list[float]]:
        # In a thread, so that the replica answers health checks and takes requests meanwhile.
        scores = await asyncio.to_thread(self.artifact, numpy.stack(rows))
        answers: list[list[float]] = numpy.asarray(scores).tolist()
        return answers

    def check_health(self) -> None:
        """Ray replaces the replica if this raises a few times."""
        if not numpy.array_equal(numpy.asarray(self.artifact(self.zeros)), self.expected):
            raise RuntimeError("the artifact gives other numbers than when it was loaded")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--forever", action="store_true", help="serve until Ctrl-C")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scorer.turbine"
        export_model(path)
        start(path, options.port)
        try:
            code = compare(path, options)
            while options.forever:
                time.sleep(1)
        except KeyboardInterrupt:
            code = 0
        finally:
            serve.shutdown()  # replicas finish the requests that they have
            ray.shutdown()
    return code


def start(path: Path, port: int) -> None:
    if not ray.is_initialized():
        ray.init()
    serve.start(http_options={"port": port})
    serve.run(Scorer.bind(path))


def compare(path: Path, options: argparse.Namespace) -> int:
    """Send rows one by one from several clients; the exit code is 0 if all answers are right."""
    rows = numpy.random.default_rng(0).standard_normal((options.requests, WIDTH), numpy.float32)
    artifact = turbine.load(path)
    expected = [numpy.asarray(artifact(row[None]))[0] for row in rows]
    with ThreadPoolExecutor(options.clients) as clients:
        found = list(clients.map(partial(ask, options.port), rows))
    wrong = sum(not numpy.allclose(*pair, atol=1e-5) for pair in zip(found, expected, strict=True))
    print(f"{len(found)} answers, {wrong} wrong")
    return 1 if wrong else 0


def ask(port: int, row: Row, attempts: int = 60) -> list[float]:
    """Ask until there is an answer: requests that a killed replica has fail, and are repeated."""
    for _ in range(attempts):
        try:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/", str(row.tolist()).encode()
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                scores: list[float] = json.load(answer)
                return scores
        except urllib.error.HTTPError as error:
            if error.code < 500:  # the request is at fault
                raise
        except OSError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"no answer after {attempts} attempts")


def export_model(path: Path) -> None:
    example = zoo.mlp(batch=2, features=WIDTH, hidden=64)
    rows = ({0: Dim("rows", min=1, max=LARGEST)},)
    turbine.aot.export(example.model, args=example.args, dynamic_shapes=rows).compile(path)


if __name__ == "__main__":
    sys.exit(main())
