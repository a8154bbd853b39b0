"""Verdicts of samples, combined to a verdict of an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# From best to worst; an op is as good as its worst sample.
FREE = "free"  # only views and fills: nothing to compile
COMPILED = "compiled"
PARTLY = "partly"  # the right answer, and some of the ops ran in PyTorch
FALLS_BACK = "falls back"  # the right answer, and every op ran in PyTorch
UNSUPPORTED = "unsupported"  # an error that names the op or dtype compiled code does not have
FAILS = "fails"  # a wrong answer, or an error where eager gives an answer
_ORDER = (FREE, COMPILED, PARTLY, FALLS_BACK, UNSUPPORTED, FAILS)
# Not counted: there is nothing to compare with, or nothing to compile.
RANDOM = "random"  # draws random numbers, or gives uninitialized memory: shapes are compared
NOT_TRACED = "not traced"  # PyTorch's own tracing does not manage either
NO_GRADIENT = "no gradient"


@dataclass(frozen=True)
class Verdict:
    """The status of an op, and the reason for it."""

    status: str
    reason: str = ""


@dataclass(frozen=True)
class Judged:
    """An op or architecture and its verdicts, one for each way of running it."""

    name: str
    verdicts: dict[str, Verdict]

    @property
    def fails(self) -> bool:
        """Whether it does in any way."""
        return any(verdict.status == FAILS for verdict in self.verdicts.values())


def combine(verdicts: Sequence[Verdict], empty: str = NOT_TRACED) -> Verdict:
    """The worst verdict, with every reason; one random sample makes the op random."""
    counted = [verdict for verdict in verdicts if verdict.status in _ORDER]
    random_ones = [verdict for verdict in verdicts if verdict.status == RANDOM]
    if random_ones and not any(verdict.status == FAILS for verdict in counted):
        return random_ones[0]
    if not counted:
        return verdicts[0] if verdicts else Verdict(empty, "no sample runs in eager PyTorch")
    worst = max(counted, key=lambda verdict: _ORDER.index(verdict.status)).status
    reasons = dict.fromkeys(v.reason for v in counted if v.status == worst and v.reason)
    return Verdict(worst, "; ".join(reasons))
