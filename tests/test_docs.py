"""Pages made from code say what the code says, and paths the docs name exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_errors_page_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "errors_page.py"))["page"]()
    hint = "run: python docs/errors_page.py"
    assert (ROOT / "docs" / "errors.md").read_text() == made, hint


def test_layout_names_every_room_of_the_house() -> None:
    text = (ROOT / "docs" / "layout.md").read_text()
    here = {p.name + "/" for p in (ROOT / "turbine").iterdir() if (p / "__init__.py").exists()}
    loose = {p.name for p in (ROOT / "turbine").glob("*.py")} - {"__init__.py", "version.py"}
    missing = [name for name in sorted(here | loose) if not re.search(rf"^  {name}", text, re.M)]
    assert not missing
