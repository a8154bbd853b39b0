"""Bind a program's weights in IR: held inline, as globals, or as external parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy
import torch

from turbine import dtypes, errors
from turbine.capture.program import Weight
from turbine.mlir import globals as mlir_globals
from turbine.mlir.ir import Attribute, Location, Module, Type, Value

# The scope under which external parameters are named in IR and archives.
SCOPE = "model"


@dataclass
class WeightBuilder:
    """Defines each weight once in the module, on first use."""

    module: Module
    place: str
    defined: dict[str, Type] = field(default_factory=dict)

    def load(self, weight: Weight, location: Location) -> Value:
        """The weight's value at the current insertion point, as a builtin tensor."""
        return mlir_globals.load(weight.name, self.define(weight, location), location)

    def store(self, weight: Weight, value: Value, location: Location) -> None:
        """Replace the weight's value for the next call."""
        mlir_globals.store(weight.name, value, location)

    def define(self, weight: Weight, location: Location) -> Type:
        """The weight's type; its global is made when it is first asked for."""
        if weight.name not in self.defined:
            dtype = dtypes.of_torch(weight.tensor.dtype)
            of = mlir_globals.tensor_type(tuple(weight.tensor.shape), dtype)
            # Written state starts from a value in the code: an archive is mapped read-only.
            external = self.place == "external" and not weight.mutable
            initial = (_parameter if external else _dense)(weight, of)
            mlir_globals.define(
                self.module,
                weight.name,
                of,
                initial,
                mutable=weight.mutable,
                location=location,
            )
            self.defined[weight.name] = of
        return self.defined[weight.name]


def elements(tensor: torch.Tensor) -> numpy.ndarray:
    """A tensor's elements as a numpy array, sharing memory where that is possible."""
    dtype = dtypes.of_torch(tensor.dtype)
    return raw_bytes(tensor).view(dtype.numpy).reshape(tuple(tensor.shape))


def raw_bytes(tensor: torch.Tensor) -> numpy.ndarray:
    """A tensor's elements as flat bytes in row-major order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw: numpy.ndarray = plain.reshape(-1).view(torch.uint8).numpy()
    return raw


def _parameter(weight: Weight, of: Type) -> Attribute:
    return mlir_globals.parameter(SCOPE, weight.name, of)


def _dense(weight: Weight, of: Type) -> Attribute:
    return mlir_globals.dense(weight.name, elements(weight.tensor), of)


PLACES = ("external", "global", "inline")


def check_place(place: str) -> str:
    """The place, or an error that lists the places there are."""
    if place not in PLACES:
        raise errors.ConfigError(errors.unknown("place for weights", place, PLACES))
    return place
