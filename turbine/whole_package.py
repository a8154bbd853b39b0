"""Whether all of Turbine is installed, or turbine-runtime alone, and how to get the rest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from turbine import errors

HINT = "pip install turbine"


def is_installed() -> bool:
    """Whether the compiler's side of Turbine is there; wheels/split.py says what the runtime is."""
    return (Path(__file__).parent / "compiler").is_dir()


def explain_absence() -> None:
    """Let imports of what turbine-runtime lacks raise an error that says how to get it."""
    finder = _Absence()
    if not is_installed() and finder not in sys.meta_path:
        sys.meta_path.append(finder)


@dataclass(frozen=True)
class _Absence(MetaPathFinder):
    """Asked last, for modules that no other finder has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise for a module of Turbine; None for others."""
        if not fullname.startswith("turbine."):
            return None
        raise errors.MissingExtra(
            f"{fullname} is not part of turbine-runtime, which runs artifacts and does not make "
            "them",
            hint=HINT,
        )
