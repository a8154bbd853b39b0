"""Remember on disk which ops the compiler refused, with which types, for this version of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import fx

from turbine import config, target
from turbine.compiler import cache, session
from turbine.version import __version__


def refusal(node: fx.Node) -> str | None:
    """Why the compiler refused an op like this one, if it did."""
    knobs = config.current()
    return _read(key(node), str(knobs.cache_dir)) if knobs.cache else _here.get(key(node))


def remember(node: fx.Node, reason: str) -> None:
    """Do not ask the compiler for an op like this one again."""
    _here[key(node)] = reason
    if config.current().cache:
        cache.write(
            key(node), cache.Entry(b"", {"what": f"refused {node.target}", "reason": reason})
        )
        _read.cache_clear()


# For those who keep nothing on disk.
_here: dict[str, str] = {}


@lru_cache(maxsize=10_000)
def _read(key: str, folder: str) -> str | None:
    entry = cache.read(key)
    return None if entry is None else str(entry.facts["reason"])


def key(node: fx.Node) -> str:
    """What stands for an op with these types and options, under this version of the compiler."""
    arguments = fx.map_arg((node.args, node.kwargs), lambda n: _typed(n.meta.get("val")))
    versions = ("refused", session.version(), __version__, target.host_architecture())
    return cache.key_of([*versions, config.current().target, str(node.target), repr(arguments)])


class _Typed(str):
    """A type as text, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _typed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return _Typed([_typed(v) for v in value])
    if not isinstance(value, torch.Tensor):
        return _Typed(type(value).__name__)
    sizes = ["?" if isinstance(size, torch.SymInt) else str(size) for size in value.shape]
    return _Typed(f"{value.dtype}[{', '.join(sizes)}]")
