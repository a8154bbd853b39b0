"""Run passes on a lowered program: IR and weights in, IR and the weights it now names out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from turbine import dtypes, errors
from turbine.capture.program import Weight
from turbine.lower.importer import Lowered
from turbine.lower.weights import raw_bytes
from turbine.mlir import parameters
from turbine.mlir.parameters import Parameter
from turbine.passes import Pass
from turbine.passes import base as passes_base


def transform(lowered: Lowered, passes: Sequence[Pass]) -> Lowered:
    """The program after the passes; what it had before is not changed."""
    values = {Parameter(lowered.scope, w.name): _array(w.tensor) for w in lowered.external}
    module, after = passes_base.transform(lowered.module, values, passes)
    named = dict.fromkeys(parameters.by_global(module).values())
    missing = [parameter.text for parameter in named if parameter not in after]
    if missing:
        raise errors.ParameterError(
            f"no value for parameter {', '.join(missing)}",
            hint="only weights of the exported model are at hand",
        )
    weights = tuple(Weight(parameter.key, _tensor(after[parameter])) for parameter in named)
    return Lowered(module, weights, _scope(list(named), lowered.scope))


def _scope(named: Sequence[Parameter], default: str) -> str:
    """The scope of all weights: an artifact has one archive."""
    scopes = sorted({parameter.scope or "" for parameter in named})
    if len(scopes) > 1:
        raise errors.ParameterError(
            f"the weights are in several scopes: {', '.join(scopes)}",
            hint="give all of them one scope; IREE's tools take IR from save_mlir with several",
        )
    return scopes[0] if scopes else default


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's elements; shared, not copied, where it is contiguous."""
    of = dtypes.of_torch(tensor.dtype).numpy
    array: NDArray[Any] = raw_bytes(tensor).view(of).reshape(tuple(tensor.shape))
    return array


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    raw = torch.from_numpy(passes_base.as_bytes(array))
    return raw.view(dtypes.of_numpy(array.dtype).torch).reshape(array.shape)
