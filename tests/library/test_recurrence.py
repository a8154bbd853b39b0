"""Recurrent layers: kernels that match PyTorch, in eager calls, exports and torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import turbine
from tests.library.placing import count, exported
from turbine.capture.recurrence import Recurrences
from turbine.library.recurrence import lstm, rows_of_a_program

exports = pytest.mark.sweep(1, "exports")

LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(5, 16, batch_first=True),
    "lstm_of_two_directions_and_layers": lambda: nn.LSTM(5, 20, 2, bidirectional=True),
    "lstm_without_bias_in_f64": lambda: nn.LSTM(5, 7, bias=False, dtype=torch.float64),
    "gru": lambda: nn.GRU(5, 16, 2, bidirectional=True, batch_first=True),
    "gru_without_bias": lambda: nn.GRU(5, 70, bias=False),
    "rnn": lambda: nn.RNN(5, 33, bidirectional=True, batch_first=True),
    "rnn_of_relu": lambda: nn.RNN(5, 16, 2, nonlinearity="relu"),
}


def results(layer: nn.RNNBase, x: Tensor, *states: Tensor) -> list[Tensor]:
    """The outputs of a layer, and the gradients of a loss of all of them."""
    outputs = tree_leaves(layer(x, states if len(states) > 1 else states[0]))
    loss = sum((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() for y in outputs)
    return [*outputs, *torch.autograd.grad(loss, [x, *states, *layer.parameters()])]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("rows", "steps"), [(3, 4), (9, 1)])
def test_outputs_and_gradients_match_torch(name: str, rows: int, steps: int) -> None:
    layer = LAYERS[name]()
    dtype = layer.weight_hh_l0.dtype
    sizes = (rows, steps) if layer.batch_first else (steps, rows)
    x = torch.randn(*sizes, 5, dtype=dtype, requires_grad=True)
    shape = layer.num_layers * (2 if layer.bidirectional else 1), rows, layer.hidden_size
    count = 2 if isinstance(layer, nn.LSTM) else 1
    states = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(count)]
    expected = results(layer, x, *states)
    with Recurrences(trains=True):
        found = results(layer, x, *states)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("rows", "directions", "programs"),
    [(1, 1, 1), (4, 1, 1), (8, 1, 2), (8, 2, 2), (9, 1, 2), (64, 1, 8)],
)
def test_a_batch_of_eight_rows_is_for_two_cores(rows: int, directions: int, programs: int) -> None:
    assert -(-rows // rows_of_a_program(rows, directions)) * directions == programs


def kernels_of(program: Any) -> list[str]:
    return [node.target._opname for node in program.graph.graph.nodes if "tk" in str(node.target)]


@exports
def test_exports_keep_only_what_inference_needs_at_any_length() -> None:
    layer = nn.LSTM(3, 8, batch_first=True)
    x = torch.randn(2, 4, 3)
    program = exported(layer, x)
    assert count(program, lstm.using(BB=2).op.op) == 1
    dims = {0: Dim("rows"), 1: Dim("steps")}
    artifact = turbine.aot.export(layer, args=(x,), dynamic_shapes=(dims,)).compile()
    for rows, steps in ((1, 1), (11, 300)):
        x = torch.randn(rows, steps, 3)
        for found, expected in zip(tree_leaves(artifact(x)), tree_leaves(layer(x)), strict=True):
            torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-4, atol=1e-5)


def test_layers_without_a_kernel_are_unrolled() -> None:
    x = torch.randn(2, 3, 4)
    assert not kernels_of(exported(nn.LSTM(4, 6, proj_size=2, batch_first=True), x))
    narrow = nn.GRU(4, 6, batch_first=True, dtype=torch.bfloat16)
    assert not kernels_of(exported(narrow, x.bfloat16()))
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
    layer = nn.GRU(4, 6, batch_first=True)
    with Recurrences(trains=True):
        found = layer(packed)[1]
    assert torch.equal(found, layer(packed)[1])


def test_a_sequence_without_steps_is_an_error_as_in_torch() -> None:
    layer = nn.GRU(2, 3)
    with Recurrences(trains=True), pytest.raises(RuntimeError, match="sequence length"):
        layer(torch.randn(0, 1, 2))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_match_torch(name: str) -> None:
    layer = LAYERS[name]()
    x = torch.randn(2, 3, 5, dtype=layer.weight_hh_l0.dtype, requires_grad=True)

    def penalty() -> tuple[Tensor, ...]:
        y, _ = layer(x)
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, *layer.parameters()], allow_unused=True)

    expected = penalty()
    with Recurrences(trains=True):
        found = penalty()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@exports
def test_long_layers_are_compiled() -> None:
    layer = nn.GRU(2, 3, batch_first=True)
    x = torch.randn(1, 300, 2)
    report = turbine.explain(layer, x)
    assert report.ops_compiled
    assert not report.left
    torch.testing.assert_close(
        torch.compile(layer, backend="turbine")(x)[0], layer(x)[0], rtol=1e-4, atol=1e-5
    )
