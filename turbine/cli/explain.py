"""`turbine explain`: an artifact or a model in, a page about its code and its costs out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from turbine import errors
from turbine.cli import sources
from turbine.cli.arguments import arguments
from turbine.cli.compile import ARTIFACT_SUFFIX, export_source
from turbine.cli.options import Assignment, check_output
from turbine.progress import progress

if TYPE_CHECKING:
    from turbine.page.explanation import Explanation
    from turbine.runtime.artifact import Artifact

_SAVED = ".json"


def explain_program(
    program: Annotated[str, "artifact, or what `turbine compile` takes: pkg.module:name, .pt2 ..."],
    *,
    html: Annotated[Path | None, "write a page that shows all of it"] = None,
    compare: Annotated[str | None, "another artifact, or a .json of --json: the run before"] = None,
    input: Annotated[tuple[str, ...], "an input: x.npy, x.npz, 8x3xf32 or 8x3xf32=2.5", "-i"] = (),
    function: Annotated[str | None, "which entry point, if there are several", "-f"] = None,
    size: Annotated[tuple[Assignment, ...], "a dynamic size of generated inputs, NAME=VALUE"] = (),
    weights: Annotated[Path | None, "an archive to use in place of the artifact's weights"] = None,
    calls: Annotated[int, "how many calls to time"] = 10,
    trace: Annotated[Path | None, "write a .json for Perfetto and chrome://tracing"] = None,
    tensorboard: Annotated[Path | None, "write a run to this log folder of TensorBoard"] = None,
    json: Annotated[Path | None, "write everything as JSON, for a later --compare"] = None,
) -> int:
    """Show what a model became, line by line, and what each line costs.

    The page has the lines of the model, its graph, IR and assembly, linked both ways, and the
    time, rate and memory of what runs. It is one file and needs no network. Artifacts keep the
    stages if they were compiled with `turbine compile --describe`; a model is compiled for this.

    example:
      turbine explain turbine.zoo:lenet --html lenet.html
    """
    from turbine.page import html as pages
    from turbine.page import traces

    _check(html, trace, json)
    if compare is not None and html is None:
        raise errors.ConfigError("--compare without --html", hint="add --html PAGE.html")
    if not program.endswith(ARTIFACT_SUFFIX):
        sources.check(program)
    before = None if compare is None else _read_earlier(compare, calls, function)
    if program.endswith(ARTIFACT_SUFFIX):
        loaded = _load(Path(program), weights)
        args, kwargs = arguments(loaded.function(function).signature, input, size)
    else:
        loaded, args, kwargs = _compile(program, input, size)
    found = _measure(loaded, args, kwargs, function, calls, program)
    if html is not None:
        pages.save(html, found, before=before)
    if trace is not None:
        traces.save_trace(trace, found)
    if json is not None:
        found.save(json)
    written = [html, trace, json]
    if tensorboard is not None:
        written.append(traces.save_tensorboard(tensorboard, found))
    for note in found.missing:
        print(f"note: not shown: {note}", file=sys.stderr)
    if any(path is not None for path in written):
        print(*(path for path in written if path is not None), sep="\n")
    else:
        print(found.text())
    return 0


def _check(html: Path | None, trace: Path | None, json: Path | None) -> None:
    for path, suffixes in ((html, (".html",)), (trace, (_SAVED,)), (json, (_SAVED,))):
        if path is not None:
            check_output(path, suffixes)


def _load(path: Path, weights: Path | None = None) -> Artifact:
    from turbine.runtime.artifact import load

    return load(path, weights=weights)


def _compile(
    source: str, inputs: tuple[str, ...], sizes: tuple[Assignment, ...]
) -> tuple[Artifact, tuple[Any, ...], dict[str, Any]]:
    """The artifact of a model, and the arguments of its example if it has any."""
    with progress(f"exporting {source}"):
        exported = export_source(source, inputs, None)
    with progress(f"compiling {exported.module_name}"):
        artifact = exported.compile(describe=True)
    examples = [entry.example for entry in exported.entry_points.values()]
    example = examples[0] if len(examples) == 1 and not sizes else None
    args, kwargs = example or arguments(artifact.function(None).signature, (), sizes)
    return artifact, args, kwargs


def _measure(
    artifact: Artifact,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    function: str | None,
    calls: int,
    title: str,
) -> Explanation:
    from turbine.page.measuring import explain_artifact

    with progress(f"measuring {title}"):
        return explain_artifact(artifact, args, kwargs, function=function, calls=calls, title=title)


def _read_earlier(program: str, calls: int, function: str | None) -> Explanation:
    """The run to compare with: a saved one, or an artifact, which is called for this."""
    from turbine.page import explanation

    if program.endswith(_SAVED):
        return explanation.load(program)
    if not program.endswith(ARTIFACT_SUFFIX):
        raise errors.ArgumentError(
            f"cannot compare with {program}",
            hint="give an artifact, or a .json file that `turbine explain --json` wrote",
        )
    loaded = _load(Path(program))
    args, kwargs = arguments(loaded.function(function).signature, (), ())
    return _measure(loaded, args, kwargs, function, calls, program)
