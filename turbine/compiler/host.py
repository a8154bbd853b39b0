"""Resolve "the CPU of this machine" to the model and features LLVM knows it by."""

from __future__ import annotations

import re
from functools import cache as memoize

from turbine import errors, target
from turbine.compiler import cache, invoke, session
from turbine.target import Target

_PROBE = b"func.func @f(%x: tensor<1xf32>) -> tensor<1xf32> { return %x : tensor<1xf32> }"
_CPU = re.compile(r'[{ ]cpu = "(?P<cpu>[^"]*)"')
_FEATURES = re.compile(r'cpu_features = "(?P<features>[^"]*)"')
_TRIPLE = re.compile(r'target_triple = "(?P<architecture>[^-"]*)-')


@memoize
def resolve(wanted: Target) -> Target:
    """The target with its real CPU name and features; other kinds stay as they are."""
    if wanted.kind != "cpu":
        return wanted
    probed = _probe(wanted)
    found = Target(
        "cpu",
        _first(_CPU, probed, "generic"),
        _without_repeats(_first(_FEATURES, probed, "")),
        _first(_TRIPLE, probed, target.host_architecture()),
    )
    if not found.features and wanted.chip not in ("host", "generic"):
        raise errors.UnknownTarget(
            f"no CPU named {wanted.chip!r} for {target.host_architecture()}",
            hint="use a name that LLVM knows, 'cpu:generic', or 'cpu' for this machine",
        )
    return found


def _probe(wanted: Target) -> str:
    """The target description the compiler writes for a trivial program; remembered on disk."""
    key = cache.key_of(["host", session.version(), wanted.chip, target.host_fingerprint()])
    known = cache.read(key)
    if known is not None:
        return known.data.decode()
    request = session.Request(_PROBE, (*wanted.flags,), until="preprocessing")
    outcome = invoke.run(request)
    if outcome.data is None:
        raise errors.UnknownTarget(
            f"the compiler does not take target {wanted.text!r}: "
            + "; ".join(d.message for d in outcome.diagnostics)
        )
    cache.write(key, cache.Entry(outcome.data, {"what": f"target {wanted.text}"}))
    return outcome.data.decode()


def _first(pattern: re.Pattern[str], text: str, default: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found is not None else default


def _without_repeats(features: str) -> str:
    return ",".join(dict.fromkeys(features.split(",")))
