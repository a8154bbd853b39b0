"""Compile IR to runnable bytes: target, strategies and cache around one compiler run."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from turbine import config, errors
from turbine.compiler import cache, diagnostics, host, invoke, session, strategies
from turbine.compiler.strategies import Strategy
from turbine.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """Runnable bytes, how they were made and for what."""

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
) -> Compiled:
    """Compile with the first strategy that works, or under "tune" with the fastest.

    `fingerprint` stands for the source in the cache key, for sources whose bytes hold more
    than what is compiled (such as the file names in locations).
    """
    knobs = config.current()
    wanted = knobs.strategy if strategy is None else strategy
    target = host.resolve(target)
    candidates = strategies.choose(wanted, target.kind)
    caching = knobs.cache if use_cache is None else use_cache
    key = _key(fingerprint or hashlib.sha256(source).hexdigest(), target, wanted, candidates)
    known = cache.read(key) if caching else None
    if known is not None:
        return Compiled(known.data, target, known.facts["strategy"], known.facts["seconds"], True)
    attempt = _Attempt(source, target, timeout, in_process)
    compiled = (
        attempt.fastest(candidates, measure) if wanted == "tune" else attempt.first(candidates)
    )
    if caching:
        facts = {"what": target.text, "strategy": compiled.strategy, "seconds": compiled.seconds}
        cache.write(key, cache.Entry(compiled.data, facts))
    return compiled


def _key(fingerprint: str, target: Target, wanted: str, candidates: Sequence[Strategy]) -> str:
    flags = [flag for s in candidates for flag in (s.name, *s.flags)]
    return cache.key_of(
        ["code", session.version(), str(strategies.VERSION), wanted, *flags]
        + [*strategies.COMMON, *target.flags, fingerprint]
    )


@dataclass(frozen=True)
class _Attempt:
    source: bytes
    target: Target
    timeout: float | None
    in_process: bool | None

    def first(self, candidates: Sequence[Strategy]) -> Compiled:
        """The first strategy that compiles."""
        failures = []
        for strategy in candidates:
            outcome = self.one(strategy)
            if isinstance(outcome, Compiled):
                return outcome
            failures.append(outcome)
        raise self._all_failed(failures)

    def fastest(self, candidates: Sequence[Strategy], measure: Measure | None) -> Compiled:
        """The strategy whose code measures fastest; all are compiled, several at once."""
        if measure is None:
            raise errors.ConfigError(
                'strategy "tune" needs example inputs to time', hint='use "auto" or a strategy name'
            )
        workers = max(config.current().compile_workers, 1)
        with ThreadPoolExecutor(workers) as executor:
            outcomes = list(executor.map(self.one, candidates))
        compiled = [o for o in outcomes if isinstance(o, Compiled)]
        if not compiled:
            raise self._all_failed([o for o in outcomes if isinstance(o, Failure)])
        timed = {c.strategy: measure(c) for c in compiled}
        log.info("measured %s", timed)
        return min(compiled, key=lambda c: timed[c.strategy])

    def one(self, strategy: Strategy) -> Compiled | Failure:
        """Compile with one strategy."""
        flags = (*strategies.COMMON, *self.target.flags, *strategy.flags)
        started = time.perf_counter()
        log.info("compiling for %s with strategy %s", self.target.text, strategy.name)
        try:
            outcome = invoke.run(
                session.Request(self.source, flags),
                timeout=self.timeout,
                in_process=self.in_process,
            )
        except errors.CompileError as error:
            log.info("strategy %s failed: %s", strategy.name, error)
            return Failure(strategy.name, error)
        seconds = time.perf_counter() - started
        if outcome.data is None:
            return Failure(strategy.name, _error(outcome.diagnostics))
        return Compiled(outcome.data, self.target, strategy.name, seconds, False)

    def _all_failed(self, failures: Sequence[Failure]) -> errors.CompileError:
        tried = ", ".join(failure.strategy for failure in failures)
        first = failures[0].error
        dumped = _dump(self.source)
        hint = f"tried: {tried}; the IR is in {dumped}" if dumped else f"tried: {tried}"
        return type(first)(first.fact, where=first.where, hint=_join(first.hint, hint))


def _join(*parts: str | None) -> str:
    return "; ".join(part for part in parts if part)


def _error(messages: Sequence[diagnostics.Diagnostic]) -> errors.CompileError:
    first = diagnostics.first_error(messages)
    if first is None:
        return errors.CompileError("the compiler failed without a message")
    if first.unsupported_op is not None:
        return errors.UnsupportedOpInIR(
            f"no lowering for {first.unsupported_op}: {first.message}",
            where=first.where,
            hint="give it a decomposition with turbine.aot.extend_aot_decompositions",
        )
    return errors.CompileError(first.message, where=first.where)


def _dump(source: bytes) -> Path | None:
    """Keep the IR of a failed compile where `config.dump` says, or in the cache folder."""
    knobs = config.current()
    folder = knobs.dump or knobs.cache_dir / "failed"
    name = hashlib.sha256(source).hexdigest()[:16]
    path = folder / f"{name}{'.mlirbc' if source[:2] == b'ML' else '.mlir'}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    except OSError:
        return None
    return path
