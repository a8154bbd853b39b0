"""What tuning found, as a table to print, and as rows to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from turbine import errors
from turbine.kernel.call import tuning_table
from turbine.kernel.call.configuration import text
from turbine.kernel.call.tuning_table import Case, Row
from turbine.tables import fit, table

_MOST_TEXT = 90


@dataclass
class Trial:
    """A configuration that was tried."""

    configuration: dict[str, int]
    seconds: float = inf  # median of a call
    speedup: float = 0.0  # the default's time, measured in turns with this one, over its own
    problem: str | None = None  # why it was dropped
    is_finalist: bool = False  # whether it was among the fastest, which had the last turns

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Its place in the report: finalists by speed, then others, then those dropped."""
        return self.problem is not None, not self.is_finalist, -self.speedup


@dataclass(frozen=True)
class TuningReport:
    """The report of `kernel.tune`: print it, or save the winner."""

    case: Case
    trials: list[Trial]  # the default is the first
    winner: Trial
    row: Row | None  # what later calls use; None if there was nothing to compare
    seconds: float
    untried: int = 0  # candidates for which there was no time
    table: Path | None = field(default=None, repr=False)  # of the kernel

    @property
    def best(self) -> dict[str, int]:
        """The fastest configuration, as `kernel.using(**report.best)` takes it."""
        return dict(self.winner.configuration)

    @property
    def speedup(self) -> float:
        """The default's time over the winner's."""
        return self.winner.speedup

    def save(self, path: str | Path | None = None) -> Path:
        """Write the winner into a table of JSON, for `@tk.gen.kernel(..., tune=path)`.

        Rows for other kernels, machines and sizes stay. Without a path it is the table that the
        kernel reads.
        """
        target = self.table if path is None else Path(path)
        if target is None:
            raise errors.KernelError(
                f"{self.case.kernel} has no table to write to",
                hint='pass a path, report.save("tuned.json"), and give it to the kernel: tune=path',
            )
        if self.row is None:
            raise errors.KernelError(
                f"nothing was measured of {self.case.kernel}",
                hint="give tune() more seconds, or candidates",
            )
        tuning_table.add_to_table(target, self.row)
        return target

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: TuningReport) -> Iterator[str]:
    yield f"tuned {report.case}"
    rows = [("configuration", "us", "speed", "")]
    for trial in sorted(report.trials, key=lambda trial: trial.rank):
        notes = ["default"] * (trial is report.trials[0])
        notes += ["chosen"] * (trial is report.winner)
        notes += ["not in the last turns"] * (not trial.is_finalist and trial.problem is None)
        notes += [fit(f"dropped: {trial.problem}", _MOST_TEXT)] * (trial.problem is not None)
        time = "" if trial.seconds == inf else f"{1e6 * trial.seconds:.1f}"
        speed = f"{trial.speedup:.2f}" if trial.speedup else ""
        rows.append((text(trial.configuration) or "no blocks", time, speed, ", ".join(notes)))
    yield table(rows, right={1, 2})
    tried = len(report.trials)
    yield f"{tried} tried in {report.seconds:.1f} s" + (
        f", no time for {report.untried} more" if report.untried else ""
    )
    if report.row is None:
        yield "nothing to compare with the default, which stays"
