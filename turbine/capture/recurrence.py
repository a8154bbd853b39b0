"""Trace recurrent layers as calls of kernels, which loop over the steps of any number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.overrides import TorchFunctionMode

from turbine.capture.declared_ops import KERNELS

Call = Callable[..., Any]


@dataclass(frozen=True)
class _Layers:
    """The arguments of torch.lstm and the like, for sequences that are not packed."""

    sequence: Tensor
    states: Sequence[Tensor]  # h0, and c0 of an LSTM
    params: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        """Forward, or forward and backward."""
        return 2 if self.bidirectional else 1

    @property
    def params_of_direction(self) -> int:
        """The number of parameters of a direction of a layer."""
        return len(self.params) // (self.layers * self.directions)

    def run(self, gates: int, compute: Call) -> tuple[Tensor, list[Tensor]]:
        """The sequence after all layers, and the last states of each."""
        x = self.sequence.transpose(0, 1) if self.batch_first else self.sequence
        last: list[list[Tensor]] = []
        for layer in range(self.layers):
            if layer and self.dropout and self.train:
                x = torch.dropout(x, self.dropout, True)
            x, *ends = self._layer(x, layer, gates, compute)
            last.append(ends)
        ends = [torch.cat(of_layers) for of_layers in zip(*last, strict=True)]
        return (x.transpose(0, 1) if self.batch_first else x), ends

    def _layer(self, x: Tensor, layer: int, gates: int, compute: Call) -> list[Tensor]:
        count, length = self.directions, self.params_of_direction
        first = layer * count
        starts = range(first * length, (first + count) * length, length)
        own = [self.params[start : start + length] for start in starts]
        inputs, hidden, *biases = (torch.stack(same) for same in zip(*own, strict=True))
        units = hidden.shape[-1]
        rows, weight = x.flatten(0, 1), inputs.flatten(0, 1).t()
        before, new = _biases([one.view(count, gates, units) for one in biases], gates)
        sums = rows @ weight if before is None else torch.addmm(before.flatten(), rows, weight)
        h, *ends = compute(
            sums.view(*x.shape[:2], count, gates, units),
            hidden.view(count, gates, units, units),
            hidden.new_zeros(count, units) if new is None else new,
            [one[first : first + count] for one in self.states],
        )
        outputs = torch.cat([h[0, 1:], *h[1:, :-1]], -1)
        return [outputs, torch.stack([h[0, -1], *h[1:, 0]]), *ends]


def _biases(biases: list[Tensor], gates: int) -> tuple[Tensor | None, Tensor | None]:
    """The sum that is added before the steps, and the bias of the state in a GRU's new gate."""
    if not biases:
        return None, None
    of_inputs, of_states = biases
    if gates != _GATES_OF_GRU:
        return of_inputs + of_states, None
    kept, new = of_states[:, :-1], of_states[:, -1:]
    return of_inputs + torch.cat([kept, torch.zeros_like(new)], 1), new.squeeze(1)


_GATES_OF_GRU = 3


def _lstm(layers: _Layers, *, differentiable: bool) -> Any:
    def compute(x: Tensor, weight: Tensor, _: Tensor, states: list[Tensor]) -> Any:
        return KERNELS["lstm"](x, weight, *states, differentiable=differentiable)

    y, (h, c) = layers.run(4, compute)
    return y, h, c


def _gru(layers: _Layers, *, differentiable: bool) -> Any:
    def compute(x: Tensor, weight: Tensor, bias: Tensor, states: list[Tensor]) -> Any:
        return [KERNELS["gru"](x, weight, bias, *states, differentiable=differentiable)]

    y, (h,) = layers.run(_GATES_OF_GRU, compute)
    return y, h


def _rnn(layers: _Layers, nonlinearity: str, *, differentiable: bool) -> Any:
    def compute(x: Tensor, weight: Tensor, _: Tensor, states: list[Tensor]) -> Any:
        kernel = KERNELS["rnn"]
        return [kernel(x, weight, *states, nonlinearity, differentiable=differentiable)]

    y, (h,) = layers.run(1, compute)
    return y, h


_RULES: dict[Any, Call] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: partial(_rnn, nonlinearity="tanh"),
    torch.rnn_relu: partial(_rnn, nonlinearity="relu"),
}


def _run(function: Any, *args: Any, trains: bool = True, **kwargs: Any) -> Any:
    """Call a function by kernels, if there are some for its arguments.

    Parameters have no gradients unless it `trains`.
    """
    layers = None if kwargs or "lstm" not in KERNELS else _read(*args)
    if layers is None:
        return function(*args, **kwargs)
    tensors = layers.sequence, *layers.states, *(layers.params if trains else ())
    differentiable = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    return _RULES[function](layers, differentiable=differentiable)


def lstm(*args: Any, **kwargs: Any) -> Any:
    """torch.lstm by kernels."""
    return _run(torch.lstm, *args, **kwargs)


def gru(*args: Any, **kwargs: Any) -> Any:
    """torch.gru by kernels."""
    return _run(torch.gru, *args, **kwargs)


def rnn_tanh(*args: Any, **kwargs: Any) -> Any:
    """torch.rnn_tanh by kernels."""
    return _run(torch.rnn_tanh, *args, **kwargs)


def rnn_relu(*args: Any, **kwargs: Any) -> Any:
    """torch.rnn_relu by kernels."""
    return _run(torch.rnn_relu, *args, **kwargs)


# Functions of PyTorch, and those that call kernels in place of them.
BY_KERNELS: dict[Any, Call] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
}


def _read(sequence: Tensor, states: Any, params: Any, *options: Any) -> _Layers | None:
    """The layers, or None if no kernel computes them."""
    if isinstance(params, Tensor) or torch._C._are_functorch_transforms_active():
        return None  # of a packed sequence
    layers = _Layers(sequence, [states] if isinstance(states, Tensor) else states, params, *options)
    tensors = sequence, *layers.states, *params
    is_known = sequence.dtype in (torch.float32, torch.float64)
    is_alike = all(one.dtype == sequence.dtype and one.device.type == "cpu" for one in tensors)
    is_projected = layers.params_of_direction != (4 if layers.has_biases else 2)
    length = sequence.shape[1 if layers.batch_first else 0]
    is_empty = guard_or_false(length == 0)  # an error in PyTorch
    return layers if is_known and is_alike and not is_projected and not is_empty else None


class Recurrences(TorchFunctionMode):
    """A mode in which recurrent layers are calls of kernels."""

    def __init__(self, *, trains: bool) -> None:
        super().__init__()
        self._trains = trains

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call kernels in place of a recurrent layer, or the function itself."""
        if function in _RULES:
            return _run(function, *args, trains=self._trains, **(kwargs or {}))
        return function(*args, **(kwargs or {}))
