"""Libraries that are optional: a name in, the library or how to get it out."""

from __future__ import annotations

import importlib
from types import ModuleType

from turbine import errors


def import_extra(name: str, extra: str) -> ModuleType:
    """Import a library that one of Turbine's extras installs.

    >>> import_extra("json", "onnx").dumps({})
    '{}'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise errors.MissingExtra(
            f"{name} cannot be imported: {error}", hint=f"pip install turbine[{extra}]"
        ) from error
