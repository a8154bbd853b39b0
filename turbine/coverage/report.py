"""Tables of verdicts: what was judged in, text for the terminal or a page of Markdown out."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from turbine.coverage.front_door import TITLES, FrontDoor
from turbine.coverage.verdicts import COMPILED, FREE, NO_GRADIENT, NOT_TRACED, Judged, Verdict
from turbine.tables import table

_PAGE = """\
# Coverage

Ops of PyTorch and model architectures that Turbine compiles. `make coverage` writes this page.
"""


def to_text(judged: Sequence[Judged], door: FrontDoor) -> str:
    """A row for each verdict that is worth a look, then how many there are of each status."""
    rows = [
        (item.name, way, verdict.status, verdict.reason)
        for item in judged
        for way, verdict in item.verdicts.items()
        if _is_listed(verdict)
    ]
    listing = f"{table([(door.noun, 'way', 'status', 'why'), *rows])}\n\n" if rows else ""
    return listing + table(_count(judged, door), right=range(1, 99))


def _is_listed(verdict: Verdict) -> bool:
    if verdict.status == COMPILED:
        return bool(verdict.reason)
    return verdict.status not in (FREE, NO_GRADIENT)


def _count(judged: Sequence[Judged], door: FrontDoor) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", *door.statuses, "share")]
    for way in door.ways:
        verdicts = [item.verdicts[way] for item in judged]
        counts = Counter(verdict.status for verdict in verdicts)
        rows.append((way, *(str(counts[s]) for s in door.statuses), f"{share(verdicts):.1%}"))
    return rows


def share(verdicts: Iterable[Verdict]) -> float:
    """How many of those that PyTorch traces are wholly compiled."""
    statuses = [v.status for v in verdicts if v.status not in (NOT_TRACED, NO_GRADIENT)]
    return sum(s in (COMPILED, FREE) for s in statuses) / max(len(statuses), 1)


def update_page(page: str, judged: Sequence[Judged], door: FrontDoor) -> str:
    """The page for the docs with the section of a front door written anew, the others kept."""
    sections = {**_split(page), door.title: to_section(judged, door)}
    return "\n".join([_PAGE, *(sections[title] for title in TITLES if title in sections)])


def _split(page: str) -> dict[str, str]:
    """The sections of a page by title."""
    texts = re.split(r"^## ", page, flags=re.M)[1:]
    return {text.partition("\n")[0]: f"## {text.rstrip()}\n" for text in texts}


def to_section(judged: Sequence[Judged], door: FrontDoor) -> str:
    """A section of the page, as Markdown."""
    lines = [*_head(judged, door), *_groups(judged, door), *_reasons(judged, door)]
    return "\n".join(lines) + "\n"


def _head(judged: Sequence[Judged], door: FrontDoor) -> Iterator[str]:
    yield f"## {door.title}\n"
    yield door.introduction.format(count=len(judged), version=door.version()) + "\n"
    yield from (f"- {line}" for line in door.legend)
    yield ""
    yield from to_markdown(_count(judged, door))


def _groups(judged: Sequence[Judged], door: FrontDoor) -> Iterator[str]:
    groups: dict[str, list[Judged]] = {group: [] for group in door.groups}
    for item in judged:
        groups[door.group(item.name)].append(item)
    for group, items in groups.items():
        if items:
            yield f"\n### {group}\n"
            yield from to_markdown([(door.noun, *door.ways), *map(_row, items)])


def _row(item: Judged) -> tuple[str, ...]:
    return f"`{item.name}`", *(verdict.status for verdict in item.verdicts.values())


def _reasons(judged: Sequence[Judged], door: FrontDoor) -> Iterator[str]:
    """What keeps them from being compiled, most frequent first."""
    for heading, statuses in door.explained.items():
        concerned: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for item in judged:
            for reason in _list_reasons(item, statuses):
                concerned[_shorten(reason)][item.name] = None
        rows = [
            (reason, str(len(names)), " ".join(f"`{name}`" for name in names))
            for reason, names in sorted(concerned.items(), key=lambda row: (-len(row[1]), row[0]))
        ]
        if rows:
            yield f"\n### {heading}\n"
            yield from to_markdown([("why", f"{door.noun}s", "which"), *rows])


def _list_reasons(item: Judged, statuses: Sequence[str]) -> Iterator[str]:
    for verdict in item.verdicts.values():
        if verdict.status in statuses and verdict.reason:
            yield from verdict.reason.split("; ")


def _shorten(reason: str) -> str:
    """One line that holds for every shape."""
    short = re.sub(r"(the compiler refused it|no lowering for [\w.]+).*", r"\1", reason, flags=re.S)
    return short.replace("|", "/").strip()


def to_markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; the first row is its head."""
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in body:
        yield f"| {' | '.join(row)} |"
