"""Describe the code of an export: what its dispatches are, and its stages for a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from turbine.compiler import pipeline
from turbine.lower.body import user_line
from turbine.mlir import context as mlir_context
from turbine.mlir.ir import Module
from turbine.mlir.located_text import NODE
from turbine.page import graph_stages
from turbine.page.graph_stages import NodeNames
from turbine.page.stages import Stages
from turbine.target import Target

# What a manifest has of a dispatch; the rest of its description is in the stages.
_LISTED = ("name", "lines", "mflop", "megabytes")


@dataclass(frozen=True)
class Source:
    """A module in the torch dialect, and the graphs that it was lowered from, if any."""

    module: Module
    graphs: Mapping[str, fx.GraphModule]


@dataclass(frozen=True)
class Description:
    """The dispatches as a manifest lists them, and the stages."""

    dispatches: list[dict[str, Any]]
    stages: Stages


def describe(
    source: Source,
    names: NodeNames,
    prepare: Callable[[Module], Module],
    target: Target,
    strategy: str,
    *,
    in_process: bool | None,
) -> Description:
    """Describe code that was compiled with a strategy; `prepare` is what the compiler takes."""
    code = mlir_context.to_bytecode(prepare(source.module))
    found = pipeline.describe_dispatches(code, target, strategy, in_process=in_process)
    assembly = pipeline.assembly_of(code, target, strategy=strategy, in_process=in_process)
    stages = graph_stages.build(source.graphs, names, source.module, found, assembly)
    return Description([_listed(row, names) for row in found], stages)


def _listed(row: Mapping[str, Any], names: NodeNames) -> dict[str, Any]:
    lines = [_line(origin, names) for origin in row["lines"]]
    known = list(dict.fromkeys(line for line in lines if line is not None))
    return {**{name: row[name] for name in _LISTED}, "lines": known}


def _line(origin: str, names: NodeNames) -> str | None:
    node = names.nodes.get(origin.rpartition(":")[0]) or names.nodes.get(origin)
    if node is not None:
        return user_line(node)
    return None if origin.startswith(NODE) else origin
