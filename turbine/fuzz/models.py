"""Random models: a seed in, a program of PyTorch ops that eager PyTorch runs out."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from turbine.fuzz.case import COMPILE, COMPILE_DYNAMIC, EXPORT, EXPORT_DYNAMIC, Case
from turbine.fuzz.program import FLOATS, INTS, LAYOUTS, Input, RandomProgram, Step
from turbine.fuzz.scope import NoChoice, Scope
from turbine.fuzz.torch_steps import random_step

_SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 16, 17, 33)
_MOST_ELEMENTS = 20_000
_MOST_AXES = 6
_ATTEMPTS = 12  # at a step, before the program is left as it is
_NAME = re.compile(r"\b[vx]\d+\b")


@dataclass(frozen=True)
class _Function:
    """A plain function that returns a tuple."""

    imports: str = "import torch\nimport torch.nn.functional as F"

    def head(self, arguments: Sequence[str], results: Sequence[str]) -> str:
        """The line that begins it."""
        return f"def f({', '.join(arguments)}):"

    def tail(self, results: Sequence[str]) -> Sequence[str]:
        """The line that ends it."""
        return [f"return ({', '.join(results)},)"]


FRAME = _Function()


def random_model(seed: int) -> Case:
    """A case that eager PyTorch computes, or refuses for an index out of range."""
    choose = random.Random(seed)
    while True:
        case = _attempt(choose, seed)
        if case is not None:
            return case


def _attempt(choose: random.Random, seed: int) -> Case | None:
    mode = choose.choices((COMPILE, COMPILE_DYNAMIC, EXPORT, EXPORT_DYNAMIC), (4, 4, 2, 2))[0]
    is_dynamic = mode in (COMPILE_DYNAMIC, EXPORT_DYNAMIC)
    inputs = _inputs(choose, is_dynamic, trains=mode in (COMPILE, COMPILE_DYNAMIC))
    program = RandomProgram(seed, inputs, (), (), FRAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = _steps(choose, program)
    names = [step.result for step in steps if not step.result.startswith("x")]
    if not names:
        return None
    others = choose.sample(names, choose.randint(0, min(2, len(names))))
    results = tuple(dict.fromkeys([*others, names[-1]]))
    program = RandomProgram(seed, inputs, tuple(steps), results, FRAME).without_dead_steps()
    if choose.random() < 0.05:
        return _with_bad_index(choose, Case(program, mode))
    return Case(program, mode, _other_size(choose, program) if is_dynamic else None)


def _inputs(choose: random.Random, is_dynamic: bool, *, trains: bool) -> tuple[Input, ...]:
    """One to three tensors whose shapes broadcast together."""
    rank = choose.choices((0, 1, 2, 3, 4, 5), (1, 4, 6, 5, 5, 1))[0]
    shape = tuple(choose.choice(_SIZES) for _ in range(rank))
    axis = choose.randrange(rank) if is_dynamic and rank else None
    if axis is not None:  # PyTorch specializes on 0 and 1
        shape = (*shape[:axis], max(shape[axis], 2), *shape[axis + 1 :])
    trains = trains and choose.random() < 0.5
    special = choose.random() < 0.15
    base = "float32" if choose.random() < 0.7 else choose.choice((*FLOATS, *INTS, "bool"))
    made = []
    for k in range(choose.randint(1, 3)):
        dtype = base if k == 0 or choose.random() < 0.8 else choose.choice((*FLOATS, *INTS, "bool"))
        other, place = (shape, axis) if k == 0 else _broadcastable(choose, shape, axis)
        made.append(
            Input(
                other,
                dtype,
                "special" if special and dtype != "bool" else "normal",
                choose.choice(tuple(LAYOUTS)) if choose.random() < 0.4 else "contiguous",
                trains and dtype in FLOATS and (k == 0 or choose.random() < 0.7),
                place,
            )
        )
    return tuple(made)


def _broadcastable(
    choose: random.Random, shape: tuple[int, ...], axis: int | None
) -> tuple[tuple[int, ...], int | None]:
    """A shape that broadcasts with another, and its dynamic axis."""
    start = choose.choice((0, 0, 0, *range(len(shape) + 1)))
    ones = [choose.random() < 0.15 for _ in shape]
    sizes = tuple(1 if one else size for size, one in zip(shape[start:], ones[start:], strict=True))
    if axis is None or axis < start or ones[axis]:
        return sizes, None
    return sizes, axis - start


def _steps(choose: random.Random, program: RandomProgram) -> list[Step]:
    names: dict[str, Any] = {"torch": torch, "F": F}
    for k, argument in enumerate(program.make_arguments()):
        names[f"x{k}"] = argument
    scope = Scope(choose, {f"x{k}": names[f"x{k}"] for k in range(len(program.inputs))})
    steps: list[Step] = []
    for _ in range(choose.choice((1, 2, 3, 3, 4, 5, 6, 8, 10))):
        step = _step(scope, names, len(steps))
        if step is None:
            break
        steps.append(step)
        scope.values[step.result] = names[step.result]
    return steps


def _step(scope: Scope, names: dict[str, Any], position: int) -> Step | None:
    """A step that eager PyTorch runs; its value is added to the names."""
    for _ in range(_ATTEMPTS):
        try:
            text = random_step(scope)
        except NoChoice:
            continue
        is_new = "$" in text
        code = text.replace("$", f"v{position}")
        found = list(dict.fromkeys(_NAME.findall(code)))
        result = found[0]
        before = dict(names)
        try:
            exec(code, names)
        except Exception:  # eager PyTorch refuses it, so it is no step
            names.clear()
            names.update(before)
            continue
        if is_new and not _is_usable(names[result]):
            names.clear()
            names.update(before)
            continue
        return Step(result, code, tuple(name for name in found if name != result))
    return None


def _is_usable(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.numel() <= _MOST_ELEMENTS
        and value.dim() <= _MOST_AXES
        and not value.is_complex()
    )


def _other_size(choose: random.Random, program: RandomProgram) -> int | None:
    sizes = [spec.shape[spec.dynamic] for spec in program.inputs if spec.dynamic is not None]
    if not sizes:
        return None
    return choose.choice([size for size in (2, 3, 5, 8, 13, 21) if size != sizes[0]])


def _with_bad_index(choose: random.Random, case: Case) -> Case | None:
    """The case with an index that eager PyTorch refuses, passed as an argument."""
    program = case.program
    last, place = program.results[-1], f"x{len(program.inputs)}"
    value = program.function()(*program.make_arguments())[-1]
    if not value.dim() or not value.shape[0]:
        return None
    size = value.shape[0]
    values = choose.choice((f"{size}:{size + 3}", f"{-size - 3}:{-size}", "1000000:1000001"))
    reads = (
        f"bad = {last}[{place}]",
        f"bad = {last}.index_select(0, {place})",
        f"bad = {last}.clone()\nbad[{place}] = 1",
        f"bad = {last}.index_fill(0, {place}, 1)",
    )
    step = Step("bad", choose.choice(reads), (last, place))
    inputs = (*program.inputs, Input((3,), "int64", values))
    bad = RandomProgram(program.seed, inputs, (*program.steps, step), ("bad",), FRAME)
    return Case(bad.without_dead_steps(), case.mode, raises=True)
