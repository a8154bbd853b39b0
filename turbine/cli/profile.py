"""`turbine profile`: an artifact in, the time of each of its dispatches out."""

from __future__ import annotations

import json as jsons
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from turbine.cli.arguments import arguments
from turbine.cli.options import Assignment, check_output
from turbine.progress import progress


def profile_artifact(
    artifact: Annotated[Path, "file that `turbine compile` wrote"],
    *,
    input: Annotated[tuple[str, ...], "an input: x.npy, x.npz, 8x3xf32 or 8x3xf32=2.5", "-i"] = (),
    function: Annotated[str | None, "which entry point, if there are several", "-f"] = None,
    size: Annotated[tuple[Assignment, ...], "a dynamic size of generated inputs, NAME=VALUE"] = (),
    weights: Annotated[Path | None, "an archive to use in place of the artifact's weights"] = None,
    calls: Annotated[int, "how many calls to time"] = 10,
    rows: Annotated[int, "how many dispatches to show"] = 20,
    trace: Annotated[Path | None, "write a .json for Perfetto and chrome://tracing"] = None,
    json: Annotated[bool, "print the figures as JSON"] = False,
) -> int:
    """Show where the time of a compiled model goes, dispatch by dispatch.

    Inputs are given as for `turbine run`. Lines of the model and rates are shown for
    artifacts that were compiled with `turbine compile --describe`.

    example:
      turbine profile lenet.turbine --trace lenet.json
    """
    from turbine.runtime.artifact import load
    from turbine.runtime.profiler import profile

    if trace is not None:
        check_output(trace, (".json",))
    with progress(f"profiling {artifact.name}"):
        loaded = load(artifact, weights=weights)
        args, kwargs = arguments(loaded.function(function).signature, input, size)
        found = profile(loaded, args, kwargs, function=function, calls=calls)
    if trace is not None:
        found.save_trace(trace)
    if json:
        facts = {"artifact": str(artifact), "calls": calls, "milliseconds": found.milliseconds}
        print(jsons.dumps({**facts, "rows": [asdict(row) for row in found.rows]}, indent=2))
    else:
        print(found.text(rows, peaks=_peaks() if loaded.manifest.get("dispatches") else None))
    return 0


def _peaks() -> tuple[float, float] | None:
    """Peak FLOP/s and bytes/s of this machine; None without PyTorch, which measures them."""
    try:
        from turbine.kernel.inspection.peaks import peaks
    except ImportError:
        return None
    with progress("measuring this machine"):
        found = peaks()
    return found.operations, found.bandwidth
