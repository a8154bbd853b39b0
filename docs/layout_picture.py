"""Draw docs/layout.svg: rooms on their floors and who imports whom, read from the code.

Run `python docs/layout_picture.py` when a test says that the picture is old. The floors are those
that docs/layout.md lists. Left out are arrows that a way over other rooms stands for, those between
neighbours, and those to the ground floor, which everything imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "turbine"
PICTURE = DOCS / "layout.svg"
WIDTH, ROW, BOX = 760, 84, (112, 36)
GROUND = "errors, config, dtypes and other facts"
NOTES = {
    "aot": "export",
    "dynamo": "torch.compile",
    "ops": "custom ops",
    "kernel": "TK",
    "capture": "torch → fx",
    "lower": "fx → MLIR",
    "passes": "MLIR → MLIR",
    "compiler": "MLIR → code",
    "runtime": "code → call",
    "mlir": "IR by hand",
}
STYLE = """
  rect { fill: #f4f6fb; stroke: #5b6b8c; rx: 5 }
  text { font: 13px sans-serif; fill: #1d2433; text-anchor: middle }
  .note { font-size: 10px; fill: #5b6b8c }
  path { fill: none; stroke: #8fa0c4; stroke-width: 1.1; marker-end: url(#tip) }
""".strip("\n")


def page() -> str:
    """The picture's text."""
    floors = _floors()
    places = dict(_places(floors))
    ground = len(floors) * ROW
    down = {(a, b) for a, b in _imports(set(places)) if places[a][1] < places[b][1]}
    arrows = _shortest(down)
    parts = [_arrow(places[a], places[b]) for a, b in sorted(arrows)]
    parts += [_box(*at, name, NOTES.get(name, "")) for name, at in places.items()]
    parts.append(
        f'<rect x="60" y="{ground}" width="{WIDTH - 120}" height="{BOX[1]}"/>\n'
        f'<text x="{WIDTH // 2}" y="{ground + 23}">{GROUND}</text>'
    )
    height = ground + BOX[1] + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">\n'
        f"<style>\n{STYLE}\n</style>\n"
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        'orient="auto"><polygon points="0,0 8,4 0,8" fill="#8fa0c4"/></marker>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _floors() -> list[list[str]]:
    """The rows of rooms in docs/layout.md, from the top; a remark follows many blanks."""
    text = (DOCS / "layout.md").read_text().partition("Who imports whom")[2]
    rows = text.split("```")[1].strip().splitlines()
    named = [re.split(r" {4,}", row)[0].split() for row in rows]
    floors = [[room for room in row if (PACKAGE / room).is_dir()] for row in named]
    return [floor for floor in floors if floor]


def _places(floors: list[list[str]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The middle of each room's upper edge."""
    for number, floor in enumerate(floors):
        for index, room in enumerate(floor):
            yield room, (WIDTH * (index + 1) // (len(floor) + 1), number * ROW + 20)


def _imports(rooms: set[str]) -> set[tuple[str, str]]:
    """Which room imports which."""
    found = set()
    for room in rooms:
        for file in (PACKAGE / room).rglob("*.py"):
            used = {name.split(".")[1] for name in _imported(ast.parse(file.read_text()))}
            found |= {(room, other) for other in used & rooms - {room}}
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turbine"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("turbine."))


def _shortest(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(a, b) for a, b in arrows if not _leads(a, b, arrows - {(a, b)})}


def _leads(start: str, end: str, arrows: set[tuple[str, str]]) -> bool:
    nexts = [b for a, b in arrows if a == start]
    return end in nexts or any(_leads(one, end, arrows) for one in nexts)


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = (start[0], start[1] + BOX[1]), (end[0], end[1] - 2)
    bend = (y2 - y1) // 2
    # A long way goes around the rooms between.
    side = 0 if y2 - y1 < ROW else (60 if x1 <= x2 else -60)
    return f'<path d="M{x1} {y1} C{x1 + side} {y1 + bend} {x2 + side} {y2 - bend} {x2} {y2}"/>'


def _box(x: int, y: int, name: str, note: str) -> str:
    width, height = BOX
    base = y + (16 if note else 23)
    text = f'<text x="{x}" y="{base}">{name}</text>'
    small = f'<text class="note" x="{x}" y="{y + 29}">{note}</text>' if note else ""
    return f'<rect x="{x - width // 2}" y="{y}" width="{width}" height="{height}"/>{text}{small}'


if __name__ == "__main__":
    PICTURE.write_text(page())
