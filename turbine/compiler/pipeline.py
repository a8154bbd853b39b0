"""Compile IR to runnable bytes: target, strategies and cache around one compiler run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from turbine import config, errors
from turbine.compiler import cache, diagnostics, host, invoke, session, strategies
from turbine.compiler.invoke import Job
from turbine.compiler.strategies import Strategy
from turbine.progress import progress_on_terminal
from turbine.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """Compiled code, with its strategy and target."""

    data: bytes
    target: Target
    strategy: str
    seconds: float
    cached: bool


@dataclass(frozen=True)
class Failure:
    """Why one strategy gave nothing."""

    strategy: str
    error: errors.CompileError


# Times compiled bytes on real inputs; given by a front door, since only it can run them.
Measure = Callable[[Compiled], float]


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call: the median of a few, after a warm-up."""
    seconds = []
    for _ in range(_MEASURED_CALLS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[_WARMING_CALLS:])


_MEASURED_CALLS = 9
_WARMING_CALLS = 2


def compile_ir(
    source: bytes,
    target: Target,
    *,
    strategy: str | None = None,
    fingerprint: str | None = None,
    timeout: float | None = None,
    in_process: bool | None = None,
    use_cache: bool | None = None,
    measure: Measure | None = None,
    intermediates: Path | None = None,
    name: str = "",
) -> Compiled:
    """Compile with the first strategy that works, or under "tune" with the fastest.

    `fingerprint` stands for the source in the cache key, for sources whose bytes hold more
    than what is compiled (such as the file names in locations). `intermediates` is a folder that
    receives assembly and object files, for which the code is compiled in any case. `name` is what
    `turbine cache` calls the program.
    """
    if intermediates is not None:
        use_cache = False
    plan = _plan(source, target, strategy, fingerprint, timeout, in_process, use_cache, name=name)
    if intermediates is not None:
        keeping = (f"--iree-hal-dump-executable-intermediates-to={intermediates}",)
        plan = replace(plan, attempt=replace(plan.attempt, extra=keeping))
    return plan.read_cache() or plan.finish(measure)


def assembly_of(
    source: bytes,
    target: Target,
    *,
    strategy: str | None = None,
    in_process: bool | None = None,
) -> str:
    """The assembly of a program's code, which is compiled for this."""
    with tempfile.TemporaryDirectory(prefix="turbine-assembly-") as folder:
        compile_ir(
            source, target, strategy=strategy, in_process=in_process, intermediates=Path(folder)
        )
        return "\n".join(path.read_text() for path in sorted(Path(folder).glob("*.s")))


def describe_dispatches(
    source: bytes, target: Target, strategy: str, *, in_process: bool | None = None
) -> list[dict[str, Any]]:
    """Describe the dispatches of code that was compiled with a strategy."""
    target = host.resolve(target, in_process=in_process)
    (chosen,) = strategies.choose(strategy, target.kind)
    flags = (*strategies.COMMON, *target.flags, *chosen.flags)
    request = session.Request(source, flags, session.DISPATCHES, isolated=chosen.isolated)
    outcome = invoke.run(request, in_process=in_process)
    if outcome.data is None:
        raise _error(outcome.diagnostics)
    described: list[dict[str, Any]] = json.loads(outcome.data)
    return described


def begin_ir(
    source: bytes, target: Target, *, fingerprint: str | None = None, name: str = ""
) -> Pending:
    """Compile in the background as the configuration says.

    What fails is not compiled op by op: the caller does better with parts of the program.
    """
    plan = _plan(source, target, fingerprint=fingerprint, isolate=False, name=name)
    known = plan.read_cache()
    started = plan.attempt.begin(plan.candidates[0]) if known is None else None
    return Pending(plan, known, started, os.getpid())


@dataclass
class Pending:
    """A compile under way. A fork, or Ctrl-C during the wait, makes the next wait start anew."""

    _plan: _Plan
    _compiled: Compiled | None
    _started: Job | None
    _process: int

    def result(self, measure: Measure | None = None) -> Compiled:
        """Wait for the compiled bytes, or raise as `compile_ir` does."""
        if self._compiled is None:
            started, self._started = self._started, None
            self._compiled = self._plan.finish(
                measure, started if self._process == os.getpid() else None
            )
        return self._compiled


@dataclass(frozen=True)
class _Plan:
    """One compile: its cache key, and the strategies to try in order."""

    key: str | None
    wanted: str
    candidates: Sequence[Strategy]
    attempt: _Attempt
    name: str

    @property
    def what(self) -> str:
        """What is compiled, and for what."""
        target = self.attempt.target.text
        return f"{self.name} for {target}" if self.name else target

    def read_cache(self) -> Compiled | None:
        entry = cache.read(self.key) if self.key is not None else None
        if entry is None:
            return None
        strategy, seconds = entry.facts["strategy"], entry.facts["seconds"]
        return Compiled(entry.data, self.attempt.target, strategy, seconds, True)

    def finish(self, measure: Measure | None, started: Job | None = None) -> Compiled:
        """Compile; `started` is a running job of the first candidate."""
        with progress_on_terminal(f"turbine is compiling {self.what}"):
            if self.wanted == strategies.TUNE:
                compiled = self.attempt.fastest(self.candidates, measure, started)
            else:
                compiled = self.attempt.first(self.candidates, started)
        if self.key is not None:
            facts = {"what": self.what, "strategy": compiled.strategy, "seconds": compiled.seconds}
            cache.write(self.key, cache.Entry(compiled.data, facts))
        return compiled


def _plan(
    source: bytes,
    target: Target,
    strategy: str | None = None,
    fingerprint: str | None = None,
    timeout: float | None = None,
    in_process: bool | None = None,
    use_cache: bool | None = None,
    isolate: bool = True,
    name: str = "",
) -> _Plan:
    settings = config.current()
    wanted = settings.strategy if strategy is None else strategy
    target = host.resolve(target, in_process=in_process)
    offered = strategies.choose(wanted, target.kind)
    candidates = [s for s in offered if isolate or not s.isolated or s.name == wanted]
    caching = settings.cache if use_cache is None else use_cache
    digest = fingerprint or hashlib.sha256(source).hexdigest()
    limit = settings.compile_timeout if timeout is None else timeout
    return _Plan(
        cache_key(digest, target, wanted, candidates) if caching else None,
        wanted,
        candidates,
        _Attempt(source, target, limit, in_process),
        name,
    )


def cache_key(fingerprint: str, target: Target, wanted: str, candidates: Sequence[Strategy]) -> str:
    """The key of compiled code: versions, strategies, flags, target and a digest of the IR."""
    versions = ("code", session.version(), str(strategies.VERSION))
    flags = [flag for s in candidates for flag in (s.name, *s.flags)]
    machine = (*target.flags, target.architecture)
    return cache.key_of([*versions, wanted, *flags, *strategies.COMMON, *machine, fingerprint])


@dataclass(frozen=True)
class _Attempt:
    source: bytes
    target: Target
    timeout: float
    in_process: bool | None
    extra: tuple[str, ...] = ()  # flags beside the strategy's

    def first(
        self,
        candidates: Sequence[Strategy],
        started: Job | None = None,
        failed: Sequence[Failure] = (),
    ) -> Compiled:
        """The code of the first candidate that compiles; `failed` are strategies tried before."""
        failures = [*failed]
        for strategy in candidates:
            job, started = started or self.begin(strategy), None
            with job:
                outcome = self._finish(strategy, job)
            if isinstance(outcome, Compiled):
                if strategy.isolated and failures:
                    _warn_of_isolation(failures[0])
                return outcome
            failures.append(outcome)
            # What the input conversion refuses, it refuses under every strategy.
            if isinstance(outcome.error, (errors.UnsupportedOpInIR, errors.LinkerError)):
                break
        raise self._all_failed(failures)

    def fastest(
        self,
        candidates: Sequence[Strategy],
        measure: Measure | None,
        started: Job | None = None,
    ) -> Compiled:
        """The strategy whose code measures fastest; all are compiled, several at once."""
        with ExitStack() as stack:
            begun = [stack.push(started)] if started is not None else []
            if measure is None:
                raise errors.ConfigError(
                    'strategy "tune" needs example inputs to time',
                    hint='use "auto" or a strategy name',
                )
            fused = [strategy for strategy in candidates if not strategy.isolated]
            begun += [stack.push(self.begin(strategy)) for strategy in fused[len(begun) :]]
            outcomes = [self._finish(*pair) for pair in zip(fused, begun, strict=True)]
        compiled = [o for o in outcomes if isinstance(o, Compiled)]
        if not compiled:
            failures = [o for o in outcomes if isinstance(o, Failure)]
            return self.first(candidates[len(fused) :], failed=failures)
        timed = {c.strategy: measure(c) for c in compiled}
        log.info("measured %s", timed)
        return min(compiled, key=lambda c: timed[c.strategy])

    def begin(self, strategy: Strategy) -> Job:
        """Start compiling with one strategy."""
        log.info("compiling for %s with strategy %s", self.target.text, strategy.name)
        flags = (*strategies.COMMON, *self.target.flags, *strategy.flags, *self.extra)
        request = session.Request(self.source, flags, isolated=strategy.isolated)
        return invoke.begin(request, in_process=self.in_process)

    def _finish(self, strategy: Strategy, job: Job) -> Compiled | Failure:
        try:
            outcome = job.result(self.timeout)
            if outcome.data is None:
                raise _error(outcome.diagnostics)
        except errors.CompileError as error:
            log.info("strategy %s failed: %s", strategy.name, error)
            return Failure(strategy.name, error)
        return Compiled(outcome.data, self.target, strategy.name, outcome.seconds, False)

    def _all_failed(self, failures: Sequence[Failure]) -> errors.CompileError:
        first = failures[0].error
        tried = "tried: " + ", ".join(_reason(failure, first) for failure in failures)
        dumped = _dump(self.source)
        kept = f"the IR is in {dumped}" if dumped is not None else None
        return type(first)(first.fact, where=first.where, hint=_join(first.hint, tried, kept))


def _warn_of_isolation(failure: Failure) -> None:
    errors.warn(
        f"no op of this program is fused with another, which is slow: the compiler failed on fused "
        f"loops ({shorten(failure.error.fact, 200)})",
        errors.SlowCodeWarning,
    )


def _reason(failure: Failure, shown: errors.CompileError) -> str:
    """A strategy's name, and why it failed unless `shown` is the same error."""
    if failure.error.fact == shown.fact:
        return failure.strategy
    return f"{failure.strategy} ({shorten(failure.error.fact, 200)})"


def _join(*parts: str | None) -> str:
    return "; ".join(part for part in parts if part)


def _error(messages: Sequence[diagnostics.Diagnostic]) -> errors.CompileError:
    first = diagnostics.first_error(messages)
    if first is None:
        return errors.CompileError("the compiler failed without a message")
    if first.unsupported_op is not None:
        ops = dict.fromkeys(m.unsupported_op for m in messages if m.unsupported_op is not None)
        # Where the compiler names a constant, an op that takes it is to blame.
        named = [op for op in ops if not op.startswith("torch.constant.")]
        what = ", ".join(named) or "an op that takes a constant"
        return errors.UnsupportedOpInIR(
            f"no lowering for {what}: {first.message}",
            where=first.where,
            hint="give it a decomposition with turbine.aot.extend_aot_decompositions",
        )
    linker = session.find_linker()
    if _NOT_LINKED in first.message and not os.access(linker, os.X_OK):
        return errors.LinkerError(
            f"IREE's linker cannot be started: {linker}",
            hint=f"install iree-base-compiler again, or chmod +x {linker}",
        )
    return errors.CompileError(first.message, where=first.where)


_NOT_LINKED = "failed to link executable"


def _dump(source: bytes) -> Path | None:
    """Save the IR of a failed compile in the folder of `config.dump`, or of the cache."""
    dump = config.current().dump
    folder = dump or cache.failed_folder()
    suffix = ".mlirbc" if session.is_bytecode(source) else ".mlir"
    path = folder / f"{hashlib.sha256(source).hexdigest()[:16]}{suffix}"
    try:
        if dump is not None:
            dump.mkdir(parents=True, exist_ok=True)
        else:
            cache.make_folder(folder)
        path.write_bytes(source)
        cache.evict()
    except OSError:
        return None
    return path
