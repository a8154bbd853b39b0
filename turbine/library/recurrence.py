"""Recurrent layers: kernels that loop over the steps, so that no step is a dispatch of its own.

A program computes some rows of a batch in one direction. The products of the sequence and its
weight are computed before, as one matmul, and so are the gradients of weights, after all steps.
States are at steps + 1 places: in direction 0 from the first, the initial state, to the last; in
direction 1 from the last to the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine.capture.declared_ops import KERNELS

N, B, S = tkl.symbols("N B S")  # steps, rows of the batch, directions
H = tkl.sym.H  # units of a state
BB = tkl.sym.BB
T = tkl.types.T
In, Out = tkl.InputBuffer, tkl.OutputBuffer
_FEW_ROWS, _MOST_ROWS = 4, 8  # of a program
# A panel of a packed weight gives all gates of some units; going back, it gives more units.
_UNITS, _UNITS_BACK = 16, 64
_PANELS, _PANELS_BACK = tkl.cdiv(H, _UNITS), tkl.cdiv(H, _UNITS_BACK)
_OF_LSTM, _OF_GRU = 4, 3  # gates


@cache
def pack_forward(gates: int) -> tk.Kernel:
    """The kernel that packs weights for steps forward."""

    @tk.gen.kernel(S, _PANELS, specialize=(H,))
    def pack_recurrence(
        weight: In[S, gates, H, H, T], packed: Out[S, _PANELS, H, gates * _UNITS, T]
    ) -> None:
        direction, panel = tkl.program_id(0), tkl.program_id(1)
        for gate in range(gates):
            rows = tkl.load(weight, (direction, gate, panel * _UNITS, 0), (None, None, _UNITS, H))
            tkl.store(packed, (direction, panel, 0, gate * _UNITS), tkl.transpose(rows))

    return pack_recurrence


@cache
def pack_backward(gates: int) -> tk.Kernel:
    """The kernel that packs weights for steps backward."""

    @tk.gen.kernel(S, _PANELS_BACK, specialize=(H,))
    def pack_recurrence_backward(
        weight: In[S, gates, H, H, T], packed: Out[S, _PANELS_BACK, gates, H, _UNITS_BACK, T]
    ) -> None:
        direction, panel = tkl.program_id(0), tkl.program_id(1)
        for gate in range(gates):
            place = direction, gate, 0, panel * _UNITS_BACK
            columns = tkl.load(weight, place, (None, None, H, _UNITS_BACK))
            tkl.store(packed, (direction, panel, gate, 0, 0), columns)

    return pack_recurrence_backward


@dataclass(frozen=True)
class _Step:
    """A step of a program: its direction, its first row and its place in the sequence.

    `old` and `new` are the places of the states before and after it.
    """

    direction: Any
    row: Any
    place: Any
    old: Any
    new: Any

    def state(self, states: Any, place: Any, unit: Any = 0, units: Any = H) -> Any:
        """Some units of the state at a place."""
        return tkl.load(states, (self.direction, place, self.row, unit), (None, None, BB, units))

    def put_state(self, states: Any, value: Any, unit: Any) -> None:
        """Store some units of the new state."""
        tkl.store(states, (self.direction, self.new, self.row, unit), value)

    def current(self, x: Any, unit: Any = 0, units: Any = H) -> Any:
        """Some units of what there is once, for the current state."""
        return tkl.load(x, (self.direction, self.row, unit), (None, BB, units))

    def put_current(self, x: Any, value: Any, unit: Any = 0) -> None:
        """Replace some units of what there is once."""
        tkl.store(x, (self.direction, self.row, unit), value)

    def gate(self, x: Any, gate: int, unit: Any = 0, units: Any = H) -> Any:
        """Some units of a gate."""
        place = self.place, self.row, self.direction, gate, unit
        return tkl.load(x, place, (None, BB, None, None, units))

    def put_gates(self, x: Any, values: Sequence[Any], unit: Any = 0) -> None:
        """Store some units of all gates."""
        for gate, value in enumerate(values):
            place = self.place, self.row, self.direction, gate, unit
            tkl.store(x, place, value[:, None, None])

    def products(self, states: Any, weight: Any, gates: int, panel: Any) -> list[Any]:
        """The old state times the weight: the units of a panel, for each gate."""
        place = self.direction, panel, 0, 0
        columns = tkl.load(weight, place, (None, None, H, gates * _UNITS))
        product = tkl.dot(self.state(states, self.old), columns)
        return [product[:, gate * _UNITS : (gate + 1) * _UNITS] for gate in range(gates)]

    def go_back(self, grads: Any, weight: Any, gates: int, grad_h: Any, grad_h0: Any) -> None:
        """Add gradients of all gates times the weight, and those given, to the current state's."""

        @tkl.for_loop(0, _PANELS_BACK)
        def over_panels(panel: Any) -> None:
            unit = panel * _UNITS_BACK
            total = self.current(grad_h0, unit, _UNITS_BACK)
            total = total + self.state(grad_h, self.old, unit, _UNITS_BACK)
            for gate in range(gates):
                place, shape = (self.direction, panel, gate, 0, 0), (H, _UNITS_BACK)
                columns = tkl.load(weight, place, (None, None, None, *shape))
                total = tkl.dot(self.gate(grads, gate), columns, total)
            self.put_current(grad_h0, total, unit)


def _for_each_panel(body: Callable[[_Step, Any], None]) -> None:
    """Call body(step, panel) for all steps, and all panels of each."""
    direction, row = tkl.program_id(0), tkl.program_id(1) * BB

    @tkl.for_loop(0, N)
    def over_steps(t: Any) -> None:
        @tkl.for_loop(0, _PANELS)
        def over_panels(panel: Any) -> None:
            body(_step(t, direction, row), panel)


def _for_each_step_back(body: Callable[[_Step], None]) -> None:
    """Call the body for all steps, from the last to the first."""
    direction, row = tkl.program_id(0), tkl.program_id(1) * BB

    @tkl.for_loop(0, N)
    def over_steps(t: Any) -> None:
        body(_step(N - 1 - t, direction, row))


def _step(t: Any, direction: Any, row: Any) -> _Step:
    old = t + direction * (N - 2 * t)
    place = t + direction * (N - 1 - 2 * t)
    return _Step(direction, row, place, old, old + 1 - 2 * direction)


def _start(states: Any, initial: Any) -> None:
    """Put the initial state in its place."""
    direction, row = tkl.program_id(0), tkl.program_id(1) * BB
    start = tkl.load(initial, (direction, row, 0), (None, BB, H))
    tkl.store(states, (direction, direction * N, row, 0), start)


def _start_back(grad_h0: Any, grad_h: Any) -> None:
    """Start with the gradient of the last state."""
    direction, row = tkl.program_id(0), tkl.program_id(1) * BB
    place = direction, (1 - direction) * N, row, 0
    tkl.store(grad_h0, (direction, row, 0), tkl.load(grad_h, place, (None, None, BB, H)))


def _lstm_cell(
    step: _Step, panel: Any, x: Any, weight: Any, h: Any, cell: Any
) -> tuple[Any, Sequence[Any]]:
    """The new cell, and the gates; the new state is stored."""
    unit = panel * _UNITS
    sums = [
        product + step.gate(x, gate, unit, _UNITS)
        for gate, product in enumerate(step.products(h, weight, _OF_LSTM, panel))
    ]
    i, f, g, o = *map(tkl.sigmoid, sums[:2]), tkl.tanh(sums[2]), tkl.sigmoid(sums[3])
    cell = f * cell + i * g
    step.put_state(h, o * tkl.tanh(cell), unit)
    return cell, (i, f, g, o)


@tk.gen.kernel(S, B // BB, specialize=(H,))
def lstm(
    x: In[N, B, S, _OF_LSTM, H, T],
    weight: In[S, _PANELS, H, _OF_LSTM * _UNITS, T],
    h0: In[S, B, H, T],
    c0: In[S, B, H, T],
    h: Out[S, N + 1, B, H, T],
    c: Out[S, B, H, T],
) -> None:
    """All steps of an LSTM; c is the last cell."""
    _start(h, h0)
    own = tkl.program_id(0), tkl.program_id(1) * BB, 0
    tkl.store(c, own, tkl.load(c0, own, (None, BB, H)))

    def body(step: _Step, panel: Any) -> None:
        unit = panel * _UNITS
        cell, _ = _lstm_cell(step, panel, x, weight, h, step.current(c, unit, _UNITS))
        step.put_current(c, cell, unit)

    _for_each_panel(body)


@tk.gen.kernel(S, B // BB, specialize=(H,))
def lstm_with_gates(
    x: In[N, B, S, _OF_LSTM, H, T],
    weight: In[S, _PANELS, H, _OF_LSTM * _UNITS, T],
    h0: In[S, B, H, T],
    c0: In[S, B, H, T],
    h: Out[S, N + 1, B, H, T],
    c: Out[S, N + 1, B, H, T],
    gates: Out[N, B, S, _OF_LSTM, H, T],
) -> None:
    """`lstm`, with all that its gradients need."""
    _start(h, h0)
    _start(c, c0)

    def body(step: _Step, panel: Any) -> None:
        unit = panel * _UNITS
        before = step.state(c, step.old, unit, _UNITS)
        cell, values = _lstm_cell(step, panel, x, weight, h, before)
        step.put_gates(gates, values, unit)
        step.put_state(c, cell, unit)

    _for_each_panel(body)


@tk.gen.kernel(S, B // BB, specialize=(H,))
def lstm_backward(
    grad_h: In[S, N + 1, B, H, T],
    grad_c: In[S, B, H, T],
    c: In[S, N + 1, B, H, T],
    gates: In[N, B, S, _OF_LSTM, H, T],
    weight: In[S, _PANELS_BACK, _OF_LSTM, H, _UNITS_BACK, T],
    grad_x: Out[N, B, S, _OF_LSTM, H, T],
    grad_h0: Out[S, B, H, T],
    grad_c0: Out[S, B, H, T],
) -> None:
    """The gradients of `lstm`; those of initial states are of the current ones until the end."""
    _start_back(grad_h0, grad_h)
    own = tkl.program_id(0), tkl.program_id(1) * BB, 0
    tkl.store(grad_c0, own, tkl.load(grad_c, own, (None, BB, H)))

    def body(step: _Step) -> None:
        i, f, g, o = (step.gate(gates, gate) for gate in range(_OF_LSTM))
        cell, before = tkl.tanh(step.state(c, step.new)), step.state(c, step.old)
        dh = step.current(grad_h0)
        dc = step.current(grad_c0) + dh * o * (1 - cell * cell)
        grads = dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g)
        step.put_gates(grad_x, (*grads, dh * cell * o * (1 - o)))
        step.put_current(grad_c0, dc * f)
        step.put_current(grad_h0, tkl.zeros((BB, H), T))
        step.go_back(grad_x, weight, _OF_LSTM, grad_h, grad_h0)

    _for_each_step_back(body)


def _gru_cell(step: _Step, panel: Any, x: Any, weight: Any, bias: Any, h: Any) -> Sequence[Any]:
    """The gates, and the product in the new gate; the new state is stored."""
    unit = panel * _UNITS
    given = [step.gate(x, gate, unit, _UNITS) for gate in range(_OF_GRU)]
    products = step.products(h, weight, _OF_GRU, panel)
    r, z = (tkl.sigmoid(given[gate] + products[gate]) for gate in range(2))
    hidden = products[2] + tkl.load(bias, (step.direction, unit), (None, _UNITS))
    n = tkl.tanh(given[2] + r * hidden)
    step.put_state(h, n + z * (step.state(h, step.old, unit, _UNITS) - n), unit)
    return r, z, n, hidden


@tk.gen.kernel(S, B // BB, specialize=(H,))
def gru(
    x: In[N, B, S, _OF_GRU, H, T],
    weight: In[S, _PANELS, H, _OF_GRU * _UNITS, T],
    bias: In[S, H, T],
    h0: In[S, B, H, T],
    h: Out[S, N + 1, B, H, T],
) -> None:
    """All steps of a GRU."""
    _start(h, h0)

    def body(step: _Step, panel: Any) -> None:
        _gru_cell(step, panel, x, weight, bias, h)

    _for_each_panel(body)


@tk.gen.kernel(S, B // BB, specialize=(H,))
def gru_with_gates(
    x: In[N, B, S, _OF_GRU, H, T],
    weight: In[S, _PANELS, H, _OF_GRU * _UNITS, T],
    bias: In[S, H, T],
    h0: In[S, B, H, T],
    h: Out[S, N + 1, B, H, T],
    gates: Out[N, B, S, _OF_GRU + 1, H, T],
) -> None:
    """`gru`, with all that its gradients need."""
    _start(h, h0)

    def body(step: _Step, panel: Any) -> None:
        values = _gru_cell(step, panel, x, weight, bias, h)
        step.put_gates(gates, values, panel * _UNITS)

    _for_each_panel(body)


@tk.gen.kernel(S, B // BB, specialize=(H,))
def gru_backward(
    grad_h: In[S, N + 1, B, H, T],
    h: In[S, N + 1, B, H, T],
    gates: In[N, B, S, _OF_GRU + 1, H, T],
    weight: In[S, _PANELS_BACK, _OF_GRU, H, _UNITS_BACK, T],
    grad_x: Out[N, B, S, _OF_GRU, H, T],
    grad_products: Out[N, B, S, _OF_GRU, H, T],
    grad_h0: Out[S, B, H, T],
) -> None:
    """The gradients of `gru`; products are those of the state and its weight."""
    _start_back(grad_h0, grad_h)

    def body(step: _Step) -> None:
        r, z, n, hidden = (step.gate(gates, gate) for gate in range(_OF_GRU + 1))
        dh = step.current(grad_h0)
        dn = dh * (1 - z) * (1 - n * n)
        dr = dn * hidden * r * (1 - r)
        dz = dh * (step.state(h, step.old) - n) * z * (1 - z)
        step.put_gates(grad_x, (dr, dz, dn))
        step.put_gates(grad_products, (dr, dz, dn * r))
        step.put_current(grad_h0, dh * z)
        step.go_back(grad_products, weight, _OF_GRU, grad_h, grad_h0)

    _for_each_step_back(body)


def _relu(x: Any) -> Any:
    return tkl.where(x < 0, 0.0, x)  # nan stays


_FUNCTIONS = {"tanh": tkl.tanh, "relu": _relu}
# Derivatives, by results.
_SLOPES: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: tkl.where(y > 0, 1.0, 0.0),
}


@cache
def rnn(nonlinearity: str) -> tk.Kernel:
    """The kernel of a plain recurrent layer."""

    @tk.gen.kernel(S, B // BB, specialize=(H,))
    def rnn(
        x: In[N, B, S, 1, H, T],
        weight: In[S, _PANELS, H, _UNITS, T],
        h0: In[S, B, H, T],
        h: Out[S, N + 1, B, H, T],
    ) -> None:
        _start(h, h0)

        def body(step: _Step, panel: Any) -> None:
            unit = panel * _UNITS
            (product,) = step.products(h, weight, 1, panel)
            total = product + step.gate(x, 0, unit, _UNITS)
            step.put_state(h, _FUNCTIONS[nonlinearity](total), unit)

        _for_each_panel(body)

    return rnn


@cache
def rnn_backward(nonlinearity: str) -> tk.Kernel:
    """The kernel of the gradients of a plain recurrent layer."""

    @tk.gen.kernel(S, B // BB, specialize=(H,))
    def rnn_backward(
        grad_h: In[S, N + 1, B, H, T],
        h: In[S, N + 1, B, H, T],
        weight: In[S, _PANELS_BACK, 1, H, _UNITS_BACK, T],
        grad_x: Out[N, B, S, 1, H, T],
        grad_h0: Out[S, B, H, T],
    ) -> None:
        _start_back(grad_h0, grad_h)

        def body(step: _Step) -> None:
            slope = _SLOPES[nonlinearity](step.state(h, step.new))
            step.put_gates(grad_x, [step.current(grad_h0) * slope])
            step.put_current(grad_h0, tkl.zeros((BB, H), T))
            step.go_back(grad_x, weight, 1, grad_h, grad_h0)

        _for_each_step_back(body)

    return rnn_backward


def _forward(kernel: tk.Kernel, x: Tensor, weight: Tensor, *args: Tensor) -> Any:
    packed = pack_forward(weight.shape[1])(weight.contiguous())
    return _call(kernel, x.shape[1], len(weight), x, packed, *args)


def _backward(kernel: tk.Kernel, weight: Tensor, grad_h: Tensor, *args: Tensor) -> Any:
    packed = pack_backward(weight.shape[1])(weight.contiguous())
    return _call(kernel, grad_h.shape[2], len(weight), grad_h, *args, packed)


def _call(kernel: tk.Kernel, rows: Any, directions: int, *args: Tensor) -> Any:
    """Call a kernel whose programs have some of the rows."""
    own = kernel.using(BB=rows_of_a_program(rows, directions))
    return own(*(one.contiguous() for one in args))


def rows_of_a_program(rows: Any, directions: int) -> int:
    """Most rows, unless a small batch would then be one program; few cost more loads of weights."""
    if not isinstance(rows, int) or rows == 0:
        return _MOST_ROWS
    return min(rows, _FEW_ROWS if rows * directions <= _MOST_ROWS else _MOST_ROWS)


def _gradient_of_weight(grads: Tensor, h: Tensor) -> Tensor:
    """Sums over steps and rows of gradients times states: [directions, gates, units, units]."""
    gates, units = grads.shape[3:]
    sums = []
    for direction, states in enumerate(h):
        before = states[1:] if direction else states[:-1]
        rows = grads[:, :, direction].reshape(-1, gates * units)
        sums.append((rows.t() @ before.reshape(-1, units)).view(gates, units, units))
    return torch.stack(sums)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, h0: Tensor, c0: Tensor) -> Any:
        h, c, gates = _forward(lstm_with_gates, x, weight, h0, c0)
        ctx.save_for_backward(x, weight, h0, c0, h, c, gates)
        return h, torch.stack([c[0, -1], *c[1:, 0]])

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> Any:
        *inputs, h, c, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiate(_unrolled_lstm, inputs, [grad_h, grad_c])
        _, weight, *_ = inputs
        grads = _backward(lstm_backward, weight, grad_h, grad_c, c, gates)
        grad_x, grad_h0, grad_c0 = grads
        return grad_x, _gradient_of_weight(grad_x, h), grad_h0, grad_c0


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h0: Tensor) -> Any:
        h, gates = _forward(gru_with_gates, x, weight, bias, h0)
        ctx.save_for_backward(x, weight, bias, h0, h, gates)
        return h

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor) -> Any:
        *inputs, h, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiate(_unrolled_gru, inputs, [grad_h])
        grad_x, grads, grad_h0 = _backward(gru_backward, inputs[1], grad_h, h, gates)
        return grad_x, _gradient_of_weight(grads, h), grads[:, :, :, 2].sum([0, 1]), grad_h0


class _Rnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, h0: Tensor, nonlinearity: str) -> Any:
        ctx.nonlinearity = nonlinearity
        h = _forward(rnn(nonlinearity), x, weight, h0)
        ctx.save_for_backward(x, weight, h0, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor) -> Any:
        *inputs, h = ctx.saved_tensors
        if torch.is_grad_enabled():
            unrolled = partial(_unrolled_rnn, ctx.nonlinearity)
            return *_differentiate(unrolled, inputs, [grad_h]), None
        kernel = rnn_backward(ctx.nonlinearity)
        grad_x, grad_h0 = _backward(kernel, inputs[1], grad_h, h)
        return grad_x, _gradient_of_weight(grad_x, h), grad_h0, None


def _differentiate(
    layer: Callable[..., Any], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Any, ...]:
    """Compute differentiable gradients: the layer runs by PyTorch ops again."""
    outputs = layer(*inputs)
    needed = [one for one in inputs if one.requires_grad]
    found = torch.autograd.grad(outputs, needed, grads, create_graph=True, allow_unused=True)
    places = dict(zip(map(id, needed), found, strict=True))
    return tuple(places.get(id(one)) for one in inputs)


def _unrolled_lstm(x: Tensor, weight: Tensor, h0: Tensor, c0: Tensor) -> Any:
    def advance(given: Tensor, product: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        i, f, g, o = (given + product).unbind(1)
        cell = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    return _unroll(advance, x, weight, [h0, c0])


def _unrolled_gru(x: Tensor, weight: Tensor, bias: Tensor, h0: Tensor) -> Any:
    def advance(given: Tensor, product: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        r, z = (given[:, :2] + product[:, :2]).sigmoid().unbind(1)
        direction = next(directions)
        n = (given[:, 2] + r * (product[:, 2] + bias[direction])).tanh()
        return [n + z * (states[0] - n)]

    directions = (direction for direction in range(len(h0)) for _ in range(len(x)))
    return _unroll(advance, x, weight, [h0])[0]


def _unrolled_rnn(nonlinearity: str, x: Tensor, weight: Tensor, h0: Tensor) -> Any:
    function = {"tanh": torch.tanh, "relu": torch.relu}[nonlinearity]

    def advance(given: Tensor, product: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        return [function(given + product).squeeze(1)]

    return _unroll(advance, x, weight, [h0])[0]


def _unroll(
    advance: Callable[..., Sequence[Tensor]], x: Tensor, weight: Tensor, initial: Sequence[Tensor]
) -> Any:
    """All states of a layer, and the last ones of its cells."""
    all_states, last = [], []
    for direction, matrices in enumerate(weight):
        states = [one[direction] for one in initial]
        passed = [states[0]]
        for given in x[:, :, direction].flip(0) if direction else x[:, :, direction]:
            product = (states[0] @ matrices.flatten(0, 1).t()).view(given.shape)
            states = [*advance(given, product, states)]
            passed.append(states[0])
        all_states.append(torch.stack(passed[::-1] if direction else passed))
        last.append(states[1:])
    return torch.stack(all_states), *(torch.stack(one) for one in zip(*last, strict=True))


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)


def lstm_layer(x: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, *, differentiable: bool) -> Any:
    """All states of an LSTM, [directions, steps + 1, rows, units], and its last cell.

    x is the sequence times its weight, plus biases, [steps, rows, directions, gates, units]; the
    weight is [directions, gates, units, units].
    """
    given = x, weight, h0, c0
    return _apply(_Lstm, *given) if differentiable else _forward(lstm, *given)


def gru_layer(x: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, *, differentiable: bool) -> Any:
    """All states of a GRU; the bias is that of the state in the new gate, [directions, units]."""
    given = x, weight, bias, h0
    return _apply(_Gru, *given) if differentiable else _forward(gru, *given)


def rnn_layer(
    x: Tensor, weight: Tensor, h0: Tensor, nonlinearity: str, *, differentiable: bool
) -> Any:
    """All states of a plain recurrent layer."""
    if differentiable:
        return _apply(_Rnn, x, weight, h0, nonlinearity)
    return _forward(rnn(nonlinearity), x, weight, h0)


KERNELS["lstm"] = lstm_layer
KERNELS["gru"] = gru_layer
KERNELS["rnn"] = rnn_layer
