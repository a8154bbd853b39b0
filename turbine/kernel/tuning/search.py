"""Search the fastest configuration of a kernel for a call, within a time.

The default is first. Candidates are a list, or those around the fastest one so far. Each is
compiled, its results are compared with the default's, and it is timed in turns with the default and
the fastest one. The last turns are between the fastest few.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from turbine import config, errors
from turbine.kernel.backends.triton import module
from turbine.kernel.backends.triton.schedule import Schedule, choose_schedule
from turbine.kernel.call import machines, tuning_table
from turbine.kernel.call.choices import check_used, parse_candidates
from turbine.kernel.call.configuration import OPTIONS, text
from turbine.kernel.call.kernel import Kernel
from turbine.kernel.call.launcher import facts_of, separate_inputs
from turbine.kernel.call.tuning_table import Row
from turbine.kernel.tuning.candidates import Space
from turbine.kernel.tuning.report import Trial, TuningReport
from turbine.kernel.tuning.results import disagreement
from turbine.kernel.tuning.turns import Clock
from turbine.progress import progress_on_terminal

_TURNS = 5
_LAST_TURNS = 9
_FEWEST_LAST_TURNS = 3
_FINALISTS = 3
_OF_SEARCH = 0.8  # of the time; the rest is for the last turns
_OF_TURN = 5e-3  # seconds of calls in a turn
_MOST_CALLS = 50
_HOPELESS = 1.5  # times the fastest one, from which on a candidate gets no more turns
_LEAST_GAIN = 1.02  # over the default; less is noise
_LEAST_TIMEOUT = 5.0


def tune(
    kernel: Kernel,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    seconds: float,
    candidates: Iterable[Mapping[Any, int]] | None,
) -> TuningReport:
    """Search, and keep the winner for later calls of the kernel."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise errors.KernelError(
            f"{kernel.__name__}.tune: {seconds=} is no time",
            where=kernel.signature.place,
            hint="pass a number of seconds; 0 tries nothing",
        )
    given = kernel.candidates if candidates is None else candidates
    listed = None if given is None else parse_candidates(kernel.signature, given)
    named = kernel.bind_arguments(args, dict(keywords))
    with _tuning, torch.no_grad(), config.override(interpret=False):
        search = _Search(kernel, named, time.monotonic(), seconds)
        wanted = None if listed is None else search.complete(listed)
        with progress_on_terminal(lambda: str(search)):
            search.run(wanted)
        return search.report()


# Two at a time would slow each other down.
_tuning = threading.Lock()


@dataclass(eq=False)
class _Contender:
    """A kernel with a configuration, and its turns."""

    trial: Trial
    kernel: Kernel
    turns: list[float] = field(default_factory=list)


class _Search:
    """A search: the call, what was tried, and the fastest so far."""

    def __init__(
        self, kernel: Kernel, named: Mapping[str, Any], started: float, seconds: float
    ) -> None:
        self.kernel = kernel
        self.started, self.seconds = started, seconds
        self.device = kernel.device_of(named)
        self.kind = "cpu" if self.device.type == "cpu" else "cuda"
        plain = self._derive({})
        self.program, self.sizes, key = plain.resolve_call(named, self.kind)
        self.machine = machines.of_arguments(named, self.kind)
        choices = kernel.choices
        self.case = choices.case_of(self.program, key.present, self.sizes, self.machine)
        blocks = choices.default_blocks(self.program, self.kind)
        self.named = named
        in_grid = [
            symbol for count in self.program.grid for symbol in sorted(count.symbols, key=str)
        ]
        in_order = [*(s for s in in_grid if s in blocks), *sorted(blocks, key=str)]
        self.default = {symbol.name: blocks[symbol].size for symbol in dict.fromkeys(in_order)}
        self.best = _Contender(Trial(self.default, speedup=1.0), plain)
        self.contenders = [self.best]
        self.trials = [self.best.trial]
        self.untried = 0
        self._space = Space(self.program, self.sizes, self.kind)

    def __str__(self) -> str:
        speed = self.best.trial.speedup
        done = f"{len(self.trials)} configurations, best {speed:.2f} times the default's speed"
        return f"turbine is tuning {self.kernel.__name__}: {done}"

    def _derive(self, configuration: Mapping[str, int]) -> Kernel:
        """The kernel with a configuration, as if nothing was tuned."""
        kernel = self.kernel
        blocks = {**kernel.given, **configuration}
        derived = Kernel(kernel.function, kernel.grid, blocks, kernel.specialized)
        derived.choices.uses_tuned = False
        return derived

    def complete(self, listed: Iterable[Mapping[str, int]]) -> list[dict[str, int]]:
        """Candidates with the default of what they leave out, and without what CPUs have not."""
        return [self._complete(one) for one in listed]

    def _complete(self, candidate: Mapping[str, int]) -> dict[str, int]:
        check_used(self.kernel.signature, candidate, self.program)
        for name in candidate:
            if name in self.kernel.given:
                raise self._not_tunable(name, "is set by blocks= or using()", "leave it out there")
            if name not in self.default and name not in OPTIONS:
                why = "follows from the arguments, or is a size of an output"
                raise self._not_tunable(name, why, f"tune {', '.join(self.default) or 'options'}")
        kept = {n: v for n, v in candidate.items() if self.kind != "cpu" or n not in OPTIONS}
        return {**self.default, **kept}

    def _not_tunable(self, name: str, why: str, hint: str) -> errors.KernelError:
        message = f"{self.kernel.__name__}: {name} {why}, and cannot be tuned"
        return errors.KernelError(message, where=self.kernel.signature.place, hint=hint)

    # Calls

    def run(self, wanted: list[dict[str, int]] | None) -> None:
        """Try candidates until the time is over."""
        if not self.seconds:
            self.untried = len(wanted or ())
            return
        self._prepare_arguments()
        self._expected = self._results(self.best.kernel)
        self._check_repeats()
        self._count = self._calls_of_turn()
        is_open = wanted is None
        queue = list(self._around(self.best.trial) if wanted is None else wanted)
        seen = [self.default]
        while queue:
            if time.monotonic() > self.started + _OF_SEARCH * self.seconds:
                break
            configuration = queue.pop(0)
            if configuration in seen:
                continue
            seen.append(configuration)
            before = self.best
            self._try(configuration)
            if is_open and self.best is not before:
                queue = [*self._around(self.best.trial), *queue]
        self.untried = sum(one not in seen for one in queue)
        self._decide()

    def _prepare_arguments(self) -> None:
        """Copies of what the kernel writes to, which are restored before each call."""
        given = dict(separate_inputs(self.program, _present(self.named)))
        written = [p.name for p in self.program.of_usage("inout")]
        self._written = {name: given[name] for name in written}
        copies = {name: _copy(tensor) for name, tensor in self._written.items()}
        self._own = {**self.named, **given, **copies}
        self._args = tuple(self._own[p.name] for p in self.kernel.signature.passed)
        self._clock = Clock(self.device, self._restore if written else None)

    def _restore(self) -> None:
        for name, tensor in self._written.items():
            self._own[name].copy_(tensor)

    def _call(self, kernel: Kernel) -> Any:
        result = kernel.repeat_call(self._args)
        return kernel.run(self._own, self._args) if result is None else result

    def _results(self, kernel: Kernel) -> list[Tensor]:
        """The outputs of a call, and what it made of in-out arguments."""
        self._restore()
        result = self._call(kernel)
        outputs = [result] if isinstance(result, Tensor) else list(result or ())
        results = [*outputs, *(self._own[name].clone() for name in self._written)]
        if self.kind != "cpu":
            torch.cuda.synchronize(self.device)
        return results

    def _check_repeats(self) -> None:
        """Raise if the default differs from itself: nothing could be compared with it."""
        problem = disagreement(self._expected, self._results(self.best.kernel))
        if problem is not None:
            raise errors.KernelError(
                f"{self.kernel.__name__}.tune: two calls gave different results: {problem}",
                where=self.kernel.signature.place,
                hint="outputs that are not written everywhere need .filled(0)",
            )

    def _calls_of_turn(self) -> int:
        taken = self._clock.turn(lambda: self._call(self.best.kernel), 1)
        return max(1, min(int(_OF_TURN / max(taken, 1e-7)), _MOST_CALLS))

    # Candidates

    def _around(self, trial: Trial) -> list[dict[str, int]]:
        schedule = self._schedule(trial.configuration) if self.kind != "cpu" else None
        around = self._space.neighbours(trial.configuration, schedule)
        return [one for one in around if not any(name in self.kernel.given for name in one)]

    def _schedule(self, configuration: Mapping[str, int]) -> Schedule:
        """The schedule of a configuration, with what it leaves to be chosen."""
        derived = self._derive(configuration)
        program, sizes, key = derived.resolve_call(self.named, self.kind)
        facts = facts_of(program, sizes, dict(key.static))
        padded = module.padded_sizes(program, facts, sizes)
        return choose_schedule(program, facts, padded, options=key.options)

    def _try(self, configuration: dict[str, int]) -> None:
        """Compile, compare and time a configuration, which may become the best one."""
        trial = Trial(configuration)
        self.trials.append(trial)
        left = max(self.started + self.seconds - time.monotonic(), _LEAST_TIMEOUT)
        timeout = min(left, config.get("compile_timeout"))
        try:
            derived = self._derive(configuration)
            with config.override(compile_timeout=timeout):
                results = self._results(derived)
        except Exception as error:  # of compilers, drivers and the launch
            trial.problem = " ".join(str(error).split())
            self._check_device(trial)
            return
        trial.problem = disagreement(self._expected, results)
        if trial.problem is None:
            contender = _Contender(trial, derived)
            self.contenders.append(contender)
            self._time([*dict.fromkeys([self.contenders[0], self.best, contender])], _TURNS, 1)
            if trial.speedup > self.best.trial.speedup:
                self.best = contender

    def _check_device(self, trial: Trial) -> None:
        """Raise if a candidate left a GPU unusable."""
        if self.kind == "cpu":
            return
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            raise errors.KernelError(
                f"{self.kernel.__name__} with {text(trial.configuration)} broke the GPU's context: "
                f"{trial.problem}",
                where=self.kernel.signature.place,
                hint="start again, and tune with candidates= without this one",
            ) from error

    def _time(self, contenders: Sequence[_Contender], turns: int, fewest: int) -> None:
        """Give contenders turns; the first is the default, and the last may be hopeless."""
        taken: list[list[float]] = [[] for _ in contenders]
        until = min(time.monotonic() + self.seconds / 10, self.started + self.seconds)
        for number in range(turns):
            if number >= fewest and time.monotonic() > until:
                break
            for contender, own in zip(contenders, taken, strict=True):
                count = self._count if number else 1
                own.append(self._clock.turn(lambda c=contender: self._call(c.kernel), count))  # type: ignore[misc]
            if turns == _TURNS and taken[-1][-1] > _HOPELESS * min(own[-1] for own in taken):
                break
        for contender, own in zip(contenders, taken, strict=True):
            contender.turns += own
            contender.trial.seconds = statistics.median(contender.turns)
        default = statistics.median(taken[0])
        changed = contenders if turns != _TURNS else contenders[-1:]
        for contender in changed:
            own = taken[contenders.index(contender)]
            contender.trial.speedup = default / statistics.median(own)

    def _decide(self) -> None:
        """Give the fastest few more turns; the default stays unless another one is faster."""
        default, *others = self.contenders
        ranked = sorted(others, key=lambda c: -c.trial.speedup)
        finalists = [default, *ranked[:_FINALISTS]]
        for contender in finalists:
            contender.turns.clear()
            contender.trial.is_finalist = True
        self._time(finalists, _LAST_TURNS, _FEWEST_LAST_TURNS)
        default.trial.speedup = 1.0
        best = max(finalists, key=lambda c: c.trial.speedup)
        self.best = best if best.trial.speedup >= _LEAST_GAIN else default

    def report(self) -> TuningReport:
        """What was found; the winner is kept for later calls."""
        winner, default = self.best.trial, self.contenders[0].trial
        row = None
        if len(self.contenders) > 1 and winner.seconds < inf:
            times = [float(f"{seconds:.4g}") for seconds in (winner.seconds, default.seconds)]
            row = Row(self.case, winner.configuration, *times)
            tuning_table.keep(row, self.machine)
        table = self.kernel.choices.table
        return TuningReport(
            self.case,
            self.trials,
            winner,
            row,
            time.monotonic() - self.started,
            self.untried,
            None if table is None else table.path,
        )


def _present(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)
