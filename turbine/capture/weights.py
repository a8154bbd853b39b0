"""Find the weights of exported programs, bind them to inputs, and share them between programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from turbine import errors
from turbine.capture.program import Program, Weight
from turbine.capture.traits import DeviceTensorTrait, external_address


def find_weights(exported: ExportedProgram, stores: Mapping[str, fx.Node]) -> dict[str, Weight]:
    """Bind each lifted placeholder to its tensor; tied weights share one Weight."""
    unique: dict[tuple[Any, ...], Weight] = {}
    keys = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT or not isinstance(spec.arg, TensorArgument):
            continue
        name = str(spec.target)
        tensor = exported.state_dict.get(name, exported.constants.get(name))
        if not isinstance(tensor, torch.Tensor):
            raise errors.ExportError(
                f"no value for {name}, an input of kind {spec.kind}",
                hint="put the tensor into the program's state_dict or constants under that name",
            )
        mutable = spec.arg.name in stores
        external = external_address(tensor)
        key = (id(spec),) if mutable else (external, *identity(tensor))
        device = DeviceTensorTrait.get(tensor)
        is_persistent = external is not None or _is_persistent(spec)
        weight = Weight(name, tensor.detach(), mutable, external, is_persistent, device=device)
        keys[spec.arg.name] = key
        # Of tied weights, one that state dicts have gives the name.
        if key not in unique or (is_persistent and not unique[key].persistent):
            unique[key] = weight
    return {place: unique[key] for place, key in keys.items()}


def _is_persistent(spec: InputSpec) -> bool:
    """Whether state dicts have the tensor: a parameter or a persistent buffer, and no constant."""
    return spec.kind == InputKind.PARAMETER or bool(spec.persistent)


def bind_weights(program: Program, weights: Mapping[str, Weight]) -> Program:
    """The program with weights in place of inputs that it does not write."""
    specs = program.signature.inputs
    bound = {
        place: weights[spec.name]
        for place, spec in zip(program.inputs, specs, strict=True)
        if spec.name in weights and not spec.mutated
    }
    left = [place not in bound for place in program.inputs]
    return replace(
        program,
        inputs=tuple(compress(program.inputs, left)),
        weights={**program.weights, **bound},
        signature=replace(program.signature, inputs=tuple(compress(specs, left))),
    )


def share_weights(programs: Mapping[str, Program]) -> dict[str, Program]:
    """Make programs of one root module share a Weight for each tensor, and state by name."""
    written = {
        program.weights[place].name for program in programs.values() for place in program.stores
    }
    shared: dict[tuple[Any, ...], Weight] = {}
    taken: dict[str, Weight] = {}

    def unify(entry: str, weight: Weight) -> Weight:
        key = (weight.name,) if weight.name in written else identity(weight.tensor)
        if key not in shared:
            # Constants that PyTorch lifts have one name in every program.
            name = weight.name if weight.name not in taken else f"{entry}.{weight.name}"
            shared[key] = replace(weight, name=name, mutable=weight.name in written)
            taken[name] = shared[key]
        return shared[key]

    return {
        entry: replace(
            program, weights={place: unify(entry, w) for place, w in program.weights.items()}
        )
        for entry, program in programs.items()
    }


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key that is equal for tensors with the same memory, layout and dtype."""
    if not tensor.numel():
        return (id(tensor),)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
