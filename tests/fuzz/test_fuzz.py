"""The fuzzer: programs are deterministic, findings are real, shrunk, and run as scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from tests.jobs_here import answer_here
from turbine.fuzz import check as checking
from turbine.fuzz import fuzz, tolerance
from turbine.fuzz.case import (
    AGREES,
    COMPILE,
    COMPILE_DYNAMIC,
    EXPORT,
    EXPORT_DYNAMIC,
    Case,
    Outcome,
)
from turbine.fuzz.kernels import random_kernel
from turbine.fuzz.models import FRAME, random_model
from turbine.fuzz.program import Input, RandomProgram, Step
from turbine.fuzz.script import script
from turbine.fuzz.session import Tally
from turbine.fuzz.shrink import shrink

# A number of programs, not a time, so that a slow machine sees the same ones.
PROGRAMS = 4


def test_random_programs_agree_with_eager(seed: int) -> None:
    tally = Tally()
    found = list(fuzz(seed=seed, seconds=600, programs=PROGRAMS, tally=tally))
    assert not found, "\n".join(finding.script() for finding in found)
    assert tally.total == PROGRAMS
    assert sum(count for (_, verdict), count in tally.counts.items() if verdict == "agreed") > 0


@pytest.mark.parametrize("generate", [random_model, random_kernel])
def test_programs_are_deterministic_for_a_seed(generate: Callable[[int], Case]) -> None:
    for seed in range(5):
        assert generate(seed) == generate(seed)
    assert len({generate(seed).program.function_code() for seed in range(5)}) > 3


def example(code: str, mode: str = COMPILE, **kwargs: Any) -> Case:
    steps = (
        Step("v0", "v0 = x0 * 2", ("x0",)),
        Step("v1", code, ("v0", "x1")),
        Step("v2", "v2 = v1 - 1", ("v1",)),
    )
    inputs = (Input((3, 4), dynamic=0), Input((3, 4), layout="transposed", dynamic=0))
    return Case(RandomProgram(7, inputs, steps, ("v0", "v2"), FRAME), mode, **kwargs)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mode", [COMPILE, COMPILE_DYNAMIC, EXPORT, EXPORT_DYNAMIC])
def test_scripts_run_standalone_and_reproduce_the_outcome(mode: str) -> None:
    case = example("v1 = v0 + x1", mode, other_size=None if mode in (COMPILE, EXPORT) else 5)
    assert checking.check(case) == AGREES
    exec(compile(script(case, "nothing"), "script", "exec"), {"__name__": "script"})


def test_kernel_scripts_run_standalone() -> None:
    exec(compile(script(random_kernel(3), "nothing"), "script", "exec"), {"__name__": "script"})


def off_by_one(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
    """A backend whose results are wrong where a graph flips."""
    wrong = any("flip" in str(node.target) for node in graph.graph.nodes)
    return lambda *args: [result + wrong for result in graph(*args)]


def test_a_wrong_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "backend", off_by_one)
    assert checking.check(example("v1 = v0 + x1")) == AGREES
    problem = checking.check(example("v1 = v0 + x1.flip(0)")).problem
    assert problem is not None
    assert "not close" in problem


def test_a_result_where_eager_raises_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgiving(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        return lambda *args: [torch.zeros(())]

    monkeypatch.setattr(checking, "backend", forgiving)
    steps = (Step("v0", "v0 = x0[x1]", ("x0", "x1")),)
    program = RandomProgram(0, (Input((3,)), Input((2,), "int64", "5:6")), steps, ("v0",), FRAME)
    outcome = checking.check(Case(program, COMPILE, raises=True))
    assert outcome.problem is not None
    assert "returned where eager raises IndexError" in outcome.problem


def fail_where_flipped() -> Callable[[Case], tuple[Case, Outcome]]:
    def answer(case: Case) -> tuple[Case, Outcome]:
        flips = "flip" in case.program.function_code()
        return case, Outcome("flipped" if flips else None)

    return answer


def test_failing_cases_are_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_here(monkeypatch)
    case = example("v1 = v0 + x1.flip(0)", COMPILE_DYNAMIC, other_size=5)
    small, problem = shrink(case, "flipped", fail_where_flipped, seconds=60)
    assert problem == "flipped"
    assert [step.code for step in small.program.steps] == ["v1 = x0 + x1.flip(0)"]
    assert small.program.results == ("v1",)
    assert small.program.inputs[1] == Input((1, 1), dynamic=0)
    assert small.other_size is None


def test_rounding_is_tolerated_and_errors_are_not() -> None:
    # A difference of nearly equal numbers has few digits; the same error in a sum is one.
    steps = (Step("v0", "v0 = (x0 + 1e4) - 1e4", ("x0",)),)
    case = Case(RandomProgram(0, (Input((8,)),), steps, ("v0",), FRAME), COMPILE)
    function = case.program.function()
    (expected,) = function(*case.program.make_arguments())

    def samples() -> list[list[Any]]:
        return checking.sample_answers(case.program, function)

    arguments = case.program.make_arguments()
    assert (
        tolerance.difference([expected + 1e-3, *arguments], [expected, *arguments], samples) is None
    )
    assert tolerance.difference([expected + 1e-1, *arguments], [expected, *arguments], samples)
    plain = replace(case.program, steps=(Step("v0", "v0 = x0 + 1", ("x0",)),))
    (expected,) = plain.function()(*arguments)

    def plain_samples() -> list[list[Any]]:
        return checking.sample_answers(plain, plain.function())

    assert tolerance.difference(
        [expected + 1e-3, *arguments], [expected, *arguments], plain_samples
    )
