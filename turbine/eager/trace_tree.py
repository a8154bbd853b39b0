"""The trace: ops that were called and have not run. They run as one program when a value is read.

There is one trace for the process, so that ops of several threads keep their order. Traces form a
tree: a node is an op after those of the nodes above it. A loop walks the same nodes in every turn,
so that only the first turn has to find out what its ops give.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec

from turbine import config, errors
from turbine.capture.updates import LEAST_BYTES
from turbine.eager.layouts import Layout, NotRecordable, infer, layout_of
from turbine.eager.storage import Ref, Value, View, reference, reference_as
from turbine.eager.tensor import DeviceTensor

aten = torch.ops.aten

LOCK = threading.RLock()
# A program of more ops takes long to compile.
MOST_OPS = 1000
_LEAST_PERIOD = 16


class Number(float):
    """A number that a program takes as an input: it may differ from call to call.

    As a float it is what it was in the first call.
    """

    index: int


class Op(NamedTuple):
    """A call; `results` are the layouts of what it gives, `where` the user's line."""

    target: Any
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[Layout | None]
    where: str | None = None


class Node:
    """An op of a trace, after those of its parents.

    `spec` says how its results are nested, `is_flat` that they are a tuple of tensors.
    """

    __slots__ = ("is_flat", "no_values", "nodes", "op", "parent", "spec")

    def __init__(self, parent: Node | None, op: Op, spec: TreeSpec | None) -> None:
        self.parent = parent
        self.op = op
        self.spec = spec
        self.is_flat = (
            spec is not None and spec.type is tuple and spec.num_nodes == len(op.results) + 1
        )
        self.no_values = [None] * len(op.results)
        self.nodes: dict[Any, Node] = {}

    def path(self) -> list[Node]:
        """The nodes from the first op to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


_root = Node(None, Op(None, [], {}, []), None)
_node_count = 0
_MOST_NODES = 1 << 16


def prune(find_kept: Callable[[], Iterable[Node]]) -> None:
    """If the tree is large, forget the nodes that do not lead to these."""
    global _node_count
    if _node_count < _MOST_NODES:
        return
    alive = {node for leaf in find_kept() for node in leaf.path()}
    if len(alive) > _MOST_NODES // 2:
        alive.clear()
    for node in (_root, *alive):
        node.nodes = {key: child for key, child in node.nodes.items() if child in alive}
    _node_count = len(alive)


class Update(NamedTuple):
    """A result that replaces the values of an input, whose memory nothing else needs."""

    result: int
    input: int


class Program(NamedTuple):
    """The ops down to a node, and their inputs; somebody holds the results `outputs`.

    Compiled code may write those of `updates` to the memory of inputs.
    """

    node: Node
    inputs: list[Tensor]
    numbers: list[float]
    outputs: tuple[int, ...]
    updates: tuple[Update, ...] = ()

    @property
    def ops(self) -> list[Op]:
        """The ops in order."""
        return [node.op for node in self.node.path()]


class NeedsMemory(Exception):
    """An operand is a view that depends on memory, and its values are not computed yet."""


class MixedDevices(RuntimeError):
    """Operands on several devices; the message is PyTorch's."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"turbine:0 and {tensor.device}!"
        )


def check_device(tensor: Tensor) -> None:
    """Raise for a tensor of another device among operands, unless it is a number on the CPU."""
    if tensor.dim() or tensor.device.type != "cpu":
        raise MixedDevices(tensor)


class Trace:
    """The ops that have not run yet.

    In a loop that reads no value, a program ends after `period` calls, one turn of the loop.
    """

    def __init__(self, period: int = 0) -> None:
        self.period = period
        self.number = next(_counter)
        self.node = _root
        self.calls: list[Any] = []  # ops without those that views of results add
        self.values: list[weakref.ref[Value] | None] = []
        self.inputs: list[Tensor] = []
        self.numbers: list[float] = []
        self._results: list[Layout | None] = []
        self._layouts: list[Layout] = []  # of the inputs
        self._owners: list[weakref.ref[Value] | None] = []  # of the inputs
        self._replaced: dict[int, int] = {}  # the input that a result of an in-place op replaces
        self._known_inputs = 0  # inputs that the key of a node has the layout of
        self.most = (
            MOST_OPS  # calls, after which the program ends: it is long, or one turn of a loop
        )

    def record(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Node, int]:
        """Add an op; gives its node and the index of its first result.

        Arguments are tensors, or references to operands of the trace.
        """
        name = id(target)  # hashing an op takes longer
        key: list[Any] = [name]
        takes_numbers = name in _NAMES_WITH_NUMBERS
        numbers = len(self.numbers)
        try:
            for one in args:
                if type(one) is DeviceTensor:
                    value, view = one._storage.value, one._view
                    if view.parent is None and value.trace == self.number:
                        key.append(value.ref)
                    else:
                        key.append(self._locate(value, view))
                else:
                    self._encode(one, key, takes_numbers)
            for keyword, one in kwargs.items():
                key.append(keyword)
                self._encode(one, key, takes_numbers)
            return self._follow(key, target, args, kwargs, numbers)
        except BaseException:
            self._take_back(numbers)
            raise

    def _follow(
        self,
        key: list[Any],
        target: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        numbers: int,
    ) -> tuple[Node, int]:
        """Go to the node of a call; gives it and the index of its first result."""
        layouts = self._layouts
        if len(layouts) > self._known_inputs:
            key += layouts[self._known_inputs :]
        call, node = tuple(key), self.node
        if node is _root:
            self.most = 1 if config.get("eager") == "op" else self.period or MOST_OPS
        found = node.nodes.get(call)
        if found is None:
            found = self._extend(call, target, args, kwargs, numbers)
        self.node = found
        self._known_inputs = len(layouts)
        first = len(self._results)
        self._results += found.op.results
        self.values += found.no_values
        return found, first

    def _encode(self, argument: Any, key: list[Any], takes_numbers: bool) -> None:
        """Add an argument to the key of an op.

        Numbers that are equal, 1 and True and 1.0, are kept apart, and so are 0.0 and -0.0.
        """
        kind = type(argument)
        if kind is float or kind is int:
            if takes_numbers and self._are_floats(key):
                self.numbers.append(argument)
                key.append(Number)
            else:
                key.append(argument if kind is int else (float, repr(argument)))
        elif kind in _PLAIN:
            key.append(argument)
        elif kind is list or kind is tuple:
            key.append(len(argument))
            for one in argument:
                if type(one) is DeviceTensor:
                    value, view = one._storage.value, one._view
                    if view.parent is None and value.trace == self.number:
                        key.append(value.ref)
                    else:
                        key.append(self._locate(value, view))
                elif type(one) is int and not takes_numbers:
                    key.append(one)
                else:
                    self._encode(one, key, takes_numbers)
        elif kind in _TAGGED:
            key.append((kind, repr(argument)))
        elif kind is DeviceTensor:
            key.append(self._locate(argument._storage.value, argument._view))
        elif isinstance(argument, Tensor):
            key.append(self._cpu_number(argument))
        else:
            raise NotRecordable(f"an argument of type {kind.__name__}")

    def _are_floats(self, key: list[Any]) -> bool:
        """Whether numbers of an op are inputs: the tensors before them are floats."""
        results, layouts = self._results, self._layouts
        for one in key:
            if type(one) is Ref:
                index = one.index
                layout = one.layout or (results[index] if index >= 0 else layouts[~index])
                if layout is None or layout.dtype not in _WITH_NUMBERS:
                    return False
        return True

    def locate(self, value: Value, view: View) -> Ref:
        """The operand for a view of a value."""
        try:
            return self._locate(value, view)
        except BaseException:
            self._take_back(len(self.numbers))
            raise

    def _locate(self, value: Value, view: View) -> Ref:
        if value.error is not None:
            raise value.error
        if value.trace != self.number:
            assert value.data is not None
            value.enter(self.number, self._input(value.data, value.layout, value))
        assert value.ref is not None
        if view.parent is None:
            return value.ref
        if value.views is None:
            value.views = {}
        found = value.views.get(view)
        if found is None:
            found = value.views[view] = self._add_view(value, view)
        return found

    def _add_view(self, value: Value, view: View) -> Ref:
        if view.by_memory:
            if value.data is None:
                raise NeedsMemory
            data = view.of(value.data)
            return self._input(data, layout_of(data), value)
        assert view.parent is not None
        parent = self._locate(value, view.parent)
        if view.call is None:
            # Results of the trace need not be laid out as their tensors are.
            target = aten.reshape.default if view.target is aten.view.default else view.target
            key: list[Any] = []
            for one in view.arguments():
                self._encode(one, key, takes_numbers=False)
            view.call = target, view.arguments(), tuple(key)
        target, given, encoded = view.call
        numbers = len(self.numbers)
        _, first = self._follow(
            [id(target), parent, *encoded], target, [parent, *given], {}, numbers
        )
        return reference(first + (view.which or 0))

    def _cpu_number(self, tensor: Tensor) -> Ref:
        """The operand for a tensor without axes on the CPU, which ops of other devices take."""
        check_device(tensor)
        own = tensor.detach().clone()
        return self._input(own, layout_of(own), None)

    def _input(self, tensor: Tensor, layout: Layout, owner: Value | None) -> Ref:
        self.inputs.append(tensor)
        self._layouts.append(layout)
        self._owners.append(None if owner is None else weakref.ref(owner))
        return reference(~(len(self.inputs) - 1))

    def _take_back(self, numbers: int) -> None:
        """Forget the inputs and numbers of an op that is not recorded."""
        known = self._known_inputs
        for ref in self._owners[known:]:
            owner = ref() if ref is not None else None
            if owner is not None:
                owner.trace = -1
        del self.inputs[known:], self._layouts[known:], self._owners[known:]
        del self.numbers[numbers:]

    def _layout(self, ref: Ref) -> Layout:
        index = ref.index
        layout = self._results[index] if index >= 0 else self._layouts[~index]
        assert layout is not None
        return ref.layout or layout

    def _extend(
        self, call: tuple[Any, ...], target: Any, args: Sequence[Any], kwargs: Any, numbers: int
    ) -> Node:
        """A new node, for an op that was never called after those of the trace."""
        global _node_count
        if len(self._results) >= 2 * MOST_OPS:  # with those that views add
            self.most = 0
        parts, indices = iter(call[1:]), itertools.count(numbers)
        own = [_decode(one, parts, indices) for one in args]
        named = {}
        for name, one in kwargs.items():
            next(parts)
            named[name] = _decode(one, parts, indices)
        device = "cpu" if self._is_misjudged(target, own) else "meta"

        def stand_in(argument: Any) -> Any:
            if isinstance(argument, Ref):
                made = self._layout(argument).make(device)
                return made if device == "meta" else made.zero_()
            if isinstance(argument, list):
                return [stand_in(one) for one in argument]
            return torch.device(device) if isinstance(argument, torch.device) else argument

        results, spec = infer(
            target, stand_in(own), {name: stand_in(one) for name, one in named.items()}
        )
        op = Op(target, own, named, results, errors.user_line())
        node = self.node.nodes[call] = Node(self.node, op, spec)
        _node_count += 1
        return node

    def _is_misjudged(self, target: Any, args: Sequence[Any]) -> bool:
        """Whether PyTorch's meta kernel may give another layout than the op on a CPU has."""
        if target not in _CONVOLUTIONS:
            return target in _MISJUDGED
        layouts = [self._layout(one) for one in args if isinstance(one, Ref)]
        return any(list(one.stride) != sorted(one.stride, reverse=True) for one in layouts)

    def hold(self, index: int) -> Value:
        """The value of a result; it is one of the program's if it is alive when that runs."""
        layout = self._results[index]
        assert layout is not None
        value = Value(layout, None, self.number, reference(index))
        self.values[index] = weakref.ref(value)
        return value

    def replace(self, old: Value, index: int) -> Value:
        """The value of a result that an op writes to a tensor in place of another value."""
        layout = old.layout
        is_same = self._results[index] is layout
        ref = reference(index) if is_same else reference_as(index, layout)
        value = Value(layout, None, self.number, ref)
        self.values[index] = weakref.ref(value)
        if old.trace == self.number and old.ref is not None:
            place = old.ref.index
            replaced = ~place if place < 0 else self._replaced.get(place)
            if replaced is not None:
                self._replaced[index] = replaced
        return value

    def program(self) -> Program:
        """The program of the ops so far."""
        alive = [place for place, ref in enumerate(self.values) if ref is not None and ref()]
        replaced = {self._replaced[place]: place for place in alive if place in self._replaced}
        updates = [Update(new, old) for old, new in replaced.items() if self._is_free(old)]
        return Program(self.node, self.inputs, self.numbers, tuple(alive), tuple(updates))

    def _is_free(self, number: int) -> bool:
        """Whether an input is large, and no tensor and no other input needs its memory."""
        tensor, owner = self.inputs[number], self._owners[number]
        if tensor.nbytes < LEAST_BYTES or owner is None or owner() is not None:
            return False
        if tensor.is_inference():  # has no version, and PyTorch writes to it in its mode alone
            return False
        memory = tensor.untyped_storage().data_ptr()
        return [one.untyped_storage().data_ptr() for one in self.inputs].count(memory) == 1


_counter = itertools.count()
_TAGGED = {bool, complex}
_PLAIN = {
    Ref,
    str,
    type(None),
    torch.dtype,
    torch.memory_format,
    torch.layout,
    torch.device,
}
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


def _decode(argument: Any, parts: Iterator[Any], indices: Iterator[int]) -> Any:
    """An argument of an op in a program, given what is in the op's key for it."""
    part = next(parts)
    if isinstance(argument, (list, tuple)):
        return [_decode(one, parts, indices) for one in argument]
    if part is Number:
        number = Number(argument)
        number.index = next(indices)
        return number
    return part if type(part) is Ref else argument


def find_period(calls: Sequence[Any]) -> int:
    """After how many calls the later half of them repeats itself, or 0.

    The updates of an optimizer repeat themselves too, for each weight, but not through a turn.
    """
    half = len(calls) // 2
    for period in range(_LEAST_PERIOD, half // 2):
        if calls[half + period :] == calls[half:-period]:
            return period
    return 0


# Their results may follow the memory format of an operand.
_CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
# Ops whose results have other sizes on a CPU than PyTorch's meta kernels say; they are tried once.
_MISJUDGED = {
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
}
