"""What test_ray.py runs: examples/scale/ray_serve.py, one replica of which is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import urllib.error
from argparse import Namespace
from pathlib import Path

import numpy
import ray
from ray import serve

from examples.scale import ray_serve
from tests.reliability import processes

REQUESTS, CLIENTS = 400, 16


def main(folder: Path, port: int) -> int:
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    path = folder / "scorer.turbine"
    ray_serve.export_model(path)
    ray_serve.start(path, port)
    try:
        refused = ask_badly(port)
        killer = threading.Thread(target=kill_a_replica)
        killer.start()
        options = Namespace(port=port, requests=REQUESTS, clients=CLIENTS)
        # The other replica answers meanwhile, and a new one takes the place of the first.
        code = ray_serve.compare(path, options)
        killer.join()
        return code or ray_serve.compare(path, options) or refused
    finally:
        serve.shutdown()
        ray.shutdown()


def ask_badly(port: int) -> int:
    """The exit code is 0 if a row of another size is refused by name."""
    try:
        ray_serve.ask(port, numpy.zeros(3, numpy.float32))
    except urllib.error.HTTPError as error:
        sys.stdout.write(f"{error.code} {error.read().decode()}\n")
        return 0
    return 1


def kill_a_replica() -> None:
    time.sleep(0.5)  # it has requests then
    here = processes.marked(os.environ[processes.MARK])
    replicas = [
        pid for pid in here if b"ray::ServeReplica" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(replicas[0], signal.SIGKILL)
    sys.stdout.write(f"killed one of {len(replicas)} replicas\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
