"""Judge ops as exports.

The tensors of a sample are the arguments of the exported program; everything else is a constant in
it. The answer of the artifact is compared with eager's: values, dtypes and shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from turbine import aot, errors
from turbine.compiler import strategies
from turbine.coverage.answers import (
    Answer,
    compare_types,
    compare_values,
    copy_arguments,
    first_line,
    infer,
)
from turbine.coverage.front_door import EXPORT_BY_OP, FrontDoor
from turbine.coverage.samples import (
    FAMILIES,
    SAMPLES,
    Case,
    cases,
    family,
    is_uninitialized,
    ops,
    set_seed,
    version,
)
from turbine.coverage.verdicts import (
    COMPILED,
    FAILS,
    NOT_TRACED,
    RANDOM,
    UNSUPPORTED,
    Verdict,
    combine,
)
from turbine.runtime.artifact import Artifact

STATIC, DYNAMIC = WAYS = ("static", "dynamic")
# The dynamic axes of an argument, as torch.export's `dynamic_shapes` has them.
Axes = Callable[[torch.Tensor], dict[int, Any]]
_REFUSALS = (errors.UnsupportedOp, errors.UnsupportedDtype, errors.UnsupportedOpInIR)
_ISOLATED = tuple(strategy.name for strategy in strategies.TABLE if strategy.isolated)


def judge(op: Any, seed: int = 0, samples: int = SAMPLES) -> dict[str, Verdict]:
    """Export an op's samples with the sizes they have, and with dynamic sizes."""
    uninitialized = is_uninitialized(op)
    verdicts: dict[str, list[Verdict]] = {way: [] for way in WAYS}
    for case in cases(op, seed, samples):
        for way in WAYS:
            axes = all_axes if way == DYNAMIC else no_axes
            verdicts[way].append(judge_case(case, uninitialized, axes=axes))
    return {way: combine(found) for way, found in verdicts.items()}


def no_axes(x: torch.Tensor) -> dict[int, Any]:
    return {}


def all_axes(x: torch.Tensor) -> dict[int, Any]:
    """Every size above 1."""
    return {axis: torch.export.Dim.AUTO for axis, n in enumerate(x.shape) if n > 1}


def judge_case(
    case: Case,
    uninitialized: bool = False,
    *,
    axes: Axes = no_axes,
    example: Case | None = None,
) -> Verdict:
    """Export and compile one call and compare it with eager.

    Args:
        case: the call that is compared.
        uninitialized: whether its results are, so that only their shapes are compared.
        axes: the dynamic axes of each argument.
        example: the call that is exported, if it is another one.
    """
    example = case if example is None else example
    try:
        expected = infer(case, case.function)
    except Exception as error:
        return Verdict(NOT_TRACED, f"eager PyTorch: {first_line(error)}")
    is_random = uninitialized or _has_drawn(case)
    try:
        artifact = _compile(example, axes)
        problem = _compare(case, artifact, expected, is_random)
    except _REFUSALS as error:
        # The names that are valid would follow.
        return Verdict(UNSUPPORTED, first_line(error).partition("; valid:")[0])
    except Exception as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
    if problem is not None:
        return _unless_torch_fails_too(case, example, axes, expected, is_random, problem)
    return Verdict(RANDOM) if is_random else _judge_strategy(artifact)


def _has_drawn(case: Case) -> bool:
    """Whether the call that was just made took numbers from PyTorch's generator."""
    state = torch.get_rng_state()
    set_seed(case.seed)
    return not torch.equal(state, torch.get_rng_state())


class _Model(torch.nn.Module):
    """A call as a function of its tensors alone."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.function = case.function  # a module's weights are weights of this one

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        given = iter(tensors)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda _: next(given), (self.case.args, self.case.kwargs)
        )
        return pytree.tree_leaves(self.function(*args, **kwargs))


def _compile(case: Case, axes: Axes) -> Artifact:
    tensors, shapes = _example(case, axes)
    return aot.export(_Model(case).eval(), args=tensors, dynamic_shapes=shapes).compile()


def _trace(case: Case, axes: Axes) -> Callable[..., Any]:
    """Export with PyTorch only."""
    tensors, shapes = _example(case, axes)
    model = _Model(case).eval()
    with warnings.catch_warnings():
        # torch 2.13 warns of its own use of a class it deprecated.
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
        exported = torch.export.export(model, tensors, dynamic_shapes=shapes, strict=False)
        module: torch.nn.Module = exported.run_decompositions().module()
    return module


def _example(case: Case, axes: Axes) -> tuple[tuple[torch.Tensor, ...], Any]:
    """Arguments of the model and its `dynamic_shapes`."""
    tensors = _tensors(copy_arguments(case))
    found = tuple(map(axes, tensors))
    return tensors, (found,) if any(found) else None


def _tensors(tree: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _compare(
    case: Case, program: Callable[..., Any], expected: Answer, is_random: bool
) -> str | None:
    """How the answer of an exported program differs; None if it does not."""
    found = infer(case, lambda *args, **kwargs: program(*_tensors((args, kwargs))))
    problem = compare_types(found.leaves(), expected.leaves(), strides=False)
    if problem is not None or is_random:
        return problem
    return compare_values(case, infer, found, expected)


def _unless_torch_fails_too(
    case: Case, example: Case, axes: Axes, expected: Answer, is_random: bool, problem: str
) -> Verdict:
    """A failure, unless torch.export raises or gives a wrong answer too."""
    try:
        theirs = _compare(case, _trace(example, axes), expected, is_random)
    except Exception as error:
        theirs = f"{type(error).__name__}: {first_line(error)}"
    if theirs is not None:
        return Verdict(NOT_TRACED, f"torch.export: {theirs}")
    return Verdict(FAILS, problem)


def _judge_strategy(artifact: Artifact) -> Verdict:
    """Compiled; but slow code where no op could be fused."""
    strategy = artifact.manifest["strategy"]
    return Verdict(COMPILED, f"only by strategy {strategy}" if strategy in _ISOLATED else "")


LEGEND = (
    "compiled: the right answer, in every sample",
    "unsupported: an op or a dtype that compiled code does not have; the error names it",
    "fails: a wrong answer, or any other error",
    "random: draws random numbers; shapes are compared",
    "not traced: `torch.export` fails as well, or gives a wrong answer",
    "share: compiled, of all that PyTorch traces (random ones included)",
)
STATUSES = (COMPILED, UNSUPPORTED, FAILS, RANDOM, NOT_TRACED)
EXPLAINED = {
    "What is unsupported, and why": (UNSUPPORTED,),
    "What fails, and why": (FAILS,),
    "What PyTorch does not trace, and why": (NOT_TRACED,),
    "What compiles with no op fused": (COMPILED,),
}
FRONT_DOOR = FrontDoor(
    ops,
    judge,
    FAMILIES,
    family,
    WAYS,
    STATUSES,
    title=EXPORT_BY_OP,
    noun="op",
    introduction="""\
The {count} ops of {version} as exports,
`turbine.aot.export(...).compile()`, compared with eager in values, dtypes and shapes. Tensors are
arguments of the program, everything else is a constant in it.
`turbine coverage --export --output docs/coverage.md` writes this section.""",
    version=version,
    legend=(
        "static: with the sizes of the sample",
        "dynamic: with `Dim.AUTO` for every size above 1",
        *LEGEND,
    ),
    explained=EXPLAINED,
)
