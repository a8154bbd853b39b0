"""Every error a user can meet: what failed, where, and how to fix it."""

from __future__ import annotations

import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from types import FrameType

# Note [Built-in bases]
# The other bases of each error are what iree-turbine, IREE and PyTorch raise in its place, so that
# callers who catch those still do.


class TurbineError(Exception):
    """Base of all errors raised by turbine: what failed, where, and how to fix it."""

    def __init__(self, fact: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.fact = fact
        self.where = where
        self.hint = hint
        super().__init__(fact, where, hint)

    def __str__(self) -> str:
        where = f"\n  where: {self.where}" if self.where is not None else ""
        hint = f"\n  hint: {self.hint}" if self.hint is not None else ""
        return f"{self.fact}{where}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.fact, self.where, self.hint)


def _rebuild(
    kind: type[TurbineError], fact: str, where: str | None, hint: str | None
) -> TurbineError:
    return kind(fact, where=where, hint=hint)


class ConfigError(TurbineError, ValueError):
    """An option that does not exist, or a value it cannot take."""


class UnknownTarget(TurbineError, ValueError):
    """A target name that is not one of those listed in the message."""


class UnsupportedDtype(TurbineError, TypeError, ValueError):
    """A dtype without a row in the dtype table."""


class ExportError(TurbineError, RuntimeError, ValueError):
    """PyTorch could not capture the model, or the captured graph cannot be compiled."""


class UnsupportedOp(ExportError, NotImplementedError):
    """Ops that cannot be lowered to the compiler's IR; the message names all of them."""


class ProcedureError(ExportError, TypeError):
    """A compiled module whose declarations clash, or a procedure that cannot be traced."""


class TransformError(TurbineError, ValueError):
    """A transform of IR that cannot be applied; the IR is unchanged."""


class CustomOpError(TurbineError, RuntimeError):
    """An invalid declaration, emission or call of a custom op."""


class KernelError(TurbineError, ValueError):
    """An invalid TK kernel, or a call with arguments that do not fit it."""


class CompileError(TurbineError, RuntimeError):
    """Every strategy failed; the message holds the first diagnostic and its source line."""


class UnsupportedOpInIR(CompileError):
    """The compiler has no lowering for an op of the program."""


class CompileTimeout(CompileError):
    """The compiler ran past `compile_timeout` and was stopped."""


class CompilerCrash(CompileError):
    """The compiler process crashed; the calling process goes on."""


class LinkerError(CompileError):
    """IREE's linker cannot be started, so nothing can be compiled."""


class ArgumentError(TurbineError, ValueError, TypeError):
    """A call with an argument of the wrong structure, shape, dtype, device or range."""


class StateError(TurbineError, KeyError):
    """An unknown name of a program's state, or a call without the session that it needs."""

    __str__ = TurbineError.__str__


class ArtifactError(TurbineError, RuntimeError):
    """A file that is damaged, or not an artifact."""


class ArtifactVersionError(ArtifactError):
    """An artifact written in a format, or by an IREE, that this version cannot run."""


class ArtifactTargetError(ArtifactError):
    """An artifact compiled for another machine."""


class DeviceError(ArtifactTargetError, ValueError):
    """A driver or device that is missing or cannot be used, or no current device."""


class TrainingModeWarning(UserWarning):
    """A model exported in training mode, with ops that behave differently in it."""


class SlowCodeWarning(UserWarning):
    """A program that compiles only to slow code."""


class ParameterError(TurbineError, RuntimeError, ValueError):
    """Weights that are missing, or whose shape or dtype differs from the program's."""


class RunError(TurbineError, RuntimeError):
    """The compiled program failed at run time; later calls are not affected."""


class MissingExtra(TurbineError, ImportError):
    """A required optional library is not installed."""


class UnknownModule(TurbineError, ModuleNotFoundError):
    """An import path of iree-turbine that has no counterpart here."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for an unknown name, with the valid names, nearest first."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=3, cutoff=0.4)
    ordered = near + [n for n in names if n not in near]
    listed = f"valid: {', '.join(ordered)}" if ordered else "there are none"
    return f"unknown {kind} {name!r}; {listed}"


# Code that is not the user's: libraries, and code that they generate.
_LIBRARIES = ("/site-packages/", "/torch/", f"{sysconfig.get_path('stdlib')}/")
_FOREIGN = (*_LIBRARIES, "<eval_with_key>", "<string>")
_OWN_FOLDER = f"{Path(__file__).parent}/"


def user_place(places: Sequence[str]) -> str | None:
    """Of "file:line" places, innermost first: the first in the user's own code, else the first."""
    own = [p for p in places if _is_users(p)]
    return next(iter([*own, *places]), None)


def line_of_trace(stack_trace: str | None) -> str | None:
    """The same for the lines of a stack trace as PyTorch keeps it for each op."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack_trace or "")
    return user_place([f"{file}:{line}" for file, line in reversed(frames)])


def line_of_error(error: BaseException) -> str | None:
    """The line of the user's own code that led to an error, if any did."""
    frames = reversed(extract_tb(error.__traceback__))
    places = [f"{f.filename}:{f.lineno}" for f in frames if not f.filename.startswith(_OWN_FOLDER)]
    return next(filter(_is_users, places), None)


def _is_users(place: str) -> bool:
    return not any(folder in place for folder in _FOREIGN)


def user_line() -> str | None:
    """The line of the user's own code that is being executed, if any."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_outside(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's own code that is being executed."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and not _is_outside(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_outside(file: str) -> bool:
    return not file.startswith(_OWN_FOLDER) and _is_users(file)
