"""Find loops that take more than IREE's runtime passes to one: IREE's own compiler does not.

The program would compile, and fail when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

MOST_BINDINGS = 32
MOST_CONSTANTS = 64  # numbers of 32 bits; a size is two of these

_LAYOUT = re.compile(
    r"hal\.executable\.export .*@(?P<name>\S+) .*"
    r"#hal\.pipeline\.layout<(constants = (?P<constants>\d+), )?bindings = \[(?P<bindings>.*?)\]"
)


@dataclass(frozen=True)
class Sources:
    """The loops of a program as the compiler writes them to a folder, one executable a file."""

    folder: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler flags that make it write them."""
        return (f"--iree-hal-dump-executable-sources-to={self.folder}",)

    def problem(self) -> str | None:
        """A description of the first dispatch beyond the limits."""
        for path in sorted(self.folder.iterdir()):
            for layout in _LAYOUT.finditer(path.read_text(errors="replace")):
                bindings = layout["bindings"].count("#hal.pipeline.binding")
                constants = int(layout["constants"] or 0)
                if bindings > MOST_BINDINGS:
                    return f"{layout['name']} takes {bindings} buffers, {MOST_BINDINGS} at most"
                if constants > MOST_CONSTANTS:
                    return f"{layout['name']} takes {constants} numbers, {MOST_CONSTANTS} at most"
        return None


@contextmanager
def collect_sources() -> Iterator[Sources]:
    """A folder for one compile."""
    with TemporaryDirectory(prefix="turbine-sources-") as folder:
        yield Sources(Path(folder))
