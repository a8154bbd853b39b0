"""Begin one compiler request: in a worker process, or in this one for debugging."""

from __future__ import annotations

from dataclasses import dataclass

from turbine import config
from turbine.compiler import pool, session
from turbine.compiler.session import Outcome, Request


@dataclass(frozen=True)
class JobHere:
    """A compile in this process, done when its result is asked for; no time limit stops it."""

    request: Request

    def __enter__(self) -> JobHere:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def result(self, timeout: float) -> Outcome:
        """Compile."""
        return session.run(self.request)


Job = pool.Job | JobHere


def begin(request: Request, *, in_process: bool | None = None) -> Job:
    """Start on a request: `with begin(request) as job: outcome = job.result(timeout)`."""
    if config.current().in_process if in_process is None else in_process:
        return JobHere(request)
    return pool.begin(request)


def run(
    request: Request, *, timeout: float | None = None, in_process: bool | None = None
) -> Outcome:
    """The outcome of a request; arguments left out come from the configuration."""
    with begin(request, in_process=in_process) as job:
        return job.result(config.current().compile_timeout if timeout is None else timeout)
