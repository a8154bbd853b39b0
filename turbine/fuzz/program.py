"""A random program as data: inputs, steps and results in, a Python script out.

The script is the program: it is what runs here, and what a user pastes into an issue.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8")


@dataclass(frozen=True)
class Input:
    """A tensor argument: its sizes, and how its numbers and its memory are made.

    `values` is a key of `VALUES`, or "low:high" for integers in that range; `layout` is a key of
    `LAYOUTS`. `dynamic` is an axis whose size may change between calls, or None.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = "normal"
    layout: str = "contiguous"
    requires_grad: bool = False
    dynamic: int | None = None

    def code(self) -> str:
        """An expression that makes the tensor from the current random state."""
        shape, view = LAYOUTS[self.layout](self.shape)
        made = _values(self, shape)
        text = f"{made}{view}"
        return f"{text}.requires_grad_()" if self.requires_grad else text

    def resize(self, size: int) -> Input:
        """The same input with another size along its dynamic axis."""
        if self.dynamic is None:
            return self
        shape = list(self.shape)
        shape[self.dynamic] = size
        return replace(self, shape=tuple(shape))


@dataclass(frozen=True)
class Step:
    """One or more statements that bind `result`, or write to it; `reads` are other names."""

    result: str
    code: str
    reads: tuple[str, ...]


class Frame(Protocol):
    """What encloses the steps of a program."""

    @property
    def imports(self) -> str:
        """The lines that the function needs before it."""

    def head(self, arguments: Sequence[str], results: Sequence[str]) -> str:
        """The line, or lines, that begin the function `f`."""

    def tail(self, results: Sequence[str]) -> Sequence[str]:
        """The lines after the last step, without their indentation."""


@dataclass(frozen=True)
class RandomProgram:
    """A function of tensors: steps in a frame."""

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    frame: Frame

    def arguments_code(self) -> str:
        """Statements that make the arguments `x0`, `x1` ..."""
        made = [f"{name} = {i.code()}" for name, i in zip(self.arguments, self.inputs, strict=True)]
        return "\n".join([f"torch.manual_seed({self.seed})", *made]) + "\n"

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments."""
        return [f"x{k}" for k in range(len(self.inputs))]

    def function_code(self) -> str:
        """The function `f`."""
        body = [line for step in self.steps for line in step.code.splitlines()]
        body += self.frame.tail(self.results)
        head = self.frame.head(self.arguments, self.results)
        return "\n".join([head, *(f"    {line}" for line in body)]) + "\n"

    def make_arguments(self) -> list[Any]:
        """New arguments, the same each time."""
        names: dict[str, Any] = {"torch": torch}
        exec(self.arguments_code(), names)
        return [names[name] for name in self.arguments]

    def function(self) -> Callable[..., Any]:
        """The function, compiled anew from its text."""
        text = f"{self.frame.imports}\n\n\n{self.function_code()}"
        filename = f"<fuzz {self.seed}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        names: dict[str, Any] = {}
        exec(compile(text, filename, "exec"), names)
        function: Callable[..., Any] = names["f"]
        return function

    def resize(self, size: int) -> RandomProgram:
        """The same program on inputs with another size along the dynamic axis."""
        return replace(self, inputs=tuple(spec.resize(size) for spec in self.inputs))

    def simpler(self) -> Iterator[RandomProgram]:
        """Programs with a part left out or made plainer; the boldest first."""
        yield from self._with_fewer_results()
        yield from self._with_fewer_steps()
        yield from self._with_plainer_inputs()

    def _with_fewer_results(self) -> Iterator[RandomProgram]:
        if len(self.results) > 1:
            for name in self.results:
                yield replace(self, results=(name,)).without_dead_steps()

    def _with_fewer_steps(self) -> Iterator[RandomProgram]:
        for k in reversed(range(len(self.steps))):
            step = self.steps[k]
            if step.result in self.results and not _is_bound(step.result, self.steps[:k]):
                # A result that is gone: return what it was computed from.
                for name in step.reads:
                    results = tuple(name if r == step.result else r for r in self.results)
                    yield replace(self, results=results).without_dead_steps()
                continue
            left = self.steps[:k] + self.steps[k + 1 :]
            if _is_bound(step.result, self.steps[:k]):  # a write to a value that exists
                yield replace(self, steps=left).without_dead_steps()
                continue
            for name in step.reads:
                renamed = tuple(_rename(s, step.result, name) for s in left)
                yield replace(self, steps=renamed).without_dead_steps()

    def _with_plainer_inputs(self) -> Iterator[RandomProgram]:
        for k, spec in enumerate(self.inputs):
            plainer = [
                replace(spec, layout="contiguous"),
                replace(spec, requires_grad=False),
                replace(spec, values="normal" if spec.values in VALUES else spec.values),
                *(replace(spec, shape=shape) for shape in _smaller(spec.shape)),
            ]
            for other in plainer:
                if other != spec:
                    yield replace(self, inputs=(*self.inputs[:k], other, *self.inputs[k + 1 :]))

    def without_dead_steps(self) -> RandomProgram:
        """Only the steps that a result, or a write to an argument, needs."""
        needed = set(self.results)
        kept: list[Step] = []
        for step in reversed(self.steps):
            if step.result in needed or step.result.startswith("x"):
                needed |= {step.result, *step.reads}
                kept.append(step)
        return replace(self, steps=tuple(reversed(kept)))


def _is_bound(name: str, steps: Sequence[Step]) -> bool:
    return name.startswith("x") or any(step.result == name for step in steps)


def _rename(step: Step, old: str, new: str) -> Step:
    """The step reading another value; names are whole words in generated code."""
    if old not in (step.result, *step.reads):
        return step
    code = _replace_word(step.code, old, new)
    reads = tuple(dict.fromkeys(new if name == old else name for name in step.reads))
    return Step(new if step.result == old else step.result, code, reads)


def _replace_word(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, text)


def _smaller(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for axis, size in enumerate(shape):
        for less in sorted({1, size // 2, size - 1}):
            if 0 < less < size:
                yield (*shape[:axis], less, *shape[axis + 1 :])


Shape = tuple[int, ...]


def _stride(shape: Shape) -> tuple[Shape, str]:
    if not shape:
        return shape, ""
    return (*shape[:-1], 2 * shape[-1]), "[..., ::2]"


def _offset(shape: Shape) -> tuple[Shape, str]:
    if not shape:
        return shape, ""
    return (shape[0] + 1, *shape[1:]), "[1:]"


def _transpose(shape: Shape) -> tuple[Shape, str]:
    if len(shape) < 2:
        return shape, ""
    return shape[::-1], f".permute({', '.join(map(str, reversed(range(len(shape)))))})"


def _expand(shape: Shape) -> tuple[Shape, str]:
    if not shape:
        return shape, ""
    return (1, *shape[1:]), f".expand({', '.join(map(str, shape))})"


# Each takes the shape wanted, and returns the shape to make and the view of it that is passed.
LAYOUTS: dict[str, Callable[[Shape], tuple[Shape, str]]] = {
    "contiguous": lambda shape: (shape, ""),
    "strided": _stride,
    "offset": _offset,
    "transposed": _transpose,
    "expanded": _expand,
}
# No subnormals, which IREE flushes to zero, and no number whose square overflows: eager PyTorch
# accumulates some reductions in double.
SPECIAL_FLOATS = "0.0, -0.0, 1.0, -1.0, 0.5, nan, inf, -inf, 1e-30, -1e-30, 1e18, -7.25"
# Integers that float32 and float64 cannot represent, and the limits of narrower types.
SPECIAL_INTS = "0, 1, -1, -7, 16777217, 2147483647, -2147483648, 9007199254740993"
VALUES = ("normal", "special")


def _values(spec: Input, shape: Shape) -> str:
    size = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    cast = f".to(torch.{spec.dtype})"
    if ":" in spec.values:
        low, high = spec.values.split(":")
        return f"torch.randint({low}, {high}, {size}){cast}"
    if spec.dtype == "bool":
        return f"(torch.rand({size}) > 0.5)"
    if spec.values == "special" and spec.dtype in INTS:
        return f"torch.tensor([{SPECIAL_INTS}]){_drawn_from(SPECIAL_INTS, size)}{cast}"
    if spec.values == "special":
        # "nan" and "inf" as text, so that the script needs no names for them.
        table = f'torch.tensor([float(v) for v in "{SPECIAL_FLOATS}".split(", ")])'
        return f"{table}{_drawn_from(SPECIAL_FLOATS, size)}{cast}"
    if spec.dtype in INTS:
        return f"torch.randint({0 if spec.dtype == 'uint8' else -9}, 10, {size}){cast}"
    return f"torch.randn({size}){cast if spec.dtype != 'float32' else ''}"


def _drawn_from(values: str, size: str) -> str:
    return f"[torch.randint(0, {values.count(',') + 1}, {size})]"
