"""Factories of models: the text "pkg.module:name" in, arguments of `turbine.aot.export` out."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from turbine import errors
from turbine.capture.export_noise import mute_log

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
            f"{factory!r} does not name a factory",
            hint="write pkg.module:name, as turbine.zoo:mlp, a .pt2 file, or hf:FOLDER",
        )
    return module, name


def export_arguments(factory: str) -> dict[str, Any]:
    """The keyword arguments of an export that the factory returns, "model" among them."""
    with mute_log("torch.export"):
        made = _make(factory, _find(factory))
    from turbine.aot.output import module_name_of

    name = module_name_of(factory.rpartition(":")[2])
    return {"module_name": name, **_parse_result(factory, made)}


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
    if is_module(found) or not callable(found):
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


def is_module(value: Any) -> bool:
    """Whether a value is an nn.Module."""
    import torch

    return isinstance(value, torch.nn.Module)


def _is_model(value: Any) -> bool:
    import torch

    return isinstance(value, (torch.nn.Module, torch.export.ExportedProgram))


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
