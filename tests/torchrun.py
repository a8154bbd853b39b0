"""torchrun with an agent for each machine, all of them on this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 300  # seconds

Agents = list[subprocess.Popen[bytes]]


@contextmanager
def agents(
    folder: Path, program: Path, *words: str, options: Sequence[str] = (), count: int = 2
) -> Iterator[Agents]:
    """Start a program by several agents of one worker each; all of it ends with the block.

    They meet in a file, and print to `agent0.log` and so on.
    """
    meeting = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-id=test"]
    meeting.append(f"--rdzv-endpoint={folder / 'meeting'}")
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}", *meeting]
    started: Agents = []
    try:
        for number in range(count):
            with (folder / f"agent{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [*torchrun, *options, str(program), *words],
                        cwd=folder,
                        env=environment(),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield started
    finally:
        for agent in started:
            _end(agent)


def environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # docs/scale.md says why
    }


def wait(folder: Path, started: Agents) -> str:
    """What the agents print; they have to succeed."""
    with suppress(subprocess.TimeoutExpired):
        for agent in started:
            agent.wait(PATIENCE)
    codes = [agent.poll() for agent in started]
    printed = "\n".join(log.read_text() for log in sorted(folder.glob("agent*.log")))
    assert codes == [0] * len(started), printed
    return printed


def worker(agent: subprocess.Popen[bytes], program: Path) -> int | None:
    """The process that runs the program for an agent."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    for child in children:
        with suppress(OSError):
            if str(program).encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return int(child)
    return None


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End an agent; it ends its workers, unless it is too late for that."""
    agent.terminate()
    try:
        agent.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
