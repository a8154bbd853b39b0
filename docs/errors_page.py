"""Write docs/errors.md from the classes in turbine/errors.py: `python docs/errors_page.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

from turbine import errors

PAGE = Path(__file__).with_name("errors.md")
HEAD = """# Errors

Every error is a `turbine.errors.TurbineError`. It says what failed and, if known, where in your
code and how to fix it, also as the attributes `fact`, `where` and `hint`. This page is made from
`turbine/errors.py`.

| error | is also a | when |
| --- | --- | --- |
"""


def page() -> str:
    """The page's text."""
    classes = [c for c in vars(errors).values() if inspect.isclass(c)]
    return HEAD + "".join(_row(c) for c in classes if issubclass(c, errors.TurbineError))


def _row(error: type[errors.TurbineError]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    return f"| `{error.__name__}` | {bases} | {inspect.getdoc(error)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
