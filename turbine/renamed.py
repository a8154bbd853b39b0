"""Old names of modules, which work for one release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from turbine import errors


def modules(package: str, names: Mapping[str, str]) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package whose modules got other names: old names to new ones."""

    def find(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        new = f"{package}.{names[name]}"
        errors.warn(f"{package}.{name} is now {new}", DeprecationWarning)
        return import_module(new)

    return find
