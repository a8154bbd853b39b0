"""Decompositions of our own, where PyTorch has none that the compiler can take."""

from collections.abc import Callable
from typing import Any

from turbine.capture.rules import (
    arithmetic,
    attention,
    bessel,
    clamping,
    complexes,
    convolution,
    distance,
    embedding,
    exponential,
    fourier,
    gamma,
    indexing,
    inverse,
    masks,
    normal,
    normalization,
    ordering,
    pooling,
    products,
    shapes,
    sums,
    trigonometry,
)

RULES: dict[Any, Callable[..., Any]] = {
    **attention.RULES,
    **normalization.RULES,
    **shapes.RULES,
    **sums.RULES,
    **arithmetic.RULES,
    **convolution.RULES,
    **pooling.RULES,
    **products.RULES,
    **embedding.RULES,
    **exponential.RULES,
    **trigonometry.RULES,
    **clamping.RULES,
    **indexing.RULES,
    **ordering.RULES,
    **distance.RULES,
    **complexes.RULES,
    **fourier.RULES,
    **gamma.RULES,
    **normal.RULES,
    **bessel.RULES,
}

# Of ops that torch.compile leaves to PyTorch; an exported program has no PyTorch beside it.
EXPORTED: dict[Any, Callable[..., Any]] = {
    **arithmetic.EXPORTED,
    **complexes.EXPORTED,
    **indexing.EXPORTED,
    **inverse.RULES,
    **masks.RULES,
    **shapes.EXPORTED,
}
