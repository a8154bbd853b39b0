"""PyTorch's own op samples, compiled and compared with eager PyTorch."""

from turbine import needs_torch as needs_torch
