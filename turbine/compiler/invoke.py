"""Run one compiler request: in a worker process, or in this one for debugging."""

from __future__ import annotations

from turbine import config
from turbine.compiler import pool, session
from turbine.compiler.session import Outcome, Request


def run(
    request: Request, *, timeout: float | None = None, in_process: bool | None = None
) -> Outcome:
    """The outcome of a request; arguments left out come from the configuration."""
    knobs = config.current()
    if knobs.in_process if in_process is None else in_process:
        return session.run(request)
    return pool.run(request, timeout=knobs.compile_timeout if timeout is None else timeout)
