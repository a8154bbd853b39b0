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

# The devices of arguments, by position.
Devices = Mapping[int, DeviceAffinity]


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant of the model. A mutable one is written by the program."""

    name: str
    tensor: torch.Tensor
    mutable: bool = False
    external: ExternalTensorTrait | None = None  # its address in an archive, if the user marked it
    persistent: bool = True  # whether state dicts of the model have it
    in_code: bool = False  # its value is always part of the code
    uninitialized: bool = False  # it has no value until the program writes one
    noinline: bool = False  # the compiler must not inline its value
    device: DeviceAffinity | None = None  # its device, if the user marked it
    open_axes: tuple[int, ...] = ()  # axes of dynamic size; it starts empty

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its sizes; None is a dynamic one."""
        sizes = enumerate(self.tensor.shape)
        return tuple(None if axis in self.open_axes else size for axis, size in sizes)


@dataclass(frozen=True)
class Region:
    """A functional ATen graph, and the roles of its placeholders and results."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]  # placeholders passed at every call, in order
    results: tuple[fx.Node, ...]  # values returned, mutated inputs last
    weights: Mapping[str, Weight] = field(default_factory=dict)  # placeholder -> value bound to it
    stores: Mapping[str, fx.Node] = field(
        default_factory=dict
    )  # weight -> its value after the call
    constants: Mapping[str, Any] = field(default_factory=dict)  # placeholder -> fixed value
    devices: Devices = field(default_factory=dict)  # of inputs, by position


@dataclass(frozen=True, kw_only=True)
class Program(Region):
    """A whole exported model: its graph, and how a user calls it."""

    signature: Signature
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # the example arguments

    def text(self) -> str:
        """The graph as readable code."""
        return str(self.graph.print_readable(print_output=False))


def check_devices(devices: Devices | None, count: int) -> Devices:
    """The devices of arguments; raises if a position has no argument."""
    wrong = [place for place in devices or {} if place not in range(count)]
    if wrong:
        raise errors.ExportError(
            f"arg_device places argument {wrong[0]}, but there are {count}",
            hint="arguments are counted from 0, as leaves of nested ones",
        )
    return devices or {}
