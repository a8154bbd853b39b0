"""Op samples and architectures, compiled and compared with eager PyTorch."""

from turbine import needs_torch as needs_torch
