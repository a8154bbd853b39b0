"""Import PyTorch or say how to get it: the first import of every package that needs it."""

from __future__ import annotations

import importlib

from turbine import errors

try:
    importlib.import_module("torch")
except ImportError as error:
    raise errors.MissingExtra(
        f"this part of Turbine needs PyTorch, which cannot be imported: {error}",
        hint="pip install torch; without it, turbine.load runs artifacts that were compiled before",
    ) from error
