"""Compile a case and compare it with its reference: a case in, an outcome out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turbine import aot, config, errors
from turbine.dynamo import backend
from turbine.fuzz import tolerance
from turbine.fuzz.case import (
    AGREES,
    COMPILE_DYNAMIC,
    EXPORT,
    EXPORT_DYNAMIC,
    KERNEL,
    Case,
    Outcome,
)
from turbine.fuzz.program import RandomProgram

_REASON_LENGTH = 300


@dataclass(frozen=True)
class Answer:
    """All that a call changes: its results, gradients and arguments."""

    results: list[Tensor]
    gradients: list[Tensor | None]
    arguments: list[Tensor]

    def tensors(self) -> list[Any]:
        return [*self.results, *self.gradients, *self.arguments]


def check(case: Case) -> Outcome:
    """Run a case in its mode. Failures of PyTorch's own tracing are skipped, not problems."""
    with warnings.catch_warnings(), _settings(case):
        warnings.simplefilter("ignore")
        try:
            case.program.function()
        except Exception as error:  # a shrunk program may be invalid
            return Outcome(refused=_first_line(error))
        return _CHECKS[case.mode](case)


def _settings(case: Case) -> AbstractContextManager[None]:
    return config.override(guard=case.guard, library_calls=case.library_calls)


def _check_compile(case: Case) -> Outcome:
    outcome = _try_backend(case, backend)
    if outcome.problem is None:
        return outcome
    theirs = _try_backend(case, "aot_eager")
    if theirs.problem is not None:
        return Outcome(refused=f"aot_eager: {theirs.problem}")
    return outcome


def _try_backend(case: Case, compiler: Any) -> Outcome:
    torch._dynamo.reset()
    function = case.program.function()
    is_dynamic = case.mode == COMPILE_DYNAMIC
    compiled = torch.compile(function, backend=compiler, dynamic=is_dynamic)
    for program in _programs(case):
        outcome = _compare(program, function, compiled, raises=case.raises)
        if outcome != AGREES:
            return outcome
    return AGREES


def _programs(case: Case) -> list[RandomProgram]:
    """The program twice, for state between calls, and with the other size."""
    others = [] if case.other_size is None else [case.program.resize(case.other_size)]
    return [case.program, case.program, *others]


def _compare(
    program: RandomProgram,
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    *,
    raises: bool = False,
    exempt: tuple[type[Exception], ...] = (),
) -> Outcome:
    try:
        expected = _run(program, function)
    except Exception as error:
        if not raises:
            return Outcome(refused=f"eager PyTorch: {_first_line(error)}")
        return _expect_refusal(program, compiled, error)
    try:
        found = _run(program, compiled)
    except exempt as error:
        return Outcome(refused=_first_line(error))
    except Exception as error:
        return Outcome(f"{type(error).__name__}: {_first_line(error)}")
    problem = tolerance.difference(
        found.tensors(), expected.tensors(), lambda: sample_answers(program, function)
    )
    return Outcome(problem)


def _expect_refusal(
    program: RandomProgram, compiled: Callable[..., Any], refusal: Exception
) -> Outcome:
    try:
        _run(program, compiled)
    except Exception:
        return AGREES
    return Outcome(f"returned where eager raises {type(refusal).__name__}: {_first_line(refusal)}")


def _run(
    program: RandomProgram,
    function: Callable[..., Any],
    convert: Callable[[Tensor], Tensor] = lambda x: x,
) -> Answer:
    arguments = [convert(argument) for argument in program.make_arguments()]
    torch.manual_seed(program.seed)
    trained = [argument for argument in arguments if argument.requires_grad]
    if not trained:
        with torch.no_grad():
            results = list(function(*arguments))
        return Answer(results, [], arguments)
    results = list(function(*arguments))
    ends = [result for result in results if result.requires_grad]
    # The same output gradients for every mode.
    starts = [torch.linspace(-1, 1, end.numel()).reshape(end.shape).to(end.dtype) for end in ends]
    gradients = torch.autograd.grad(ends, trained, starts, allow_unused=True) if ends else ()
    detached = [argument.detach() for argument in arguments]
    return Answer([result.detach() for result in results], list(gradients), detached)


def sample_answers(program: RandomProgram, function: Callable[..., Any]) -> list[list[Any]]:
    """Equally valid answers: with rounding noise, in float64, without subnormals."""
    samples = []
    for seed in range(tolerance.NOISY_RUNS):
        with tolerance.Noise(seed):
            samples.append(_run(program, function).tensors())
    with suppress(Exception):  # dtypes that no longer promote
        samples.append(_run(program, function, tolerance.widen).tensors())
    if torch.set_flush_denormal(True):
        try:
            samples.append(_run(program, function).tensors())
        finally:
            torch.set_flush_denormal(False)
    return samples


class _Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def _check_export(case: Case) -> Outcome:
    program = replace(
        case.program, inputs=tuple(replace(i, requires_grad=False) for i in case.program.inputs)
    )
    function = program.function()
    shapes = None
    if case.mode == EXPORT_DYNAMIC:
        auto = torch.export.Dim.AUTO
        shapes = (tuple({} if i.dynamic is None else {i.dynamic: auto} for i in program.inputs),)
    try:
        exported = aot.export(
            _Model(function), args=tuple(program.make_arguments()), dynamic_shapes=shapes
        )
        artifact = exported.compile()
    except Exception as error:
        return _unless_export_fails_too(program, function, shapes, error)
    for other in _programs(replace(case, program=program)):
        # Sizes outside of the traced range raise ArgumentError.
        exempt = () if other is program else (errors.ArgumentError,)
        outcome = _compare(other, function, artifact, raises=case.raises, exempt=exempt)
        if outcome != AGREES:
            return outcome
    return AGREES


def _unless_export_fails_too(
    program: RandomProgram, function: Callable[..., Any], shapes: Any, error: Exception
) -> Outcome:
    try:
        torch.export.export(
            _Model(function), tuple(program.make_arguments()), dynamic_shapes=shapes, strict=False
        ).run_decompositions()
    except Exception as theirs:
        return Outcome(refused=f"torch.export: {_first_line(theirs)}")
    return Outcome(f"{type(error).__name__}: {_first_line(error)}")


def _check_kernel(case: Case) -> Outcome:
    kernel: Any = case.program.function()
    for program in _programs(case):
        outcome = _compare(program, _as_list(kernel.interpret), _as_list(kernel))
        if outcome != AGREES:
            return outcome
    return AGREES


def _as_list(run: Callable[..., Any]) -> Callable[..., list[Any]]:
    def call(*args: Any) -> list[Any]:
        results = run(*args)
        return list(results) if isinstance(results, Sequence) else [results]

    return call


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Dynamo names the backend first and what it raised next.
    kept = lines[1:] if lines and lines[0].endswith(" raised:") else lines
    return kept[0][:_REASON_LENGTH] if kept else type(error).__name__


_CHECKS: dict[str, Callable[[Case], Outcome]] = {
    "compile": _check_compile,
    COMPILE_DYNAMIC: _check_compile,
    EXPORT: _check_export,
    EXPORT_DYNAMIC: _check_export,
    KERNEL: _check_kernel,
}
