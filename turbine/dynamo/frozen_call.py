"""Load the code of a part, and frozen weights with it: these are packed then, and not in calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from turbine.capture.sizes import is_static
from turbine.capture.traits import SCOPE
from turbine.dynamo.part_code import PartCode
from turbine.lower.importer import DEFAULT_NAME
from turbine.lower.weights import raw_bytes
from turbine.runtime import device, parameters
from turbine.runtime.executable import Executable, align_code
from turbine.runtime.tensor_call import TensorCall


def load_part(code: bytes, driver: str, part: PartCode, load: float) -> TensorCall | FrozenCall:
    """Load compiled code of a part, for calls with its inputs that do this much work."""
    needs_cores = device.is_long(driver, load)
    if part.frozen:
        return FrozenCall(code, driver, part, needs_cores)
    flat = part.flat
    call = TensorCall.load(
        code,
        driver,
        DEFAULT_NAME,
        flat.inputs,
        flat.results,
        needs_cores=needs_cores,
        is_static=all(map(_has_static_size, flat.graph.graph.find_nodes(op="placeholder"))),
        label=part.label,
    )
    call.entry.device()  # loads it, which may fail
    return call


def _has_static_size(place: fx.Node) -> bool:
    value = place.meta.get("val")
    return isinstance(value, Tensor) and is_static(value)


class FrozenCall:
    """Calls a part, and loads its weights again when one was replaced or written.

    Writes are noticed as in autograd, by the version counter of a tensor: those through `.data` or
    a NumPy array are not.
    """

    def __init__(self, code: bytes, driver: str, part: PartCode, needs_cores: bool) -> None:
        self._part = part
        self._executable = Executable(
            align_code(code), driver, self._providers, needs_cores=needs_cores, label=part.label
        )
        entry = self._executable.entry(DEFAULT_NAME)
        self._call = TensorCall(entry, part.flat.inputs, part.flat.results)
        self._weights: dict[str, Tensor] = {}
        self._state: list[tuple[int, int]] = []
        self._storages: list[Any] = []  # kept, so that no other weight gets the same address

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The results, with the values that the weights have now."""
        weights, passed = self._part.split(args)
        state = [(weight.data_ptr(), _version(weight)) for weight in weights.values()]
        if state != self._state:
            self._weights = weights
            self._storages = [weight.untyped_storage() for weight in weights.values()]
            self._executable.reset()
            self._state = state  # last: other threads may call then
        return self._call(passed)

    def _providers(self) -> list[Any]:
        data = {name: raw_bytes(weight).data for name, weight in self._weights.items()}
        return [parameters.from_memory(SCOPE, data)]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
