"""Decompositions of our own, where PyTorch has none that the compiler can take."""

from collections.abc import Callable
from typing import Any

from turbine.capture.rules import (
    attention,
    clamping,
    convolution,
    embedding,
    exponential,
    normalization,
    pooling,
    shapes,
    trigonometry,
)

RULES: dict[Any, Callable[..., Any]] = {
    **attention.RULES,
    **normalization.RULES,
    **shapes.RULES,
    **convolution.RULES,
    **pooling.RULES,
    **embedding.RULES,
    **exponential.RULES,
    **trigonometry.RULES,
    **clamping.RULES,
}
