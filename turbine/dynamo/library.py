"""Choose the ops that run in PyTorch's own library because it is faster than compiled code.

Note [Library calls]
PyTorch has tuned code for matmuls, convolutions, attention, norms, softmax and gelu. Where it is
faster on this machine, an op stays a call between compiled parts, as in Inductor. Such a call
splits a part in two, so it has to save more than `_switch()`. Its time is estimated from its FLOP
count and from the measured time of an example of the same kind (`calibration`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import astuple, dataclass, replace
from functools import partial
from math import isfinite, prod
from typing import Any, cast

import torch
from torch import Tensor, fx

from turbine import errors
from turbine.capture import work
from turbine.capture.control_flow import is_control_flow
from turbine.capture.decompositions import Table
from turbine.capture.partition import is_free
from turbine.capture.sizes import count_elements, hint, is_empty, is_static
from turbine.dynamo import calibration, small_graphs
from turbine.dynamo.calibration import Example
from turbine.library import attention, convolution

aten = torch.ops.aten

Function = Callable[..., Any]
CHOICES = ("auto", "never", "always")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The seconds of `_switch` where they cannot be measured.
SWITCH = 30e-6
# PyTorch takes as long as this many small ops to call a matmul or a convolution of any size.
_CALL_OPS = 3
# Compiled code is slower between ops of PyTorch than alone, and a busy machine slows PyTorch's
# threads more, so that measurements favour it.
MARGIN = 1.25


def check(choice: str) -> None:
    """Raise for an unknown value of the option `library_calls`."""
    if choice not in CHOICES:
        raise errors.ConfigError(errors.unknown("value of library_calls", choice, CHOICES))


class LibraryCalls:
    """The choices of one torch.compile: the same while tracing and for each of its graphs.

    If weights are frozen, what has none is compiled: between kernels that have threads of their
    own, calls of PyTorch would cost more than they save.
    """

    def __init__(self, choice: str, *, is_training: bool, is_frozen: bool = False) -> None:
        self.choice = choice
        self.is_training = is_training
        self.is_frozen = is_frozen
        self._reasons: dict[tuple[str, float], str | None] = {}

    def keep_whole(self, table: Table) -> Table:
        """The decompositions, without those of calls that the library or a kernel runs."""
        # Those of matmuls stay: they avoid miscompiles, and `reasons` may compile a matmul yet.
        ops = [op for op in table if op in _READERS and op not in _MATMULS]
        return table | {op: partial(self._decompose, op, table[op]) for op in ops}

    def reasons(
        self, nodes: Iterable[fx.Node], frozen: AbstractSet[str] = frozenset()
    ) -> dict[fx.Node, str]:
        """The nodes that run in PyTorch's library, with reasons; `frozen` are placeholders."""
        nodes = list(nodes)
        loops = _long_loops(nodes) if self.choice == "auto" else {}
        return loops | self._call_reasons(nodes, frozen)

    def _call_reasons(
        self, nodes: Iterable[fx.Node], frozen: AbstractSet[str]
    ) -> dict[fx.Node, str]:
        calls = self._find(nodes, frozen)
        reasons = {node: self._reason(call) for node, call in calls.items()}
        found = {node: reason for node, reason in reasons.items() if reason is not None}
        if self.choice != "auto" or self._pays(calls, found.keys()):
            return found
        # Other ops were left whole when the graph was traced.
        return {node: reason for node, reason in found.items() if node.target not in _WEIGHTS}

    def is_worth_a_part(self, node: fx.Node) -> bool:
        """Whether compiled code for this op alone is far faster than the library."""
        if self.choice != "auto" or node.target not in _READERS:
            return False
        call = self._read(node.target, fx.map_arg(node.args, _value))
        if call is None:
            return False
        compiled, library = _estimate(call)
        return _FAR_FASTER * (compiled + _switch()) < library

    def _find(self, nodes: Iterable[fx.Node], frozen: AbstractSet[str]) -> dict[fx.Node, Call]:
        """The calls that there is a choice for."""
        found = {}
        readable = [node for node in nodes if node.target in _READERS]
        uses = Counter(_weight(node) for node in readable if node.target in _MATMULS)
        for node in readable:
            # A weight of many matmuls is a recurrent layer's: compiled code packs it only once.
            if node.target in _MATMULS and uses[_weight(node)] > _FEW_USES:
                continue
            is_frozen = node.target in _WEIGHTS and _weight(node).name in frozen
            call = self._read(node.target, fx.map_arg(node.args, _value))
            if call is not None and is_frozen == self.is_frozen:
                found[node] = _freeze(call) if is_frozen else call
        return found

    def _pays(self, calls: Mapping[fx.Node, Call], left: AbstractSet[fx.Node]) -> bool:
        """Whether matmuls and convolutions take clearly less time if some are left to the library.

        Between ops of PyTorch, parts are small, and their threads wait for those of PyTorch.
        """
        seconds = [(n, *_estimate(call)) for n, call in calls.items() if n.target in _WEIGHTS]
        switch = _switch()
        mixed = [library + switch if n in left else compiled for n, compiled, library in seconds]
        share = 1 / MARGIN if self.is_frozen else _CLEARLY_LESS
        return sum(mixed) <= share * sum(compiled for _, compiled, _ in seconds)

    def _decompose(self, op: Any, rule: Function, *args: Any, **keywords: Any) -> Any:
        if op is aten.convolution.default:
            x, weight, _, stride, _, dilation, is_transposed, _, groups = args
            if not is_transposed and convolution.supports(x, weight, stride, dilation, groups):
                return NotImplemented  # `reasons` has the choice
        is_left = not self.is_frozen and self._reason(self._read(op, args)) is not None
        return NotImplemented if is_left else rule(*args, **keywords)

    def _read(self, op: Any, args: Sequence[Any]) -> Call | None:
        # Only gradients need the second result of attention.
        is_first = op is _FLASH and not self.is_training
        return _READERS[_first_of_attention if is_first else op](args)

    def _reason(self, call: Call | None) -> str | None:
        if call is None or self.choice == "never":
            return None
        if self.choice == "always":
            return "library_calls is 'always'"
        key = call.kind, call.flop
        if key not in self._reasons:
            self._reasons[key] = _compare(call)
        return self._reasons[key]


def _long_loops(nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """The loops that take longer compiled, with reasons.

    IREE 3.13 copies the stacked results of a loop in every turn, PyTorch takes a turn op by op.
    """
    sizes = {node: work.megabytes_stacked(node) for node in nodes if is_control_flow(node)}
    return {
        node: f"faster in PyTorch: compiled code copies {size:.2g} MB of stacked results each turn"
        for node, size in sizes.items()
        if size > _MOST_STACKED
    }


# What is copied in the time that PyTorch takes for a turn of some small ops.
_MOST_STACKED = 2.0  # MB
_FEW_USES = 3
_FAR_FASTER = 2.0
_CLEARLY_LESS = 0.9
_MATMULS = (aten.mm.default, aten.addmm.default)
# The index of the weight among the arguments.
_WEIGHTS: dict[Any, int] = {
    aten.mm.default: 1,
    aten.addmm.default: 2,
    aten.convolution.default: 1,
}


def _weight(node: fx.Node) -> fx.Node:
    """The weight of a matmul or convolution, without the views of it."""
    weight: Any = node.args[_WEIGHTS[node.target]]
    while is_free(weight) and weight.all_input_nodes:
        weight = weight.all_input_nodes[0]
    return cast(fx.Node, weight)


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


@dataclass(frozen=True)
class Call:
    """The kind of a call and its amount of work."""

    kind: str  # calls of one kind have about the same FLOP rate
    flop: float
    example: Callable[[], Example]  # makes a call of this kind, to be measured
    margin: float = MARGIN


def _freeze(call: Call) -> Call:
    """The call with a weight that is packed once."""
    make = call.example
    kind = f"{call.kind}, frozen weight"
    # All of the graph is compiled, unless PyTorch is clearly faster.
    return replace(
        call,
        kind=kind,
        example=lambda: replace(make(), frozen=(1,), alternates=False),
        margin=1 / MARGIN,
    )


Reader = Callable[[Sequence[Any]], Call | None]


def _read_once(call: Call | None) -> Call | None:
    """The call of an op that reads memory and does little else; its neighbours do as well.

    All of such a graph is compiled, or nothing, so its calls do not alternate.
    """
    if call is None:
        return None
    make = call.example
    return replace(call, example=lambda: replace(make(), alternates=False), margin=1.0)


def usual_calls() -> list[Call]:
    """A float32 call of each kind that most models have, forward and backward.

    >>> from turbine.dynamo import library
    >>> [call.kind for call in library.usual_calls()][:2]
    ['matmul of float32', 'matmul of 1 row of float32']
    """
    examples = [make(torch.float32) for make in _USUAL]
    calls = [_READERS[example.op](example.args) for example in examples]
    return [call for call in calls if call is not None]


def _compare(call: Call) -> str | None:
    """The reason to run a call in the library; None if it costs more than it saves."""
    compiled, library = _estimate(call)
    # If neither could be measured, both are inf, and the call is compiled.
    if not call.margin * compiled > library + _switch():
        return None
    rank = "faster" if compiled > library else "about as fast"
    return f"{rank} in PyTorch: about {1e3 * library:.2g} ms, compiled {1e3 * compiled:.2g} ms"


def _switch() -> float:
    """Seconds of a library call beside its work: the call, and that of one more part."""
    seconds = calibration.measure_once(small_graphs.KIND, small_graphs.make_example)
    measured = seconds.compiled + _CALL_OPS * seconds.library / small_graphs.EXAMPLE_OPS
    return measured if isfinite(measured) else SWITCH


def _estimate(call: Call) -> tuple[float, float]:
    """The seconds of a call, compiled and in the library."""
    seconds = calibration.measure_once(call.kind, call.example)
    share = call.flop / seconds.flop
    return share * seconds.compiled, share * seconds.library


def _call(
    kind: str, flop: float, tensors: Sequence[Tensor], example: Callable[[torch.dtype], Example]
) -> Call | None:
    """A call; None if no example stands for it: an unusual dtype, or a tensor without elements."""
    dtype = tensors[0].dtype
    if dtype not in DTYPES or any(map(is_empty, tensors)):
        return None
    dynamic = not all(map(is_static, tensors))
    text = f"{kind} of {str(dtype).removeprefix('torch.')}{', dynamic' * dynamic}"
    return Call(text, flop, lambda: _complete(example(dtype), dynamic))


def _complete(example: Example, dynamic: bool) -> Example:
    """The example with its FLOP count."""
    call = _READERS[example.op](example.args)
    assert call is not None
    return replace(example, flop=call.flop, is_dynamic=dynamic)


# Matmuls

# Kinds of matmuls with few rows: they read the weight once.
_FEW_ROWS = (1, 4, 8)


def _matmul(left: Tensor, right: Tensor) -> Call | None:
    *batch, rows, inner = map(hint, left.shape)
    flop = 2.0 * prod(batch) * rows * inner * hint(right.shape[-1])
    if batch:
        return _call("batched matmul", flop, (left, right), _batched_matmul)
    for count in _FEW_ROWS:
        if rows <= count:
            kind = f"matmul of {count} row{'s' * (count > 1)}"
            return _read_once(_call(kind, flop, (left, right), partial(_linear, count, 4096)))
    return _call("matmul", flop, (left, right), partial(_linear, 256, 768))


def _linear(rows: int, width: int, dtype: torch.dtype) -> Example:
    args = (torch.rand(rows, width, dtype=dtype), torch.rand(width, width, dtype=dtype))
    return Example(_transposed_matmul, args, {0: (0,)})


def _transposed_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """The matmul of nn.Linear. Examples have no strides, so a weight is not passed transposed."""
    return x @ weight.t()


def _batched_matmul(dtype: torch.dtype) -> Example:
    args = (torch.rand(16, 128, 64, dtype=dtype), torch.rand(16, 64, 128, dtype=dtype))
    return Example(aten.bmm.default, args, {0: (0, 1), 1: (0, 2)})


# Convolutions

_FEW_CHANNELS = 4
_EXAMPLE_FLOP = 5e7  # enough that the time of a call itself does not count


@dataclass(frozen=True)
class _Shape:
    """Channels and windows of a convolution; by default those of a typical middle layer."""

    inputs: int = 64
    outputs: int = 64
    taps: int = 3  # along an axis
    stride: int = 1

    def __str__(self) -> str:
        windows = f"{self.taps} taps, stride {self.stride}"
        return f"{self.inputs} to {self.outputs} channels, {windows},"


@dataclass(frozen=True)
class _Convolution:
    """A kind of convolution."""

    rank: int
    is_depthwise: bool = False
    is_backward: bool = False
    # Of few inputs it is the convolution's own: copies of windows take most of the time.
    shape: _Shape = _Shape()

    def __str__(self) -> str:
        name = f"{self.rank}-d {'depthwise ' * self.is_depthwise}convolution"
        channels = "" if self.shape == _Shape() else f" of {self.shape}"
        return f"{name}{channels}{' backward' * self.is_backward}"

    def example(self, dtype: torch.dtype) -> Example:
        """A convolution of this kind."""
        inputs, outputs, taps, step = astuple(self.shape)
        groups = outputs if self.is_depthwise else 1
        size = {1: 1024, 2: 28, 3: 8}[self.rank]
        work = 2 * size**self.rank * taps**self.rank * inputs * outputs / groups  # of an image
        batch = min(max(4, int(_EXAMPLE_FLOP / work)), 64)
        x = torch.rand(batch, inputs, *[step * size] * self.rank, dtype=dtype)
        weight = torch.rand(outputs, inputs // groups, *[taps] * self.rank, dtype=dtype)
        ones, none = [1] * self.rank, [0] * self.rank
        stride, padding = [step] * self.rank, [taps // 2] * self.rank
        settings = (stride, padding, ones, False, none, groups)
        if not self.is_backward:
            args = (x, weight, None, *settings)
            return Example(aten.convolution.default, args, {0: (0,)})
        grad = torch.rand_like(aten.convolution.default(x, weight, None, *settings))
        back = (grad, x, weight, [outputs], *settings, [True, True, True])
        return Example(aten.convolution_backward.default, back, {0: (0,), 1: (0,)})


def _convolution(x: Tensor, weight: Tensor, settings: Sequence[Any], backward: bool) -> Call | None:
    stride, _, _, transposed, _, groups = settings
    rank = x.dim() - 2
    if transposed or rank not in (1, 2, 3) or (groups > 1 and hint(weight.shape[1]) > 1):
        return None
    outputs, inputs, *taps = map(hint, weight.shape)
    has_few = groups == 1 and inputs <= _FEW_CHANNELS
    shape = _Shape(inputs, min(outputs, 64), max(taps), max(stride)) if has_few else _Shape()
    kind = _Convolution(rank, groups > 1, backward, shape)
    flop = _convolution_flop(x, weight, stride)
    return _call(str(kind), flop, (x, weight), kind.example)


def _convolution_flop(x: Tensor, weight: Tensor, stride: Sequence[int]) -> float:
    """The FLOP count of one pass, without regard to padding."""
    skipped = prod(stride) if len(stride) > 1 else stride[0] ** (x.dim() - 2)
    positions = hint(x.shape[0]) * prod(map(hint, x.shape[2:])) / skipped
    return 2.0 * positions * count_elements(weight)


# Attention


def _attention(op: Function, query: Tensor, key: Tensor) -> Call | None:
    # One query, such as that of the next token, reads more than it computes.
    is_alone = op is _first_of_attention and hint(query.shape[-2]) <= attention.FEW_QUERIES
    sizes = (1, 2048) if is_alone else (128, 128)
    kind = _ATTENTION[op] + " of few queries" * is_alone
    flop = _attention_flop(query, key)
    call = _call(kind, flop, (query, key), partial(_attend, op, *sizes))
    return _read_once(call) if is_alone else call


def _attention_flop(query: Tensor, key: Tensor) -> float:
    return 4.0 * count_elements(query) * hint(key.shape[-2])


def _attend(op: Function, queries: int, keys: int, dtype: torch.dtype) -> Example:
    args = tuple(torch.rand(2, 8, size, 64, dtype=dtype) for size in (queries, keys, keys))
    return Example(op, args, dict.fromkeys(range(3), (0, 2)))


def _first_of_attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return _FLASH(query, key, value)[0]


def _attention_backward(query: Tensor, key: Tensor) -> Call | None:
    flop = _attention_flop(query, key)
    return _call("attention backward", flop, (query, key), _attention_backward_example)


def _attention_backward_example(dtype: torch.dtype) -> Example:
    forward = _attend(_FLASH, 128, 128, dtype)
    out, logsumexp = _FLASH(*forward.args)
    args = (torch.rand_like(out), *forward.args, out, logsumexp, 0.0, False)
    return Example(_FLASH_BACKWARD, args, dict.fromkeys(range(6), (0, 2)))


# Norms, softmax and gelu, whose work is counted as one FLOP per element


def _layer_norm(x: Tensor, backward: bool) -> Call | None:
    kind = "layer norm backward" if backward else "layer norm"
    example = _layer_norm_backward_example if backward else _layer_norm_example
    return _call(kind, count_elements(x), (x,), example)


def _layer_norm_example(dtype: torch.dtype) -> Example:
    x, scale = torch.rand(256, 768, dtype=dtype), torch.rand(768, dtype=dtype)
    args = (x, [768], scale, scale.clone(), 1e-5)
    return Example(aten.native_layer_norm.default, args, {0: (0,)})


def _layer_norm_backward_example(dtype: torch.dtype) -> Example:
    x, shape, scale, shift, eps = _layer_norm_example(dtype).args
    out, mean, deviation = aten.native_layer_norm.default(x, shape, scale, shift, eps)
    args = (out, x, shape, mean, deviation, scale, shift, [True, True, True])
    op = aten.native_layer_norm_backward.default
    return Example(op, args, dict.fromkeys((0, 1, 3, 4), (0,)))


def _softmax(op: Any, axis_index: int, args: Sequence[Any]) -> Call | None:
    x, axis = args[0], args[axis_index]
    if axis not in (-1, x.dim() - 1):
        return None
    kind = op._schema.name.removeprefix("aten::_")
    return _call(kind, count_elements(x), (x,), partial(_softmax_example, op))


def _softmax_example(op: Any, dtype: torch.dtype) -> Example:
    x = torch.rand(512, 512, dtype=dtype)
    is_backward = "grad_output" in [argument.name for argument in op._schema.arguments]
    args = (x, x.clone(), -1, dtype) if is_backward else (x, -1, False)
    return Example(op, args, {0: (0,), 1: (0,)} if is_backward else {0: (0,)})


def _gelu(x: Tensor, backward: bool) -> Call | None:
    kind = "gelu backward" if backward else "gelu"
    return _call(kind, count_elements(x), (x,), partial(_gelu_example, backward))


def _gelu_example(backward: bool, dtype: torch.dtype) -> Example:
    x = torch.rand(256, 1024, dtype=dtype)
    if not backward:
        return Example(aten.gelu.default, (x,), {0: (0,)})
    return Example(aten.gelu_backward.default, (x, x.clone()), {0: (0,), 1: (0,)})


_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


_ATTENTION = {_FLASH: "attention with gradients", _first_of_attention: "attention"}
_READERS: dict[Any, Reader] = {
    aten.mm.default: lambda args: _matmul(args[0], args[1]),
    _transposed_matmul: lambda args: _matmul(args[0], args[1].t()),
    aten.bmm.default: lambda args: _matmul(args[0], args[1]),
    aten.addmm.default: lambda args: _matmul(args[1], args[2]),
    aten.baddbmm.default: lambda args: _matmul(args[1], args[2]),
    aten.convolution.default: lambda args: _convolution(args[0], args[1], args[3:9], False),
    aten.convolution_backward.default: lambda args: _convolution(
        args[1], args[2], args[4:10], True
    ),
    _FLASH: lambda args: _attention(_FLASH, args[0], args[1]),
    _first_of_attention: lambda args: _attention(_first_of_attention, args[0], args[1]),
    _FLASH_BACKWARD: lambda args: _attention_backward(args[1], args[2]),
    aten.native_layer_norm.default: lambda args: _layer_norm(args[0], False),
    aten.native_layer_norm_backward.default: lambda args: _layer_norm(args[1], True),
    aten.gelu.default: lambda args: _gelu(args[0], False),
    aten.gelu_backward.default: lambda args: _gelu(args[1], True),
    **{op: partial(_softmax, op, 1) for op in (aten._softmax.default, aten._log_softmax.default)},
    **{
        op: partial(_softmax, op, 2)
        for op in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
    },
}


# Each makes an example of a dtype.
_USUAL: tuple[Callable[[torch.dtype], Example], ...] = (
    partial(_linear, 256, 768),
    *(partial(_linear, rows, 4096) for rows in _FEW_ROWS),
    _batched_matmul,
    _Convolution(1).example,
    _Convolution(2).example,
    _Convolution(2, shape=_Shape(3, 64, 7, 2)).example,
    _Convolution(2, is_depthwise=True).example,
    _Convolution(2, is_backward=True).example,
    partial(_attend, _FLASH, 128, 128),
    partial(_attend, _first_of_attention, 128, 128),
    partial(_attend, _first_of_attention, 1, 2048),
    _attention_backward_example,
    _layer_norm_example,
    _layer_norm_backward_example,
    partial(_softmax_example, aten._softmax.default),
    partial(_softmax_example, aten._log_softmax.default),
    partial(_gelu_example, False),
    partial(_gelu_example, True),
)
