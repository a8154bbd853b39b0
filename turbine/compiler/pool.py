"""Keep compiler processes alive between compiles, and end them when they hang or crash."""

from __future__ import annotations

import atexit
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from turbine import config, errors
from turbine.compiler.session import Outcome, Request

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_LOG_TAIL = 2000


def run(request: Request, *, timeout: float) -> Outcome:
    """Compile in a worker process; a crash or a hang is an error here, never the end of us."""
    worker = _pool.acquire(deadline=time.monotonic() + timeout)
    healthy = False
    try:
        outcome = worker.ask(request, timeout)
        healthy = True
        return outcome
    finally:
        # Also on KeyboardInterrupt: a worker in the middle of a compile is of no more use.
        _pool.release(worker, healthy=healthy)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    log: IO[bytes]

    def ask(self, request: Request, timeout: float) -> Outcome:
        try:
            self.pipe.send(request)
            if not self.pipe.poll(timeout):
                raise errors.CompileTimeout(
                    f"the compiler did not finish in {timeout:g} s",
                    hint="raise compile_timeout, or choose another strategy",
                )
            answer = self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise self._crash() from error
        if isinstance(answer, BaseException):
            raise errors.CompileError(f"the compiler raised {answer!r}") from answer
        assert isinstance(answer, Outcome)
        return answer

    def _crash(self) -> errors.CompilerCrash:
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.log.seek(0)
        tail = self.log.read()[-_LOG_TAIL:].decode(errors="replace").strip()
        return errors.CompilerCrash(
            f"the compiler process died ({how}){': ' + tail if tail else ''}",
            hint="this is a fault of the compiler on this program; your process is unharmed",
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        self.log.close()


class _Pool:
    """At most `compile_workers` processes; callers beyond that wait their turn."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.idle: list[_Worker] = []
        self.busy = 0

    def acquire(self, deadline: float) -> _Worker:
        with self.condition:
            while self.busy >= max(config.current().compile_workers, 1):
                if not self.condition.wait(deadline - time.monotonic()):
                    raise errors.CompileTimeout("no compiler process became free in time")
            self.busy += 1
            worker = self._take_idle()
        try:
            return worker or _start()
        except BaseException:
            self._leave()
            raise

    def release(self, worker: _Worker, *, healthy: bool) -> None:
        if not healthy:
            worker.kill()
        with self.condition:
            if healthy:
                self.idle.append(worker)
        self._leave()

    def close(self) -> None:
        with self.condition:
            workers, self.idle = self.idle, []
        for worker in workers:
            worker.kill()

    def _take_idle(self) -> _Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.kill()
        return None

    def _leave(self) -> None:
        with self.condition:
            self.busy -= 1
            self.condition.notify()


def _start() -> _Worker:
    ours, theirs = Pipe()
    log = tempfile.TemporaryFile()
    search_path = os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH")]))
    command = [
        sys.executable,
        "-m",
        "turbine.compiler.worker",
        str(theirs.fileno()),
        str(os.getpid()),
    ]
    try:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": search_path},
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    except OSError as error:
        raise errors.CompileError(f"the compiler process did not start: {error}") from error
    finally:
        theirs.close()
    _limit_memory(process.pid)
    return _Worker(process, ours, log)


def _limit_memory(pid: int) -> None:
    megabytes = config.current().compile_memory_mb
    if megabytes:
        limit = megabytes * 2**20
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


_pool = _Pool()


def _forget_workers() -> None:
    """After a fork the workers belong to the parent: start over without touching them."""
    global _pool
    _pool = _Pool()


def _close(*_: Any) -> None:
    _pool.close()


atexit.register(_close)
os.register_at_fork(after_in_child=_forget_workers)
