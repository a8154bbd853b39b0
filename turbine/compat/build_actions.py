"""Exports as actions of `iree.build`: a function that exports in, files of IR out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

from iree.build.executor import ActionConcurrency, BuildAction, BuildContext, BuildFile

from turbine import errors
from turbine.aot.output import ExportOutput


def turbine_generate(
    generator: Callable[..., Any],
    *args: Any,
    name: str,
    out_of_process: bool = True,
    **kwargs: Any,
) -> list[BuildFile]:
    """Call a function in the build, and write its exports as NAME.mlir, or NAME_0.mlir and so on.

    The function is annotated to return an `ExportOutput` or a tuple of them. Out of process, it has
    to be one that can be pickled, with its arguments: a function of a module, and plain values.
    """
    context = BuildContext.current()
    count = _result_count(generator)
    names = [name] if count == 1 else [f"{name}_{index}" for index in range(count)]
    files = [context.allocate_file(f"{each}.mlir") for each in names]
    action = _Generate(
        partial(generator, *args, **kwargs),
        files,
        desc=f"Export {name}",
        executor=context.executor,
        concurrency=ActionConcurrency.PROCESS if out_of_process else ActionConcurrency.THREAD,
    )
    for file in files:
        file.deps.add(action)
    return files


def _result_count(generator: Callable[..., Any]) -> int:
    said = inspect.signature(generator, eval_str=True).return_annotation
    kinds = get_args(said) if get_origin(said) is tuple else (said,)
    if not all(isinstance(kind, type) and issubclass(kind, ExportOutput) for kind in kinds):
        raise errors.ConfigError(
            f"a generator of IR is annotated to return {said}",
            hint="write -> ExportOutput, or -> tuple[ExportOutput, ExportOutput]",
        )
    return len(kinds)


class _Generate(BuildAction):  # type: ignore[misc]  # IREE's build has no types
    def __init__(self, generate: Callable[[], Any], files: Sequence[BuildFile], **how: Any) -> None:
        super().__init__(**how)
        self.generate = generate
        self.files = files

    def _remotable_thunk(self) -> Callable[[], None]:
        return _Saved(self.generate, [file.get_fs_path() for file in self.files])


@dataclass(frozen=True)
class _Saved:
    """A call that may run in another process, and the files to write its exports to."""

    generate: Callable[[], Any]
    paths: Sequence[Path]

    def __call__(self) -> None:
        given = self.generate()
        outputs = given if isinstance(given, (tuple, list)) else [given]
        if len(outputs) != len(self.paths) or not all(isinstance(o, ExportOutput) for o in outputs):
            raise errors.ExportError(
                f"{len(self.paths)} exports were announced, the generator gave {given!r}",
                hint="return one turbine.aot.export(...) for each that is announced, in order",
            )
        for output, path in zip(outputs, self.paths, strict=True):
            output.save_mlir(path)
