"""Serve from threads: throughput and latency by clients, short calls beside long ones, sessions.

A client calls as soon as it has an answer. Prints a table each of an MLP with one row by clients,
of its short calls while one more client makes long ones, and of conversations over one artifact.
Every answer is compared with that of a call alone.

    python benchmarks/serving.py --seconds 2 --clients 1 2 8
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Call, warn_if_busy
from torch import Tensor, nn

import turbine
from turbine import errors, tables
from turbine.cli.comparison import onnx_session

WIDTH, HIDDEN, LONG_ROWS = 256, 1024, 4096
HISTORY = 512  # rows that a conversation keeps
OURS = "turbine"

# A tensor in, a tensor or array out.
Serve = Callable[[Tensor], Any]


class Conversation(nn.Module):
    """Keeps its last inputs, as a KV cache does, and attends to them."""

    rows: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(HISTORY, WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.layers = mlp()

    def forward(self, x: Tensor) -> Tensor:
        place = (self.count % HISTORY).reshape(1)
        self.rows.index_copy_(0, place, x)
        self.count += 1
        found: Tensor = self.layers((x @ self.rows.T).softmax(-1) @ self.rows)
        return found


@dataclass(frozen=True)
class Load:
    """What clients saw: milliseconds of each call, and seconds of all."""

    milliseconds: Sequence[float]
    seconds: float

    @property
    def rate(self) -> float:
        """Calls a second, of all clients together."""
        return len(self.milliseconds) / self.seconds

    def percentile(self, share: float) -> float:
        """The time within which a share of the calls was answered."""
        return sorted(self.milliseconds)[int(share * (len(self.milliseconds) - 1))]

    def cells(self) -> list[str]:
        """Throughput and latencies for a row of a table."""
        numbers = (self.percentile(0.5), self.percentile(0.99))
        return [f"{self.rate:.0f}", *(f"{number:.2f}" for number in numbers)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        systems = systems_of(Path(folder) / "mlp.turbine")
        print(tables.table(by_clients(systems, options), right=range(1, 5)), end="\n\n")
        print(tables.table(beside_long(systems, options), right=range(1, 8)), end="\n\n")
        path = Path(folder) / "conversation.turbine"
        x = torch.zeros(1, WIDTH)
        turbine.aot.export(Conversation().eval(), args=(x,)).compile(path)
        print(tables.table(conversations(path, options), right=range(1, 5)))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each measurement")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    return parser.parse_args(arguments)


def mlp() -> nn.Sequential:
    inner = [nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU()]
    return nn.Sequential(*inner, nn.Linear(HIDDEN, 8)).eval()


def systems_of(path: Path) -> dict[str, Serve]:
    """Each way to serve the MLP, by name."""
    threads = torch.get_num_threads()
    shapes = ({0: torch.export.Dim("rows", min=1, max=LONG_ROWS)},)
    model, args = mlp(), (torch.zeros(2, WIDTH),)
    turbine.aot.export(model, args=args, dynamic_shapes=shapes).compile(path)
    systems: dict[str, Serve] = {
        f"{OURS}, threads={count}": turbine.load(path, threads=count)
        for count in dict.fromkeys((1, threads))
    }
    try:
        sessions = {
            count: onnx_session(model, args, {}, dynamic_shapes=shapes, threads=count)
            for count in dict.fromkeys((1, threads))
        }
    except errors.MissingExtra as error:
        print(f"no rows of ONNX Runtime: {error.fact}; {error.hint}", file=sys.stderr)
        return systems
    for count, session in sessions.items():
        systems[f"ONNX Runtime, threads={count}"] = serve_onnx(session)
    return systems


def serve_onnx(session: Any) -> Serve:
    (name,) = (given.name for given in session.get_inputs())
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def by_clients(systems: dict[str, Serve], options: argparse.Namespace) -> list[list[str]]:
    """Rows: calls of one row by clients."""
    rows = [["one row", "clients", "calls/s", "p50 ms", "p99 ms"]]
    for name, serve in systems.items():
        for count in options.clients:
            calls = [checked(serve, torch.randn(1, WIDTH)) for _ in range(count)]
            rows.append([name, str(count), *serve_clients(calls, options.seconds).cells()])
    return rows


def beside_long(systems: dict[str, Serve], options: argparse.Namespace) -> list[list[str]]:
    """Rows: calls of one row by themselves, and while another client makes long ones."""
    heads = ["calls/s", "p50 ms", "p99 ms"]
    rows = [["one row, one client", *heads, *(f"{head} beside" for head in heads), "long ms"]]
    pairs = {name: (serve, serve) for name, serve in systems.items()}
    ours = [serve for name, serve in systems.items() if name.startswith(OURS)]
    pairs[f"{OURS}, short calls on 1, long on all"] = (ours[0], ours[-1])
    for name, (short, long) in pairs.items():
        call = checked(short, torch.randn(1, WIDTH))
        alone = serve_clients([call], options.seconds)
        other = checked(long, torch.randn(LONG_ROWS, WIDTH))
        other_alone = serve_clients([other], options.seconds).percentile(0.5)
        beside = serve_clients([call], options.seconds, beside=other)
        rows.append([name, *alone.cells(), *beside.cells(), f"{other_alone:.0f}"])
    return rows


def conversations(path: Path, options: argparse.Namespace) -> list[list[str]]:
    """Rows: conversations with a session each, over one artifact."""
    rows = [["sessions", "clients", "calls/s", "p50 ms", "p99 ms"]]
    for threads in dict.fromkeys((1, torch.get_num_threads())):
        artifact = turbine.load(path, threads=threads)
        for count in options.clients:
            sessions = [artifact.session() for _ in range(count)]
            calls = [partial(session, torch.randn(1, WIDTH)) for session in sessions]
            load = serve_clients(calls, options.seconds)
            assert sum(int(s.state["count"]) for s in sessions) >= len(load.milliseconds)
            rows.append([f"{OURS}, threads={threads}", str(count), *load.cells()])
            for session in sessions:
                session.close()
    return rows


def checked(serve: Serve, x: Tensor) -> Call:
    """A call that raises if its answer differs from the first one's."""
    expected = serve(x)

    def call() -> None:
        torch.testing.assert_close(serve(x), expected)

    return call


def serve_clients(calls: Sequence[Call], seconds: float, beside: Call | None = None) -> Load:
    """Make each call again and again, once at least, in a thread of its own.

    `beside` is not counted.
    """
    started = time.perf_counter()
    end = started + seconds

    def work(call: Call) -> list[float]:
        taken: list[float] = []
        while (before := time.perf_counter()) < end or not taken:
            call()
            taken.append(1e3 * (time.perf_counter() - before))
        return taken

    with ThreadPoolExecutor(len(calls) + 1) as pool:
        other = None if beside is None else pool.submit(work, beside)
        milliseconds = [one for taken in pool.map(work, calls) for one in taken]
    if other is not None:
        other.result()
    return Load(milliseconds, time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
