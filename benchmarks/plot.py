"""Draw speedups as bars: figures in, an SVG file out."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import log2
from pathlib import Path

COLORS = {
    "inductor": "#9ca3af",
    "inductor-frozen": "#6b7280",
    "onnxruntime": "#d4a72c",
    "compile": "#7cb7ff",
    "compile-frozen": "#3b82f6",
    "compile-tuned": "#1d4ed8",
    "artifact": "#5fc08a",
    "artifact-tuned": "#15803d",
}
BAR, GAP = 9, 12  # heights
LEFT, WIDTH = 190, 560  # of the bars
LEAST, MOST = 1 / 16, 4.0  # the axis is logarithmic


def draw(path: Path, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Bars from 1, which is eager: to the left is slower, to the right faster."""
    systems = [system for system in COLORS if any(system in row for row in rows.values())]
    parts, top = [*_legend(systems)], 58
    for name, row in sorted(rows.items()):
        shown = [system for system in systems if system in row]
        middle = top + BAR * len(shown) / 2
        parts.append(_text(LEFT - 8, middle + 4, name, anchor="end"))
        for system in shown:
            parts.append(_bar(top, row[system], COLORS[system]))
            top += BAR
        top += GAP
    parts = [*_axis(top), *parts]
    size = f'width="{LEFT + WIDTH + 60}" height="{top + 10}"'
    style = 'font-family="sans-serif" font-size="11" fill="#24292f"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>']
    lines.append('<rect width="100%" height="100%" fill="white"/>')
    path.write_text("\n".join([*lines, *parts, "</svg>"]) + "\n")


def _place(speedup: float) -> float:
    """Where a speedup is on the axis."""
    share = log2(min(max(speedup, LEAST), MOST) / LEAST) / log2(MOST / LEAST)
    return LEFT + share * WIDTH


def _bar(top: float, speedup: float, color: str) -> str:
    start, end = sorted((_place(1.0), _place(speedup)))
    place = f'x="{start:.1f}" y="{top}" width="{max(end - start, 1):.1f}" height="{BAR - 1}"'
    label = _text(
        _place(speedup) + (3 if speedup >= 1 else -3),
        top + 8,
        f"{speedup:.2f}",
        anchor="start" if speedup >= 1 else "end",
        size=8,
    )
    return f'<rect {place} fill="{color}"/>{label}'


def _axis(bottom: float) -> list[str]:
    parts = []
    for speedup in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4):
        x, color = _place(speedup), "#57606a" if speedup == 1 else "#d8dee4"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="48" y2="{bottom}" stroke="{color}"/>')
        parts.append(_text(x, 42, f"{speedup:g}x" if speedup >= 1 else f"1/{1 / speedup:g}"))
    return parts


def _legend(systems: list[str]) -> list[str]:
    parts, x = [], LEFT
    for system in systems:
        parts.append(f'<rect x="{x}" y="10" width="10" height="10" fill="{COLORS[system]}"/>')
        parts.append(_text(x + 14, 19, system, anchor="start"))
        x += 34 + 6 * len(system)
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 11) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"
