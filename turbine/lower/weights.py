"""Bind a program's weights in IR: inline, as globals, or as external parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy
import torch

from turbine import dtypes, errors
from turbine.capture.program import Weight
from turbine.capture.traits import SCOPE, DeviceAffinity
from turbine.dtypes import Dtype
from turbine.mlir import constants, devices, scalars
from turbine.mlir import globals as mlir_globals
from turbine.mlir.ir import Attribute, Location, Module, Type, Value


@dataclass(frozen=True)
class Number:
    """A scalar of the program's state."""

    name: str
    dtype: str  # a key of dtypes.SCALARS
    value: bool | int | float
    mutable: bool = False


@dataclass
class WeightBuilder:
    """Emits the weights of one module; each global is defined on its first use."""

    module: Module
    place: str
    defined: dict[str, Weight | Number] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)  # of these, with a first value that is computed

    def load(self, weight: Weight, location: Location) -> Value:
        """The weight's value at the current insertion point, as a builtin tensor."""
        if self._define_computed(weight):
            return mlir_globals.load(weight.name, builtin_type(weight), location)
        shape, dtype = _type(weight)
        initial = self._initial(weight)
        if self.place == "inline" and self._may_fold(weight):
            value = constants.constant(initial, location)
        else:
            self._define(weight, initial, location)
            value = mlir_globals.load(weight.name, initial.type, location)
        if weight.device is not None:
            # IREE drops devices that only globals use, and then crashes.
            value = devices.transfer(value, _affinity(weight.device), location)
        return constants.from_carrier(value, shape, dtype, location)

    def store(self, weight: Weight, value: Value, location: Location) -> None:
        """Replace the weight's value for the next call."""
        if self._define_computed(weight):
            mlir_globals.store(weight.name, value, location)
            return
        shape, dtype = _type(weight)
        self._define(weight, self._initial(weight), location)
        carried = constants.to_carrier(value, shape, dtype, location)
        mlir_globals.store(weight.name, carried, location)

    def load_number(self, number: Number, location: Location) -> Value:
        """The number's value at the current insertion point."""
        initial = self.declare_number(number, location)
        return mlir_globals.load(number.name, initial.type, location)

    def store_number(self, number: Number, value: Value, location: Location) -> None:
        """Replace the number's value."""
        self.declare_number(number, location)
        mlir_globals.store(number.name, value, location)

    def load_kept(self, kept: Weight | Number, location: Location) -> Value:
        """The value of a tensor or number."""
        if isinstance(kept, Number):
            return self.load_number(kept, location)
        return self.load(kept, location)

    def store_kept(self, kept: Weight | Number, value: Value, location: Location) -> None:
        """Replace a tensor or number."""
        if isinstance(kept, Number):
            self.store_number(kept, value, location)
        else:
            self.store(kept, value, location)

    def declare(self, weight: Weight, location: Location) -> None:
        """Define the weight's global, used or not."""
        if not self._define_computed(weight):
            self._define(weight, self._initial(weight), location)

    def declare_number(self, number: Number, location: Location) -> Attribute:
        """Define the number's global on first use; returns its initial value."""
        initial = scalars.attribute(number.value, dtypes.SCALARS[number.dtype])
        self._define(number, initial, location)
        return initial

    def is_external(self, weight: Weight) -> bool:
        """Whether a weight is external; state is in the code unless the user marked it external."""
        if weight.external is not None:
            return True
        return self.place == "external" and not (weight.mutable or weight.in_code)

    def _may_fold(self, weight: Weight) -> bool:
        # IREE folds an unsigned constant to a literal of a signed type, which it then rejects.
        unsigned = dtypes.of_torch(weight.tensor.dtype).kind == "uint"
        placed = weight.device is not None or weight.noinline
        return not (unsigned or placed or weight.mutable or self.is_external(weight))

    def _initial(self, weight: Weight) -> Attribute:
        """The initial value: a named parameter, or a constant in the IR."""
        shape, dtype = _type(weight)
        if weight.uninitialized:
            return mlir_globals.uninitialized_attribute(constants.carrier_type(shape, dtype))
        if not self.is_external(weight):
            return constants.dense(weight.name, raw_bytes(weight.tensor), shape, dtype)
        return mlir_globals.parameter(*address(weight), constants.carrier_type(shape, dtype))

    def _define_computed(self, weight: Weight) -> bool:
        """Define a global whose first value is computed: nothing, or zeros; False for others."""
        if weight.name in self.defined:
            return weight.name in self.computed
        is_zero = not self.is_external(weight) and _starts_with_zeros(weight)
        if not weight.open_axes and not is_zero:
            return False
        self.defined[weight.name] = weight
        self.computed.add(weight.name)
        define = mlir_globals.define_zeros if is_zero else mlir_globals.define_empty
        define(self.module, weight.name, builtin_type(weight))
        return True

    def _define(self, weight: Weight | Number, initial: Attribute, location: Location) -> None:
        if weight.name in self.defined:
            return
        self.defined[weight.name] = weight
        tensor = weight if isinstance(weight, Weight) else None
        mlir_globals.define(
            self.module,
            weight.name,
            initial,
            mutable=weight.mutable,
            location=location,
            affinity=_affinity(tensor.device) if tensor is not None and tensor.device else None,
            noinline=tensor is not None and tensor.noinline,
        )


def _starts_with_zeros(weight: Weight) -> bool:
    """Whether a weight is state of a good size that starts with zeros, such as a moment."""
    is_plain = weight.mutable and weight.device is None and not weight.open_axes
    tensor = weight.tensor
    if not is_plain or weight.uninitialized or tensor.dtype != torch.float32:
        return False
    return tensor.nbytes >= _LEAST_COMPUTED and not raw_bytes(tensor).any()


_LEAST_COMPUTED = 64 * 1024  # smaller zeros are part of the code


def _affinity(device: DeviceAffinity) -> Attribute:
    return devices.affinity(device.ordinal, device.queues)


def address(weight: Weight) -> tuple[str, str]:
    """The scope and key of a weight in IR and archives, if it is external."""
    if weight.external is None:
        return SCOPE, weight.name
    return weight.external.external_scope, weight.external.external_name


def check_addresses(weights: Iterable[Weight]) -> None:
    """Raise if two weights have the same scope and key."""
    first: dict[tuple[str, str], Weight] = {}
    for weight in weights:
        other = first.setdefault(address(weight), weight)
        if other is not weight:
            scope, key = address(weight)
            raise errors.ExportError(
                f"{other.name} and {weight.name} are both external as {key!r} of scope {scope!r}",
                hint="give them names or scopes of their own",
            )


def builtin_type(weight: Weight) -> Type:
    """The builtin tensor type of a weight."""
    return constants.tensor_type(weight.shape, dtypes.of_torch(weight.tensor.dtype))


def constant_type(kept: Weight | Number) -> Type:
    """The builtin type of a tensor or number."""
    if isinstance(kept, Number):
        return Type.parse(dtypes.SCALARS[kept.dtype].mlir)
    return builtin_type(kept)


def raw_bytes(tensor: torch.Tensor) -> numpy.ndarray:
    """A tensor's elements as flat bytes in row-major order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw: numpy.ndarray = plain.reshape(-1).view(torch.uint8).numpy()
    return raw


def _type(weight: Weight) -> tuple[tuple[int, ...], Dtype]:
    return tuple(weight.tensor.shape), dtypes.of_torch(weight.tensor.dtype)


PLACES = ("external", "global", "inline")


def check_place(place: object) -> str:
    """The place for weights; raises if it is unknown."""
    if not isinstance(place, str):
        raise errors.ConfigError(
            f"weights is a {type(place).__name__}, expected one of {', '.join(map(repr, PLACES))}",
            hint="weights says where parameters go; to export other values, call "
            "model.load_state_dict(values) before the export",
        )
    if place not in PLACES:
        raise errors.ConfigError(errors.unknown("place for weights", place, PLACES))
    return place
