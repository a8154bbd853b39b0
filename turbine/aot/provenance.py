"""Where a model came from: its class, the versions in use and the commit of its source."""

from __future__ import annotations

import inspect
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from turbine.version import __version__

_PACKAGES = ("iree-base-compiler", "iree-base-runtime")


def of(model: Any) -> dict[str, Any]:
    """Facts about a model, as plain data."""
    kind = type(model)
    return {
        "model": f"{kind.__module__}.{kind.__qualname__}",
        "turbine": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: version(name) for name in _PACKAGES},
        "commit": _commit(kind),
    }


def _commit(kind: type) -> str | None:
    """The git commit of the file that defines a class, if it is under version control."""
    try:
        folder = Path(inspect.getfile(kind)).parent
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, TypeError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
