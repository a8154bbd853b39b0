"""`turbine fuzz`: a seed in, random programs that fail out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from turbine import errors
from turbine.tables import table

if TYPE_CHECKING:
    from turbine.fuzz.session import Finding, Tally


def fuzz_programs(
    *,
    minutes: Annotated[float, "how long to run"] = 1.0,
    seed: Annotated[int, "the same seed gives the same programs"] = 0,
    kind: Annotated[Literal["all", "models", "kernels"], "kind of programs"] = "all",
    jobs: Annotated[int, "processes to run in parallel"] = os.cpu_count() or 1,
    case: Annotated[int | None, "run only the program of this number"] = None,
    output: Annotated[Path | None, "folder for a script of each failure", "-o"] = None,
    shrink_seconds: Annotated[float, "how long to shrink each failing program"] = 60.0,
) -> int:
    """Compile random models and kernels and compare them with eager PyTorch.

    Models run under torch.compile and as exports, with static and dynamic shapes; kernels run
    compiled and in the interpreter. Two of five run between guard pages. A failing program is made
    small and printed as a script that pastes into an issue. The exit code is 1 if one fails.

    example:
      turbine fuzz --minutes 0.2 --seed 7
    """
    from turbine.fuzz.session import KINDS, Tally, fuzz, run_case

    if minutes <= 0 or jobs < 1:
        raise errors.ConfigError(f"nothing to do: {minutes=} {jobs=}", hint="use more than 0")
    kinds = KINDS if kind == "all" else (kind,)
    tally = Tally()
    if case is not None:
        found = iter(run_case(case, kinds=kinds, shrink_seconds=shrink_seconds, tally=tally))
    else:
        found = fuzz(
            seed=seed,
            seconds=60 * minutes,
            jobs=jobs,
            kinds=kinds,
            shrink_seconds=shrink_seconds,
            tally=tally,
        )
    findings = list(_report(found, output))
    print(_text(tally))
    print(f"{tally.total} programs, {len(findings)} failed; seed {seed}")
    return int(bool(findings))


def _report(found: Iterator[Finding], output: Path | None) -> Iterator[Finding]:
    for finding in found:
        print(f"program {finding.number} fails: {finding.problem}", file=sys.stderr, flush=True)
        print(finding.script(), flush=True)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"fuzz_{finding.number}.py").write_text(finding.script())
        yield finding


def _text(tally: Tally) -> str:
    verdicts = ("agreed", "refused", "failed")
    modes = dict.fromkeys(mode for mode, _ in tally.counts)
    rows = [(mode, *(str(tally.counts[mode, verdict]) for verdict in verdicts)) for mode in modes]
    return table([("", *verdicts), *sorted(rows)], right=range(1, 4))
