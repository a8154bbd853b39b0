"""A captured program: a functional fx graph, its weights, and how a user calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from turbine import errors
from turbine.capture.traits import DeviceAffinity, ExternalTensorTrait
from turbine.signature import Signature

# Where arguments are taken, by their places among those passed.
Devices = Mapping[int, DeviceAffinity]


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant of the model. A mutable one is written by the program."""

    name: str
    tensor: torch.Tensor
    mutable: bool = False
    external: ExternalTensorTrait | None = None  # where it is to be found, if a user has said so
    in_code: bool = False  # its value is part of the code, wherever others are
    uninitialized: bool = False  # it has no value before the program writes one
    noinline: bool = False  # its value is not to be put in the place of what reads it
    device: DeviceAffinity | None = None  # where it is held, if a user has said so
    open_axes: tuple[int, ...] = ()  # along these it may get any size; it starts without elements

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its sizes; None is one that varies."""
        sizes = enumerate(self.tensor.shape)
        return tuple(None if axis in self.open_axes else size for axis, size in sizes)


@dataclass(frozen=True)
class Region:
    """A functional ATen graph and what its placeholders and results stand for."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]  # placeholders passed at every call, in order
    results: tuple[fx.Node, ...]  # values returned, mutated inputs last
    weights: Mapping[str, Weight] = field(default_factory=dict)  # placeholder -> value bound to it
    stores: Mapping[str, fx.Node] = field(default_factory=dict)  # weight -> its value afterwards
    constants: Mapping[str, Any] = field(default_factory=dict)  # placeholder -> fixed value
    devices: Devices = field(default_factory=dict)  # of inputs, by their places


@dataclass(frozen=True, kw_only=True)
class Program(Region):
    """A whole exported model: its graph, and how a user calls it."""

    signature: Signature
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # the example arguments

    def text(self) -> str:
        """The graph as readable code."""
        return str(self.graph.print_readable(print_output=False))


def check_devices(devices: Devices | None, count: int) -> Devices:
    """The devices of arguments, or an error that names one that is not an argument."""
    wrong = [place for place in devices or {} if place not in range(count)]
    if wrong:
        raise errors.ExportError(
            f"arg_device places argument {wrong[0]}, but there are {count}",
            hint="arguments are counted from 0, as leaves of nested ones",
        )
    return devices or {}
