"""Factories of models: the text "pkg.module:name" in, arguments of `turbine.aot.export` out."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from turbine import errors
from turbine.cli import arguments

if TYPE_CHECKING:
    import torch

_RETURNS = (
    "return an object with model, args, kwargs and dynamic_shapes; a tuple (model, args) or "
    "(model, args, kwargs); a dict of turbine.aot.export's arguments with 'model'; or an nn.Module"
)
_MISSING = object()
_MOST_NAMES = 8


@contextlib.contextmanager
def importable_from(folder: Path) -> Iterator[None]:
    """Import modules of a folder too, as `python -m` does for the current one."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def split(factory: str) -> tuple[str, str]:
    """Split "pkg.module:name" into the module and the name."""
    module, _, name = factory.partition(":")
    if not module or not name or module.startswith("."):
        raise errors.ExportError(
            f"{factory!r} does not name a factory", hint="write pkg.module:name, as turbine.zoo:mlp"
        )
    return module, name


def export_arguments(factory: str, inputs: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments of an export, "model" among them; inputs are for a bare nn.Module."""
    with _without_log_of_export():
        made = _make(factory, _find(factory))
    found = _parse_result(factory, made)
    if "args" not in found and "kwargs" not in found and _is_module(found["model"]):
        found["args"] = _inputs(found["model"], inputs)
    elif inputs:
        raise errors.ExportError(
            f"{factory} returns its own inputs", hint="leave out --input, or return the model alone"
        )
    return {"module_name": _identifier(factory), **found}


@contextlib.contextmanager
def _without_log_of_export() -> Iterator[None]:
    """Mute torch's log of an error that it also raises."""
    logger = logging.getLogger("torch.export")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _find(factory: str) -> Any:
    """The object that the text names."""
    module_name, path = split(factory)
    found: Any = _import(module_name)
    for name in path.split("."):
        inner = getattr(found, name, _MISSING)
        if inner is _MISSING:
            raise errors.ExportError(
                f"{module_name} has no {path!r}; {_nearest(name, found)}",
                where=getattr(sys.modules[module_name], "__file__", None),
            )
        found = inner
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _wrap_error(f"importing {name}", error) from error
        raise errors.ExportError(
            f"no module named {error.name!r}",
            hint=f"looked in {Path.cwd()} and where Python finds its packages",
        ) from error
    except (Exception, SystemExit) as error:
        raise _wrap_error(f"importing {name}", error) from error


def _make(factory: str, found: Any) -> Any:
    """The result of the factory; a module or an object that is not callable is the model itself."""
    if _is_module(found) or not callable(found):
        return found
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise _wrap_error(f"calling {factory}", error) from error


def _parse_result(factory: str, made: Any) -> dict[str, Any]:
    """The export arguments in any of the forms a factory may use."""
    if _is_model(made):
        return {"model": made}
    if _is_model(getattr(made, "model", None)):
        names = ("model", "args", "kwargs", "dynamic_shapes")
        found = {name: getattr(made, name, _MISSING) for name in names}
        return {name: value for name, value in found.items() if value is not _MISSING}
    if isinstance(made, tuple) and 2 <= len(made) <= 3 and _is_model(made[0]):
        return dict(zip(("model", "args", "kwargs"), made, strict=False))
    if isinstance(made, dict) and _is_model(made.get("model")):
        _check_names(factory, made)
        return dict(made)
    raise errors.ExportError(f"{factory} returned {_description(made)}", hint=_RETURNS)


def _check_names(factory: str, made: dict[str, Any]) -> None:
    from turbine.aot import export

    valid = [p.name for p in inspect.signature(export).parameters.values() if _is_named(p)]
    for name in made:
        if name not in valid:
            raise errors.ExportError(
                f"the dict of {factory}: {errors.unknown('argument', str(name), valid)}"
            )


def _is_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind is not inspect.Parameter.VAR_POSITIONAL


def _inputs(model: torch.nn.Module, texts: Sequence[str]) -> tuple[Any, ...]:
    """Tensors for a model without example inputs, one per text."""
    random = arguments.generator()
    values = tuple(_tensor(arguments.read(text, random)) for text in texts)
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*values)
    except TypeError as error:
        raise errors.ExportError(
            f"{type(model).__name__} takes {signature}, {len(values)} inputs given: {error}",
            hint="give one --input per argument, such as --input 1x3x224x224xf32",
        ) from error
    return values


def _tensor(value: Any) -> Any:
    """An array as a tensor, by its bytes: numpy and torch share no bfloat16."""
    import numpy
    import torch

    from turbine import dtypes

    if isinstance(value, int):
        return value
    raw = torch.from_numpy(value.reshape(-1).view(numpy.uint8))
    return raw.view(dtypes.of_numpy(value.dtype).torch).reshape(value.shape)


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _is_model(value: Any) -> bool:
    import torch

    return isinstance(value, (torch.nn.Module, torch.export.ExportedProgram))


def _identifier(factory: str) -> str:
    name = factory.rpartition(":")[2]
    return "".join(c if c.isalnum() else "_" for c in name)


def _nearest(name: str, owner: Any) -> str:
    names = sorted(n for n in dir(owner) if not n.startswith("_"))
    near = get_close_matches(name, names, n=_MOST_NAMES, cutoff=0.4) or names[:_MOST_NAMES]
    more = ", ..." if len(names) > len(near) else ""
    return f"nearest: {', '.join(near)}{more}" if near else "it has no public names"


def _description(made: Any) -> str:
    if isinstance(made, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in made) or 'nothing'}"
    return f"a value of type {type(made).__name__}"


def _wrap_error(doing: str, error: BaseException) -> errors.ExportError:
    where = errors.user_place(_places(error.__traceback__))
    return errors.ExportError(f"{doing} raised {type(error).__name__}: {error}", where=where)


def _places(trace: TracebackType | None) -> list[str]:
    """The frames of an error, innermost first, without Turbine's own and the import system's."""
    frames = reversed(traceback.extract_tb(trace)[1:])
    return [f"{f.filename}:{f.lineno}" for f in frames if "importlib" not in f.filename]
