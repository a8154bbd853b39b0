"""Build modules and random inputs from fixed seeds, leaving the global generator alone."""

from collections.abc import Callable

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.RMSNorm)

# What a trained norm may hold; the initial ones and zeros would hide a swapped operand.
NORM_RANGES = {
    "weight": (0.5, 1.5),
    "bias": (-0.2, 0.2),
    "running_mean": (-0.2, 0.2),
    "running_var": (0.8, 2.4),
}


def build_seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """Return `build()` in eval mode, with the same weights on every call."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build().eval()
        model.apply(initialize)
    return model


def generator() -> torch.Generator:
    """Return the generator of inputs; its seed differs from that of the weights."""
    return torch.Generator().manual_seed(1)


def initialize(module: nn.Module) -> None:
    # The default scale lets activations die out, and the output would depend on biases alone.
    if isinstance(module, CONVOLUTIONS):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    if isinstance(module, NORMS):
        for name, tensor in module.state_dict().items():
            if name in NORM_RANGES:
                nn.init.uniform_(tensor, *NORM_RANGES[name])
