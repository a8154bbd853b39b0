"""Find recurrent layers that are too long to compile: PyTorch unrolls them step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turbine.capture.sizes import hint

# Steps of all layers and directions; each is unrolled to about ten ops, thirty in training.
LONGEST = 256

_LAYERS = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}


def too_long(graph: fx.Graph) -> str | None:
    """Why a graph has to run in PyTorch; None if it may be compiled."""
    steps = max(map(count_steps, graph.nodes), default=0)
    if steps <= LONGEST:
        return None
    return f"a recurrent layer of {steps} steps, more than {LONGEST}, would be unrolled"


def count_steps(node: fx.Node) -> int:
    """The steps of a recurrent layer, 0 for any other node."""
    if node.target not in _LAYERS:
        return 0
    arguments: Any = node.args
    sequence, _, _, _, layers, _, _, bidirectional, batch_first = arguments
    length = hint(sequence.meta["example_value"].shape[-2 if batch_first else 0])
    return length * int(layers) * (2 if bidirectional else 1)
