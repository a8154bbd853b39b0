"""Run programs: in PyTorch the first time and while they are compiled, then compiled."""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from turbine import config, dynamo, errors
from turbine.dynamo import records, small_graphs
from turbine.eager.graphs import graph_of
from turbine.eager.interpreter import interpret
from turbine.eager.layouts import layout_of
from turbine.eager.sizes import Form, Pattern, fake_tensors, find_pattern, form_of
from turbine.eager.trace_tree import LOCK, Node, Program, Update

log = logging.getLogger(__name__)

# Code of more programs is not kept.
_MOST_CODES = 512
# Programs that differ in sizes are compared, and compiled for several sizes, so many times.
_MOST_TRIES = 8
NEW, COMPILING, COMPILED, IN_PYTORCH = "new", "compiling", "compiled", "in PyTorch"


@dataclass
class Code:
    """What is known of a program: its compiled code, and how often it ran in which way."""

    ops: list[str]
    state: str = NEW
    reason: str = ""
    call: Any = None
    calls: dict[str, int] = field(default_factory=lambda: {COMPILED: 0, IN_PYTORCH: 0})
    compile_seconds: float = 0.0
    numbers: array[float] | None = None  # of the last call
    varying: set[int] = field(default_factory=set)  # the numbers that are inputs of the code
    compiles: int = 0
    pattern: Pattern | None = None  # the sizes that the code is for, if it is for several
    inputs: list[FakeTensor] = field(default_factory=list)  # what it was traced with
    graphs: list[records.GraphRecord] = field(default_factory=list)

    @property
    def left(self) -> list[records.LeftOp]:
        """The ops that cannot be compiled, and run in PyTorch within the code."""
        left = [op for graph in self.graphs for op in graph.left]
        return [op for op in left if not op.is_chosen and op.reason != small_graphs.REASON]

    def note_numbers(self, numbers: Sequence[float]) -> None:
        """Find out which numbers vary. The code has the others as constants."""
        now = array("d", numbers)
        before, self.numbers = self.numbers, now
        if before is None or before.tobytes() == now.tobytes():
            return
        changed = {
            index
            for index in range(len(now))
            if before[index : index + 1].tobytes() != now[index : index + 1].tobytes()
        }
        if not changed <= self.varying:
            # After the second time, those are inputs too that did not change yet.
            self.varying |= changed if self.compiles < 2 else set(range(len(now)))
            if self.state != IN_PYTORCH:
                self.state = NEW

    def fits(self, form: Form, program: Program) -> bool:
        """Whether the code, which is for several sizes, is for those of a program too."""
        if self.pattern is None or not self.pattern.fits(form):
            return False
        if self.state == IN_PYTORCH or not self.inputs:
            return False
        environment = self.inputs[0].fake_mode.shape_env
        assert environment is not None
        guards = environment.produce_guards_expression(self.inputs)
        arguments = _arguments(self, program)
        return guards is None or environment.evaluate_guards_expression(guards, arguments)

    def fail(self, error: Exception) -> None:
        """Let PyTorch run the program from now on."""
        self.state, self.reason = IN_PYTORCH, f"{type(error).__name__}: {error}"


codes: dict[tuple[Node, tuple[int, ...], tuple[Update, ...]], Code] = {}
_pool: ThreadPoolExecutor | None = None


class InputsOverwritten(errors.RunError):
    """A program cannot run again: it failed after it had written to its inputs."""


def run(program: Program) -> list[Tensor]:
    """The outputs of a program, as CPU tensors."""
    key = program.node, program.outputs, program.updates
    code = codes.get(key)
    is_new = code is None
    if code is None:
        if len(codes) >= _MOST_CODES:
            del codes[next(iter(codes))]
        code = codes[key] = _find(program)
    code.note_numbers(program.numbers)
    is_known = not is_new or code.pattern is not None
    if code.state == NEW and is_known and config.get("eager") != "op":
        _begin(code, program)
    if code.state == COMPILED:
        versions = _input_versions(code, program)
        try:
            results = _call(code, program)
        except Exception as error:
            if _input_versions(code, program) != versions:
                raise InputsOverwritten(
                    f"a program failed after it had written to its inputs: {error}"
                ) from error
            results = interpret(program)  # raises if the error is the program's
            log.warning("a program runs in PyTorch, since its code failed", exc_info=error)
            code.fail(error)
        else:
            code.calls[COMPILED] += 1
            return results
    else:
        results = interpret(program)
    code.calls[IN_PYTORCH] += 1
    return results


@dataclass
class _Family:
    """Programs that differ in sizes alone: some of them, what they have in common, and codes."""

    forms: list[Form]
    numbers: list[float]
    pattern: Pattern | None = None
    codes: list[Code] = field(default_factory=list)

    def find(self, form: Form, program: Program, ops: list[str]) -> Code | None:
        """Code for all sizes like those of a program, or None; it may have to be compiled."""
        for code in self.codes:
            if code.fits(form, program):
                return code
        if self.pattern is None or not self.pattern.fits(form):
            self.forms.append(form)
            self.pattern = find_pattern(self.forms)
        if self.pattern is None or len(self.codes) + len(self.forms) > _MOST_TRIES:
            return None
        code = Code(ops, pattern=self.pattern)
        code.note_numbers(self.numbers)
        code.note_numbers(program.numbers)
        _begin(code, program)
        self.codes.append(code)  # code for large sizes is not for small ones
        return code if code.fits(form, program) else None


_families: dict[Any, _Family] = {}


def _find(program: Program) -> Code:
    """Code for a program that is new: that of programs with other sizes, or none yet."""
    ops = [str(op.target) for op in program.ops]
    if config.get("eager") == "op":
        return Code(ops)
    form = form_of(program)
    family = _families.get(form.structure)
    if family is None:
        if len(_families) >= _MOST_CODES:
            del _families[next(iter(_families))]
        _families[form.structure] = _Family([form], program.numbers)
        return Code(ops)
    try:
        return family.find(form, program, ops) or Code(ops)
    except Exception as error:  # of PyTorch's code for symbolic sizes
        log.info("a program is compiled for its sizes alone", exc_info=error)
        return Code(ops)


def often_run() -> list[Node]:
    """Where programs end that ran more than once."""
    return [node for (node, *_), code in codes.items() if sum(code.calls.values()) > 1]


def wait() -> None:
    """Wait until everything that is being compiled is."""
    if _pool is not None:
        _pool.submit(lambda: None).result()


def _call(code: Code, program: Program) -> list[Tensor]:
    with torch.no_grad():
        results = iter(code.call(*_arguments(code, program)))
    written = _find_written(code, program)
    return [
        program.inputs[written[index]] if index in written else next(results)
        for index in program.outputs
    ]


def _input_versions(code: Code, program: Program) -> list[int]:
    """How often the inputs that code writes to were written."""
    return [program.inputs[number]._version for number in _find_written(code, program).values()]


def _find_written(code: Code, program: Program) -> dict[int, int]:
    """The results that code writes to inputs; code for several sizes writes none."""
    return {} if code.pattern is not None else dict(program.updates)


def _arguments(code: Code, program: Program) -> list[Tensor]:
    """The inputs of a program's code; the numbers that vary are the last."""
    if not code.varying:
        return program.inputs
    numbers = [program.numbers[index] for index in sorted(code.varying)]
    return [*program.inputs, torch.tensor(numbers, dtype=torch.float64)]


def _begin(code: Code, program: Program) -> None:
    """Trace a program, and let the compiler begin.

    That is done here, not in the background: PyTorch saves and restores the state of the random
    number generator while it traces.
    """
    global _pool
    started = time.perf_counter()
    arguments = _arguments(code, program)
    code.compiles += 1
    try:
        code.inputs = fake_tensors(arguments, code.pattern)
        ops = program.ops if code.pattern is None else code.pattern.ops(program)
        layouts = [layout_of(one) for one in arguments]
        written = _find_written(code, program)
        graph = graph_of(program, ops, layouts, sorted(code.varying), written)
        context = TracingContext(code.inputs[0].fake_mode if code.inputs else FakeTensorMode())
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=()),
            tracing(context),
            records.collect() as graphs,
        ):
            code.call = dynamo.backend(graph, code.inputs)
    except Exception as error:
        log.info("a program runs in PyTorch", exc_info=error)
        code.fail(error)
        return
    code.state, code.graphs = COMPILING, graphs
    if _pool is None:
        _pool = ThreadPoolExecutor(1, "turbine-eager")
    parts = [part for graph in graphs for part in graph.parts]
    _pool.submit(_finish, code, code.compiles, parts, started)


def _finish(
    code: Code, compiles: int, parts: Sequence[records.CompiledPart], started: float
) -> None:
    try:
        for part in parts:
            part.wait()
    except Exception as error:
        log.info("a program runs in PyTorch", exc_info=error)
        code.fail(error)
    with LOCK:
        if code.state == COMPILING and code.compiles == compiles:
            code.state = COMPILED
    code.compile_seconds += time.perf_counter() - started


def _forget_pool() -> None:
    """A fork has no thread that waits for the compiler."""
    global _pool
    _pool = None
    for code in codes.values():
        if code.state == COMPILING:
            code.state = NEW


os.register_at_fork(after_in_child=_forget_pool)
