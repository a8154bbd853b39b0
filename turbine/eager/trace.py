"""The trace: ops that were called and have not run. They run as one program when a value is read.

There is one trace for the process, so that ops of several threads keep their order.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turbine import config
from turbine.eager.layouts import Layout, NotRecordable, Results, infer, known_results, layout_of

aten = torch.ops.aten

LOCK = threading.RLock()
os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # type: ignore[attr-defined]
# A program of more ops takes long to compile.
MOST_OPS = 1000
_LEAST_PERIOD = 16


class Value:
    """What a storage holds: a CPU tensor, or the result of an op of the trace.

    `error` is what the op raised when it ran.
    """

    __slots__ = ("__weakref__", "data", "error", "index", "layout")

    def __init__(self, layout: Layout, data: Tensor | None = None, index: int = -1) -> None:
        self.layout = layout
        self.data = data
        self.index = index
        self.error: Exception | None = None


class Ref:
    """An operand in the arguments of an op: a result of the trace, or ~number of an input."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"%{self.index}" if self.index >= 0 else f"%in{~self.index}"


class Number(float):
    """A number that a program takes as an input: it may differ from call to call."""

    index: int


class Operand(NamedTuple):
    """A reference, and the layout of what it refers to."""

    ref: Ref
    layout: Layout


class Op(NamedTuple):
    """A call; `results` are the layouts of what it gives."""

    target: Any
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[Layout | None]


class Program(NamedTuple):
    """Ops to run, with their inputs; `outputs` are the indices of results that somebody holds."""

    key: Any
    ops: list[Op]
    inputs: list[Tensor]
    numbers: list[float]
    outputs: list[int]


class Trace:
    """The ops that have not run yet.

    In a loop that reads no value, a program ends after `period` calls, one turn of the loop.
    """

    def __init__(self, period: int = 0) -> None:
        self.period = period
        self.calls: list[Any] = []  # ops without those that views of results add
        self.ops: list[Op] = []
        self.keys: list[Any] = []
        self.values: list[weakref.ref[Value] | None] = []
        self.inputs: list[Tensor] = []
        self.numbers: list[float] = []
        self._most = MOST_OPS
        self.views: dict[Any, Operand] = {}
        self._places: dict[int, Operand] = {}
        self._takes_numbers = False

    def operand(self, value: Value) -> Operand:
        """The operand for a value."""
        if value.error is not None:
            raise value.error
        if value.data is None:
            return Operand(reference(value.index), value.layout)
        return self.input(value.data)

    def input(self, tensor: Tensor) -> Operand:
        """The operand for a CPU tensor."""
        found = self._places.get(id(tensor))
        if found is None:
            self.inputs.append(tensor)
            ref = reference(~(len(self.inputs) - 1))
            found = self._places[id(tensor)] = Operand(ref, layout_of(tensor))
        return found

    def record(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operand: Callable[[Tensor], Operand],
    ) -> tuple[Results, int]:
        """Add an op; gives its results and the index of the first.

        Arguments are operands, or tensors for which `operand` gives one.
        """
        if not self.ops:
            self._most = 1 if config.get("eager") == "op" else MOST_OPS
        name = id(target)  # hashing an op takes longer
        key: list[Any] = [name]
        kinds: list[Any] = [name]
        self._takes_numbers = name in _NAMES_WITH_NUMBERS
        own = [self._encode(one, key, kinds, operand) for one in args]
        named = {}
        for keyword, one in kwargs.items():
            key.append(keyword)
            kinds.append(keyword)
            named[keyword] = self._encode(one, key, kinds, operand)
        call = tuple(kinds)
        found = known_results(call) or _infer(call, target, own, named)
        first = len(self.values)
        self.ops.append(Op(target, own, named, found[0]))
        self.keys.append(tuple(key))
        self.values += [None] * len(found[0])
        return found, first

    def _encode(
        self,
        argument: Any,
        key: list[Any],
        kinds: list[Any],
        operand: Callable[[Tensor], Operand],
    ) -> Any:
        """An argument with references in place of tensors; adds to the keys of op and layouts.

        Numbers that are equal, 1 and True and 1.0, are kept apart, and so are 0.0 and -0.0.
        """
        kind = type(argument)
        if kind is Operand:
            key.append(argument.ref)
            kinds.append(argument.layout)
            if argument.layout.dtype not in _WITH_NUMBERS:
                self._takes_numbers = False
            return argument.ref
        if self._takes_numbers and kind in _NUMBERS:
            number = Number(argument)
            number.index = len(self.numbers)
            self.numbers.append(number)
            key.append((Number, number.index))
            kinds.append(Number)
            return number
        if kind in _PLAIN:
            key.append(argument)
            kinds.append(argument)
            return argument
        if kind in _TAGGED:
            tagged = kind, repr(argument)
            key.append(tagged)
            kinds.append(tagged)
            return argument
        if kind is list or kind is tuple:
            key.append(len(argument))
            kinds.append(len(argument))
            return [self._encode(one, key, kinds, operand) for one in argument]
        if isinstance(argument, Tensor):
            return self._encode(operand(argument), key, kinds, operand)
        raise NotRecordable(f"an argument of type {kind.__name__}")

    def hold(self, layout: Layout, index: int) -> Value:
        """The value of a result; it is one of the program's if it is alive when that runs."""
        value = Value(layout, None, index)
        self.values[index] = weakref.ref(value)
        return value

    def is_at_end(self) -> bool:
        """Whether the program should end here: it is long, or one turn of a loop."""
        return len(self.calls) == self.period or len(self.ops) >= self._most

    def program(self) -> Program:
        """The program of the ops so far."""
        alive = [place for place, ref in enumerate(self.values) if ref is not None and ref()]
        layouts = tuple([one.layout for one in self._places.values()])
        key = tuple(self.keys), tuple(alive), layouts
        return Program(key, self.ops, self.inputs, self.numbers, alive)


_NUMBERS = {int, float}
_TAGGED = {float, bool, complex}
_PLAIN = {int, str, type(None), torch.dtype, torch.memory_format, torch.layout, torch.device}
# Ops whose numbers are inputs of a program: a learning rate does not make another one.
TAKES_NUMBERS = {
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.rsub.Scalar,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.addcmul.default,
    aten.addcdiv.default,
    aten.lerp.Scalar,
}
_LISTS = ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp")
_WITH_NUMBERS = {torch.float32, torch.float64}


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, name) for name in packet.overloads()]


_NAMES_WITH_NUMBERS = {id(op) for op in TAKES_NUMBERS} | {
    id(op) for name in _LISTS for op in _overloads(getattr(aten, f"_foreach_{name}"))
}


def find_period(calls: Sequence[Any]) -> int:
    """After how many calls the later half of them repeats itself, or 0.

    The updates of an optimizer repeat themselves too, for each weight, but not through a turn.
    """
    half = len(calls) // 2
    for period in range(_LEAST_PERIOD, half // 2):
        if calls[half + period :] == calls[half:-period]:
            return period
    return 0


_refs: dict[int, Ref] = {}


def reference(index: int) -> Ref:
    """The reference to a result or an input; one object for each, compared by identity."""
    found = _refs.get(index)
    return found if found is not None else _refs.setdefault(index, Ref(index))


def _infer(
    key: tuple[Any, ...], target: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Results:
    layouts = iter([part for part in key if isinstance(part, Layout)])
    device = "cpu" if target in _MISJUDGED else "meta"

    def stand_in(argument: Any) -> Any:
        if isinstance(argument, Ref):
            made = next(layouts).make(device)
            return made if device == "meta" else made.zero_()
        if isinstance(argument, list):
            return [stand_in(one) for one in argument]
        return torch.device(device) if isinstance(argument, torch.device) else argument

    own = [stand_in(one) for one in args]
    return infer(key, target, own, {name: stand_in(one) for name, one in kwargs.items()})


# Ops whose results have other sizes on a CPU than PyTorch's meta kernels say; they are tried once.
_MISJUDGED = {
    aten.native_batch_norm.default,
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
}


def interpret(program: Program) -> list[Tensor]:
    """Run a program op by op in PyTorch; values are freed after their last use."""
    results = _interpret(program, _call)
    return [results[index] for index in program.outputs]


def rescue(program: Program) -> list[Tensor | Exception]:
    """The results of a program with an op that raises: what depends on it is the error."""
    results = _interpret(program, _call_or_error)
    return [results[index] for index in program.outputs]


def _interpret(program: Program, call: Callable[[Op, Any, Any], Any]) -> dict[int, Any]:
    last: dict[int, int] = {}
    for number, op in enumerate(program.ops):
        for index in _operands(op):
            last[index] = number
    kept = set(program.outputs)
    values: dict[int, Any] = {}

    def value(argument: Any) -> Any:
        if isinstance(argument, Ref):
            index = argument.index
            return values[index] if index >= 0 else program.inputs[~index]
        if isinstance(argument, list):
            return [value(one) for one in argument]
        return argument

    count = 0
    with torch.no_grad():
        for number, op in enumerate(program.ops):
            named = {name: value(one) for name, one in op.kwargs.items()}
            for leaf in call(op, [value(one) for one in op.args], named):
                if count in last or count in kept:
                    values[count] = leaf
                count += 1
            for index in _operands(op):
                if index >= 0 and last[index] == number and index not in kept:
                    values.pop(index, None)
    return values


def _call(op: Op, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return _leaves(op.target(*args, **kwargs))


def _call_or_error(op: Op, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    given = _leaves([args, list(kwargs.values())])
    failed = next((one for one in given if isinstance(one, Exception)), None)
    if failed is None:
        try:
            return _call(op, args, kwargs)
        except Exception as error:
            failed = error
    return [failed] * len(op.results)


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [leaf for one in result for leaf in _leaves(one)]
    return [result]


def _operands(op: Op) -> list[int]:
    found: list[int] = []
    left = [*op.args, *op.kwargs.values()]
    while left:
        one = left.pop()
        if isinstance(one, Ref):
            found.append(one.index)
        elif isinstance(one, list):
            left += one
    return found
