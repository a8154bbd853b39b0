"""Rows and quantities in, text with aligned columns out."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Lines with aligned columns; `right` names the columns that align right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def fit(text: str, width: int) -> str:
    """The text, or as much of it as fits in a line of a width."""
    return text if len(text) <= width else f"{text[: max(width - len(_CUT), 0)]}{_CUT}"


_CUT = " ..."


def bytes_text(count: int) -> str:
    """A size in the unit that suits it: "512 B", "1.5 KiB", "46.8 MiB"."""
    if count < 1024:
        return f"{count} B"
    size, units = count / 1024, iter(("KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024 and unit != "GiB":
        size, unit = size / 1024, next(units)
    return f"{size:.1f} {unit}"


def age_text(seconds: float) -> str:
    """A length of time in its largest whole unit: "5 s", "3 min", "2 d"."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
