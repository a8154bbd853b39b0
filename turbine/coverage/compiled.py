"""Judge ops under torch.compile.

The answer of compiled code is compared with eager's: values, dtypes, shapes and strides, with the
arguments as they are and in other forms: views, expanded or negated ones, with a dynamic size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from turbine.capture import support
from turbine.coverage import samples as op_samples
from turbine.coverage.answers import (
    Answer,
    Run,
    compare_types,
    compare_values,
    copy_arguments,
    first_line,
    infer,
    train,
)
from turbine.coverage.forms import can_apply
from turbine.coverage.front_door import COMPILE_BY_OP, FrontDoor
from turbine.coverage.samples import FAMILIES, SAMPLES, Case, cases, family, ops, version
from turbine.coverage.verdicts import (
    COMPILED,
    FAILS,
    FALLS_BACK,
    FREE,
    NO_GRADIENT,
    NOT_TRACED,
    PARTLY,
    RANDOM,
    Verdict,
    combine,
)
from turbine.dynamo import records
from turbine.dynamo.entry import backend
from turbine.dynamo.records import GraphRecord
from turbine.dynamo.totals import counters

FORWARD, BACKWARD = WAYS = ("forward", "backward")
_INTRODUCTION = """\
The {count} ops of {version} under
`torch.compile(backend="turbine")`, compared with eager in values, dtypes, shapes and
strides. `turbine coverage --output docs/coverage.md` writes this section."""
_LEGEND = (
    "compiled: every op of its graphs is compiled code, in every sample",
    "free: only views and fills, nothing to compile",
    "partly, falls back: the right answer, with some or all of the ops run by PyTorch",
    "random: draws random numbers, which PyTorch does; shapes are compared",
    "not traced: PyTorch's own `aot_eager` backend does not take it as one graph either",
    "share: compiled or free, of all that PyTorch traces (random ones included)",
)


def make_front_door(forms: Sequence[str] = ()) -> FrontDoor:
    """torch.compile, with each sample in each of the forms."""
    return FrontDoor(
        ops,
        partial(judge, forms=tuple(forms)),
        FAMILIES,
        family,
        WAYS,
        (FREE, COMPILED, PARTLY, FALLS_BACK, FAILS, RANDOM, NOT_TRACED, NO_GRADIENT),
        COMPILE_BY_OP,
        "op",
        _INTRODUCTION,
        version,
        _LEGEND,
        {"What runs in PyTorch, and why": (PARTLY, FALLS_BACK)},
    )


def judge(
    op: Any, seed: int = 0, samples: int = SAMPLES, *, forms: Sequence[str] = ()
) -> dict[str, Verdict]:
    """Run an op's samples forward and, where it has a gradient, backward.

    Each is run again with its arguments in each of the forms; of that, failures count.
    """
    undefined = op_samples.is_uninitialized(op)
    forward = _judge_all(cases(op, seed, samples), undefined, forms)
    if not op.supports_autograd:
        return {FORWARD: combine(forward), BACKWARD: Verdict(NO_GRADIENT)}
    trained = cases(op, seed, samples, requires_grad=True)
    backward = _judge_all(trained, undefined, forms, training=True)
    return {FORWARD: combine(forward), BACKWARD: combine(backward, NO_GRADIENT)}


def _judge_all(
    found: Iterable[Case], undefined: bool, forms: Sequence[str], *, training: bool = False
) -> list[Verdict]:
    verdicts = []
    for case in found:
        verdicts.append(judge_case(case, undefined, training=training))
        if verdicts[-1].status in (FAILS, NOT_TRACED, NO_GRADIENT):
            continue
        given = (case.args, case.kwargs)
        for form in (form for form in forms if can_apply(form, given)):
            verdict = judge_case(replace(case, form=form), undefined, training=training)
            if verdict.status == FAILS:
                verdicts.append(Verdict(FAILS, f"{form} arguments: {verdict.reason}"))
    return verdicts


def judge_case(case: Case, undefined: bool = False, *, training: bool = False) -> Verdict:
    """Compile one call anew and compare it with eager."""
    run = train if training else infer
    try:
        expected = run(case, case.function)
    except Exception as error:
        return Verdict(NOT_TRACED, f"eager PyTorch: {first_line(error)}")
    if training and not expected.gradients:
        return Verdict(NO_GRADIENT)
    rescued = counters()["rescued_calls"]
    with records.collect() as heard:
        problem, draws = _attempt(case, run, expected, partial(backend), undefined, heard)
    if problem is not None:
        return _unless_torch_fails_too(case, run, expected, undefined, problem)
    if draws:
        return Verdict(RANDOM)
    kinds = ("backward",) if training else ("inference", "forward")
    graphs = [graph for graph in heard if graph.kind in kinds]
    return _judge_graphs(graphs, was_rescued=counters()["rescued_calls"] > rescued)


def _attempt(
    case: Case,
    run: Run,
    expected: Answer,
    compiler: Any,
    undefined: bool,
    heard: list[GraphRecord],
    fullgraph: bool = True,
) -> tuple[str | None, bool]:
    """The problem of compiled code, if any, and whether it drew random numbers."""
    torch._dynamo.reset()
    dynamic = None if case.form == "dynamic" else False
    function = torch.compile(case.function, backend=compiler, fullgraph=fullgraph, dynamic=dynamic)
    try:
        found = run(case, function)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}", False
    draws = undefined or any(_draws(graph) for graph in heard)
    # PyTorch promises nothing about the strides of gradients.
    problem = compare_types(found.leaves(), expected.leaves(), strides=False)
    if problem is None:
        problem = compare_types(found.results, expected.results)
        if problem is not None and _is_as_traced(case, found.results):
            problem = None
    if problem is not None or draws:
        return problem, draws
    return compare_values(case, run, found, expected), False


def _is_as_traced(case: Case, found: Sequence[Any]) -> bool:
    """Whether strides match PyTorch's meta functions; those of some eager kernels do not."""
    copied = copy_arguments(case)  # a fake tensor has no storage to copy
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, copied)
        try:
            traced = case.function(*args, **kwargs)
        except Exception:  # an op without a meta function
            return False
    return compare_types(found, pytree.tree_leaves(traced)) is None


def _unless_torch_fails_too(
    case: Case, run: Run, expected: Answer, undefined: bool, problem: str
) -> Verdict:
    """A failure, unless `aot_eager` fails too; then compare again with graph breaks."""
    theirs, _ = _attempt(case, run, expected, "aot_eager", undefined, [])
    if theirs is None:
        return Verdict(FAILS, problem)
    ours, _ = _attempt(case, run, expected, partial(backend), undefined, [], fullgraph=False)
    if ours is None:
        return Verdict(NOT_TRACED, theirs)
    broken, _ = _attempt(case, run, expected, "aot_eager", undefined, [], fullgraph=False)
    return Verdict(FAILS, ours) if broken is None else Verdict(NOT_TRACED, theirs)


def _draws(graph: GraphRecord) -> bool:
    return any(op.reason == support.DRAWS for op in graph.left)


def _judge_graphs(graphs: Sequence[GraphRecord], *, was_rescued: bool) -> Verdict:
    for graph in graphs:
        for part in graph.parts:
            part.wait()
    compiled = sum(p.ops.total() for g in graphs for p in g.parts if p.compiled is not None)
    reasons = {f"{op.op}: {op.reason}" for graph in graphs for op in graph.left}
    if was_rescued:
        reasons.add("a call failed in compiled code and ran in PyTorch")
    if reasons:
        return Verdict(PARTLY if compiled else FALLS_BACK, "; ".join(sorted(reasons)))
    return Verdict(COMPILED if compiled else FREE)
