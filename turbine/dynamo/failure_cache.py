"""A cache on disk of ops, with their types, and parts that the compiler rejected.

Entries are valid for one version of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from turbine import config, errors, target
from turbine.capture.control_flow import bodies
from turbine.compiler import cache, session
from turbine.config import Config
from turbine.version import __version__


def refusals(nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """The nodes that the compiler is known to reject, with reasons."""
    settings = config.current()
    versions = _versions(settings)
    found = {node: _read(_key(node, versions), settings) for node in nodes}
    return {node: str(facts["reason"]) for node, facts in found.items() if facts is not None}


def remember(node: fx.Node, reason: str) -> None:
    """Record that the compiler rejects an op with these types."""
    _write(key(node), {"what": f"refused {node.target}", "reason": reason})


def part_name(fingerprint: str, graph: fx.Graph) -> str:
    """The key of a part: its code, and the node names that an error may contain."""
    names = [node.name for node in graph.nodes]
    return cache.key_of([*_versions(config.current()), fingerprint, *names])


def part_failure(name: str) -> errors.CompileError | None:
    """The recorded error of a part, if there is one."""
    facts = _read(name, config.current())
    return None if facts is None else errors.CompileError(facts["reason"], where=facts["where"])


def remember_part(name: str, error: errors.CompileError) -> None:
    """Record that a part does not compile."""
    _write(name, {"what": "refused part", "reason": error.fact, "where": error.where})


def is_lasting(error: errors.TurbineError) -> bool:
    """Whether an error is permanent: not a lack of time, memory or a linker."""
    if isinstance(error, errors.CompilerCrash):
        return not config.current().compile_memory_mb and "SIGKILL" not in error.fact
    lasting = (errors.UnsupportedOp, errors.CompileError)
    passing = (errors.CompileTimeout, errors.LinkerError)
    return isinstance(error, lasting) and not isinstance(error, passing)


# Used if the cache on disk is off.
_here: dict[str, dict[str, Any]] = {}


def _write(name: str, facts: dict[str, Any]) -> None:
    _here[name] = facts
    if config.current().cache:
        cache.write(name, cache.Entry(b"", facts))
        _read_file.cache_clear()


def _read(name: str, settings: Config) -> dict[str, Any] | None:
    folders = (settings.cache_dir, settings.cache_seed_dir)
    return _read_file(name, folders) if settings.cache else _here.get(name)


@lru_cache(maxsize=10_000)
def _read_file(name: str, folders: tuple[Path | None, ...]) -> dict[str, Any] | None:
    entry = cache.read(name)
    return None if entry is None else entry.facts


def _versions(settings: Config) -> list[str]:
    versions = ["refused", session.version(), __version__, target.host_architecture()]
    return [*versions, settings.target, settings.strategy]


def key(node: fx.Node) -> str:
    """The key of an op with its types and options, for this version of the compiler."""
    return _key(node, _versions(config.current()))


def _key(node: fx.Node, versions: list[str]) -> str:
    arguments = fx.map_arg((node.args, node.kwargs), lambda n: _type_key(n.meta.get("val")))
    inside = [
        text
        for body in bodies(node)
        for one in body.graph.nodes
        for text in (one.format_node() or "", _key(one, []))
    ]
    return cache.key_of([*versions, str(node.target), repr(arguments), *inside])


class _Typed(str):
    """A type as text, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _type_key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return _Typed([_type_key(v) for v in value])
    if not isinstance(value, torch.Tensor):
        return _Typed(type(value).__name__)
    sizes = ["?" if isinstance(size, torch.SymInt) else str(size) for size in value.shape]
    return _Typed(f"{value.dtype}[{', '.join(sizes)}]")
