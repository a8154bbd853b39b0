"""Lines of the model: stack traces in, the lines that ops come from and their text out."""

from __future__ import annotations

import linecache
import re
import sysconfig
from collections.abc import Iterable

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# PyTorch, the standard library and generated code never have a model's lines; other packages may.
_GENERATED = "<eval_with_key>"
_STDLIB = f"{sysconfig.get_path('stdlib')}/"
_PACKAGES = "/site-packages/"
_AROUND = 6  # lines of context


def places_of(stack_trace: str | None) -> tuple[str, ...]:
    """The frames of a model, innermost first; one of PyTorch's if there are no others."""
    frames = [f"{file}:{line}" for file, line in reversed(_FRAME.findall(stack_trace or ""))]
    own = [frame for frame in frames if not _is_foreign(frame)]
    return tuple(dict.fromkeys(own or frames[:1]))


def _is_foreign(frame: str) -> bool:
    if "/torch/" in frame or frame.startswith(_GENERATED):
        return True
    return _STDLIB in frame and _PACKAGES not in frame


def read_lines(places: Iterable[str]) -> dict[str, dict[str, str]]:
    """The text of these lines and of some around them: path -> line -> text."""
    wanted: dict[str, set[int]] = {}
    for place in places:
        path, _, line = place.rpartition(":")
        if line.isdigit():
            near = range(int(line) - _AROUND, int(line) + _AROUND + 1)
            wanted.setdefault(path, set()).update(near)
    return {path: _text_of(path, lines) for path, lines in sorted(wanted.items())}


def _text_of(path: str, numbers: set[int]) -> dict[str, str]:
    # Models in notebooks have their lines in this cache too.
    every = linecache.getlines(path)
    kept = sorted(number for number in numbers if 0 < number <= len(every))
    return {str(number): every[number - 1].rstrip("\n") for number in kept}
