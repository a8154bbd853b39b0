"""Run passes on a lowered program: IR and weights in, new IR and its weights out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from turbine import dtypes, errors
from turbine.capture.program import Weight
from turbine.capture.traits import ExternalTensorTrait
from turbine.lower.importer import Lowered
from turbine.lower.weights import address, raw_bytes
from turbine.mlir import parameters
from turbine.mlir.parameters import Parameter
from turbine.passes import Pass
from turbine.passes import base as passes_base


def transform(lowered: Lowered, passes: Sequence[Pass]) -> Lowered:
    """The program after the passes; the original is not changed."""
    values = {_parameter(weight): _array(weight.tensor) for weight in lowered.external}
    module, after = passes_base.transform(lowered.module, values, passes)
    named = dict.fromkeys(parameters.by_global(module).values())
    missing = [parameter.text for parameter in named if parameter not in after]
    if missing:
        raise errors.ParameterError(
            f"no value for parameter {', '.join(missing)}",
            hint="only weights of the exported model are at hand",
        )
    keys = Counter(parameter.key for parameter in named)
    weights = [_weight(p, _tensor(after[p]), is_alone=keys[p.key] == 1) for p in named]
    unsaved = {_parameter(weight) for weight in lowered.external if not weight.persistent}
    kept = [replace(w, persistent=p not in unsaved) for p, w in zip(named, weights, strict=True)]
    return replace(lowered, module=module, external=tuple(kept))


def _parameter(weight: Weight) -> Parameter:
    scope, key = address(weight)
    return Parameter(scope or None, key)


def _weight(parameter: Parameter, tensor: torch.Tensor, *, is_alone: bool) -> Weight:
    external = ExternalTensorTrait(parameter.scope or "", parameter.key)
    return Weight(parameter.key if is_alone else parameter.text, tensor, external=external)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's elements; shared, not copied, where it is contiguous."""
    of = dtypes.of_torch(tensor.dtype).numpy
    array: NDArray[Any] = raw_bytes(tensor).view(of).reshape(tuple(tensor.shape))
    return array


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    raw = torch.from_numpy(passes_base.as_bytes(array))
    return raw.view(dtypes.of_numpy(array.dtype).torch).reshape(array.shape)
