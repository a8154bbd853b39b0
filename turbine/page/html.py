"""Write the page: an explanation in, one HTML file out that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from importlib import resources
from pathlib import Path

from turbine.page.comparison import compare
from turbine.page.explanation import Explanation, times_of_ops

# In this order; the last one starts the page.
_SCRIPTS = ("model.js", "code.js", "charts.js", "tables.js", "main.js")


def page(explanation: Explanation, *, before: Explanation | None = None) -> str:
    """The page as text; `before` is an earlier run to compare with."""
    data = {
        # Traces have the events: a page would be mostly events.
        **asdict(replace(explanation, events=())),
        "times": times_of_ops(explanation),
        "before": None if before is None else before.title,
        "pairs": [] if before is None else [asdict(p) for p in compare(before, explanation)],
    }
    parts = {
        "@TITLE@": escape(explanation.title),
        "@STYLE@": _read("page.css"),
        "@SCRIPT@": "\n".join(map(_read, _SCRIPTS)),
        "@DATA@": _embed(data),
    }
    return "".join(parts.get(part, part) for part in _split(_read("page.html"), parts))


def save(path: str | Path, explanation: Explanation, *, before: Explanation | None = None) -> None:
    """Write the page to a file."""
    Path(path).write_text(page(explanation, before=before), encoding="utf-8")


def _split(template: str, names: Sequence[str] | dict[str, str]) -> list[str]:
    """The template cut around its placeholders, so that none is looked for in what fills others."""
    pieces = [template]
    for name in names:
        pieces = [part for piece in pieces for part in _around(piece, name)]
    return pieces


def _around(piece: str, name: str) -> list[str]:
    before, found, after = piece.partition(name)
    return [before, found, after] if found else [before]


def _embed(data: object) -> str:
    """JSON that no HTML parser mistakes for the end of the script around it."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
