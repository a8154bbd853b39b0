"""Weights by the names of a state dict: tensors or arrays in, an archive in memory out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from turbine import dtypes, errors
from turbine.runtime import libraries, numpy_buffers
from turbine.runtime.archive import Archive
from turbine.runtime.entries import Declared, Entry


@dataclass(frozen=True)
class StateDict:
    """Tensors or arrays by the names that the model has for them."""

    values: Mapping[str, Any]

    def archive(self, wanted: Iterable[Declared]) -> Archive:
        """Copies of the values that a program declares; raises for one of another type."""
        declared = list(wanted)
        found = {w.key: _copy(w, self.values[w.name]) for w in declared if w.name in self.values}
        archive = Archive(None, found)
        archive.check(declared)
        return archive


def _copy(weight: Declared, value: Any) -> Entry:
    library = libraries.of(value)
    if library is None:
        raise errors.ParameterError(
            f"{weight.name} is a {type(value).__name__}, expected a tensor or an array",
            hint="pass model.state_dict(), or paths of archives by scope",
        )
    if library is numpy_buffers:
        data, dtype = value.copy(), dtypes.of_numpy(value.dtype).name
        # Numpy and torch share no bfloat16, so both are read by their bytes.
        raw = data.reshape(-1).view(numpy.uint8)
    else:
        import torch

        dense = value.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
        dtype = dtypes.of_torch(value.dtype).name
        raw = dense.reshape(-1).view(torch.uint8).numpy()
    return Entry(weight.key, raw.data, dtype, tuple(value.shape))
