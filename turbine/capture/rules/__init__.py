"""Turbine's decompositions, for ops where PyTorch has none that compiles."""

from collections.abc import Callable
from typing import Any

from turbine.capture.rules import (
    arithmetic,
    attention,
    bessel,
    clamping,
    complex_functions,
    complex_tensors,
    complexes,
    convolution,
    distance,
    embedding,
    exponential,
    fourier,
    gamma,
    indexing,
    linear_algebra,
    masks,
    normal,
    normalization,
    ordering,
    orthogonal_factors,
    pooling,
    products,
    quantized,
    sampling,
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
    **quantized.RULES,
    **sampling.RULES,
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

# For exported programs only: torch.compile runs these ops in PyTorch.
EXPORTED: dict[Any, Callable[..., Any]] = {
    **arithmetic.EXPORTED,
    **fourier.EXPORTED,
    **indexing.EXPORTED,
    **linear_algebra.RULES,
    **masks.RULES,
    **orthogonal_factors.RULES,
    **shapes.EXPORTED,
}

# For exported programs too, before the other rules: where an operand, a number or the dtype of the
# result is complex.
OF_COMPLEX: dict[Any, Callable[..., Any]] = {
    **complexes.OF_COMPLEX,
    **complex_functions.OF_COMPLEX,
    **complex_tensors.OF_COMPLEX,
}

# Ops of other packages by name, which exist once these are loaded.
OF_PACKAGES: dict[str, Callable[..., Any]] = {
    **arithmetic.OF_PACKAGES,
    **products.OF_PACKAGES,
    **quantized.OF_PACKAGES,
}
