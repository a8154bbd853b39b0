"""Resolve a target by the compiler: for "cpu", to this CPU's model and features."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache as memoize

from turbine import config, errors, target
from turbine.compiler import cache, invoke, session
from turbine.target import Target

_PROBE = b"func.func @f(%x: tensor<1xf32>) -> tensor<1xf32> { return %x : tensor<1xf32> }"
_CPU = re.compile(r'[{ ]cpu = "(?P<cpu>[^"]*)"')
_FEATURES = re.compile(r'cpu_features = "(?P<features>[^"]*)"')
_GPU = "#iree_gpu.target<"
_NOT_KNOWN = "Unknown "
_NAMES = re.compile(r"^List of accepted CPUs: (.*)$", re.M)
_TRIPLE = re.compile(r'target_triple = "(?P<architecture>[^-"]*)-')


@memoize
def resolve(wanted: Target, *, in_process: bool | None = None) -> Target:
    """The target with its real CPU name and features; other kinds are checked and stay."""
    probed = _probe(wanted, in_process)
    if wanted.kind != "cpu":
        if _GPU not in probed:
            raise _unknown(wanted, "it has no description of that chip")
        return wanted
    found = Target(
        "cpu",
        _first(_CPU, probed, "generic"),
        _merge_features(_first(_FEATURES, probed, "")),
        _first(_TRIPLE, probed, target.host_architecture()),
        wanted.devices,
    )
    if not found.features and wanted.chip not in ("host", "generic"):
        raise errors.UnknownTarget(
            f"no CPU named {wanted.chip!r} for {target.host_architecture()}", hint=_CPU_HINT
        )
    return _usable(found) if wanted.chip == "host" else found


def _usable(found: Target) -> Target:
    """This machine, without features that the CPU has and this process may not use."""
    without = [f"-{name}" for name in target.missing_features(found)]
    return replace(found, features=_merge_features(",".join([found.features, *without])))


def default_target() -> Target:
    """The target of code if the caller does not name one."""
    return resolve(target.parse(config.current().target))


def _probe(wanted: Target, in_process: bool | None) -> str:
    """The target description the compiler writes for a trivial program; remembered on disk."""
    caching = config.current().cache
    key = cache.key_of(["probe", session.version(), *wanted.flags, target.host_fingerprint()])
    known = cache.read(key) if caching else None
    if known is not None:
        return known.data.decode()
    request = session.Request(_PROBE, wanted.flags, until="preprocessing")
    try:
        outcome = invoke.run(request, in_process=in_process)
    except errors.CompilerCrash as crash:
        # What IREE does after it has said "Unknown CUDA target" and the like.
        if _NOT_KNOWN not in crash.fact:
            raise
        raise _unknown(wanted, crash.fact) from crash
    if outcome.data is None:
        why = "; ".join(d.message for d in outcome.diagnostics)
        raise _unknown(wanted, why) if _NOT_KNOWN in why else errors.CompileError(why)
    if caching:
        cache.write(key, cache.Entry(outcome.data, {"what": f"target {wanted.text}"}))
    return outcome.data.decode()


def _unknown(wanted: Target, why: str) -> errors.UnknownTarget:
    names = _NAMES.search(why)
    if names is not None:
        listed = errors.unknown("CPU", wanted.chip, names[1].split(", "))
        return errors.UnknownTarget(listed, hint=_CPU_HINT)
    chips = ", ".join(f"{wanted.kind}:{c}" for c in target.KINDS[wanted.kind].example_chips)
    return errors.UnknownTarget(
        f"the compiler does not take target {wanted.text!r}: {why}", hint=f"for instance: {chips}"
    )


_CPU_HINT = "use a name that LLVM knows, 'cpu:generic', or 'cpu' for this machine"


def _first(pattern: re.Pattern[str], text: str, default: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found is not None else default


def _merge_features(features: str) -> str:
    """The features of LLVM's chip model, overridden by those of this chip."""
    signs = {feature[1:]: feature[0] for feature in features.split(",") if feature}
    return ",".join(sign + name for name, sign in signs.items())
