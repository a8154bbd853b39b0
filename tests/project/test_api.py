"""The public API is visible to help(), dir() and editors."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import turbine

pytestmark = pytest.mark.tiny

DOORS = {"aot", "kernel", "ops", "passes", "runtime", "load", "explain", "config", "errors"}


def test_dir_lists_public_names_only() -> None:
    listed = dir(turbine)
    assert set(listed) >= DOORS
    assert all(hasattr(turbine, name) for name in listed)
    assert not {"importlib", "Any", "TYPE_CHECKING"} & set(listed)


@pytest.mark.parametrize("name", ["compile", "export"])
def test_missing_names_suggest_their_module(name: str) -> None:
    with pytest.raises(AttributeError, match=r"turbine\.aot\.export"):
        getattr(turbine, name)


@pytest.mark.parametrize("door", ["", ".aot", ".kernel", ".ops", ".passes", ".runtime"])
def test_every_public_function_and_class_has_a_docstring(door: str) -> None:
    module = import_module(f"turbine{door}")
    public = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    bare = [n for n, value in public.items() if callable(value) and not inspect.getdoc(value)]
    assert not bare


@pytest.mark.parametrize("function", [turbine.aot.export, turbine.aot.ExportOutput.compile])
def test_every_parameter_is_documented(function: Any) -> None:
    text = inspect.getdoc(function)
    assert text is not None
    parameters = set(inspect.signature(function).parameters) - {"self"}
    assert not [name for name in parameters if f"{name}:" not in text]


def test_the_package_is_typed() -> None:
    assert (Path(turbine.__file__).parent / "py.typed").exists()
    assert (Path(turbine.kernel.lang.__file__).with_suffix(".pyi")).exists()
