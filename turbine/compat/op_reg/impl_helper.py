"""Emit ops from MLIR templates: a template and its values in, a function of the module out."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from turbine import errors
from turbine.compat.op_reg.building import KernelBuilder
from turbine.mlir import context as mlir_context
from turbine.mlir import function
from turbine.mlir.ir import Location, Operation, Value
from turbine.ops.ir_builder import bring_in


class TemplateLoader(ABC):
    """Loads MLIR templates by name."""

    @abstractmethod
    def render(self, name: str, **kwargs: Any) -> str:
        """The text of a template, with its values."""

    def load_template(self, kb: KernelBuilder, name: str, **kwargs: Any) -> Operation:
        """A template as a new module."""
        return self._parse(kb, name, self.render(name, **kwargs)).operation

    def inline_template_function(
        self, kb: KernelBuilder, template_file: str, function_name: str, **kwargs: Any
    ) -> Operation:
        """Add the functions of a template to the module, and return one of them."""
        text = self.render(template_file, **kwargs)
        self._parse(kb, template_file, text)
        return bring_in(text, kb.module, op=kb.ksel.op.qualified, name=function_name)

    def _parse(self, kb: KernelBuilder, name: str, text: str) -> Any:
        try:
            return mlir_context.parse(text, kb.context)
        except errors.CompileError as error:
            lines = "\n".join(f"{n:>5}: {line}" for n, line in enumerate(text.splitlines(), 1))
            raise errors.CustomOpError(
                f"{kb.ksel.op.qualified}: the template {name!r}: {error.fact}\n{lines}",
                where=error.where,
            ) from error


class ASMLoader(TemplateLoader):
    """Loads the same text for every name."""

    def __init__(self, asm: str) -> None:
        self.asm = asm

    def render(self, name: str, **kwargs: Any) -> str:
        """The text, unchanged."""
        return self.asm


class _FileLoader(TemplateLoader):
    """Loads files from a folder next to a module."""

    def __init__(
        self, package_name: str, package_path: str = "templates", *, suffix: str = ".mlir"
    ) -> None:
        self.folder = _folder(package_name) / package_path
        self.suffix = suffix

    def render(self, name: str, **kwargs: Any) -> str:
        """The text of the file, with its values."""
        path = self.folder / f"{name}{self.suffix}"
        if not path.is_file():
            valid = [file.name.removesuffix(self.suffix) for file in self.folder.glob("*")]
            raise errors.CustomOpError(
                errors.unknown("template", name, valid), where=str(self.folder)
            )
        return self._fill(path.read_text(), kwargs)

    @abstractmethod
    def _fill(self, text: str, values: Mapping[str, Any]) -> str: ...


class StrFormatTemplateLoader(_FileLoader):
    """Loads `templates/<name>.mlir` next to a module, and formats it with `str.format`."""

    def _fill(self, text: str, values: Mapping[str, Any]) -> str:
        return text.format(**values)


class JinjaTemplateLoader(_FileLoader):
    """Loads `templates/<name>.mlir` next to a module, and renders it with Jinja."""

    def _fill(self, text: str, values: Mapping[str, Any]) -> str:
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self.folder), undefined=jinja2.StrictUndefined
        )
        return environment.from_string(text).render(**values)


def call_function(target_function: Operation, *operands: Value | list[Value] | None) -> list[Value]:
    """Emit a call of a function; lists are flattened, and None is left out."""
    nested = (one if isinstance(one, list) else [one] for one in operands)
    given = [value for values in nested for value in values if value is not None]
    return function.invoke(target_function.operation, given, Location.current)


def _folder(module_name: str) -> Path:
    module = sys.modules.get(module_name) or import_module(module_name)
    if module.__file__ is None:
        raise errors.CustomOpError(
            f"cannot find templates of module {module_name}: it has no file",
            hint="pass the __name__ of a module in a .py file",
        )
    return Path(module.__file__).parent
