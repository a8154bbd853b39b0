"""The fast path of a call: torch tensors with the properties of the last call's in, one tensor out.

Imported once a torch tensor has been seen. `caller` has checked the last call, so this one only has
to be compared with it. Calls that differ, or whose memory cannot be shared, take the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import iree.runtime as iree
from torch import Tensor
from torch._C import _from_dlpack as from_dlpack
from torch._C import _to_dlpack as to_dlpack
from torch._C._dynamo.guards import TensorGuards

from turbine import dtypes
from turbine.dtypes import Dtype
from turbine.runtime.executable import EntryPoint
from turbine.runtime.overlap import Span
from turbine.signature import Input, Output, Signature

_VIEW = iree.HalBufferView
_DLPACK_CPU = 1


class QuickCall:
    """Calls a function with one result and a signature that `is_plain`.

    `is_fresh` means that the result never shares memory with an argument or a weight. With
    `inspect`, the function returns a second tensor, which is passed to `inspect`.
    """

    def __init__(
        self,
        entry: EntryPoint,
        fixed: Span,
        *,
        is_fresh: bool = False,
        inspect: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.entry = entry
        self.inspect = inspect
        self.fixed_start, self.fixed_end = fixed
        self.is_fresh = is_fresh
        self.matches_last_call: Callable[..., bool] = _never

    def remember(self, args: Sequence[Any]) -> None:
        """Accept calls with the types, dtypes, sizes, strides and modes of these arguments."""
        # DLPack exports the memory of a lazily negated tensor without its sign.
        if all(type(argument) is Tensor and not argument.is_neg() for argument in args):
            guards = TensorGuards(*args, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self.matches_last_call = guards.check

    def call(self, args: tuple[Any, ...]) -> Tensor | None:
        """The result, or None if the call has to take the general path."""
        if not self.matches_last_call(*args):
            return None
        device = self.entry.device()
        arguments = iree.VmVariantList(len(args))
        spans = []
        try:
            for tensor in args:
                start = tensor.data_ptr()
                if not start:
                    return None
                if not self.is_fresh:
                    spans.append((start, start + tensor.nbytes))
                arguments.push_ref(device.from_dlpack_capsule(to_dlpack(tensor)))
        except NOT_SHAREABLE:
            return None
        results = self.entry.invoke(arguments, 1 if self.inspect is None else 2)
        value = tensor_at(device, results, 0)
        if self.inspect is not None:
            self.inspect(tensor_at(device, results, 1))
        if self.is_fresh:
            return value
        address = value.data_ptr()
        # IREE may return the memory of an argument or a weight.
        for start, end in spans:
            if start <= address < end:
                return value.clone()
        return value.clone() if self.fixed_start <= address < self.fixed_end else value


def tensor_at(device: Any, results: Any, place: int) -> Tensor:
    """A result of a shareable dtype."""
    view = results.get_as_object(place, _VIEW)
    value: Tensor = from_dlpack(device.create_dlpack_capsule(view, _DLPACK_CPU, 0))
    return value


def _never(*_: Any) -> bool:
    return False


# Raised by torch for a tensor without plain memory, and by IREE for a strided or misaligned one.
NOT_SHAREABLE = (RuntimeError, ValueError, IndexError, BufferError)


def is_plain(signature: Signature) -> bool:
    """Whether all arguments and results are tensors that DLPack supports, none of them mutated."""
    leaves: list[Input | Output] = [*signature.inputs, *signature.outputs]
    return all(_is_plain(leaf) for leaf in leaves)


def _is_plain(leaf: Input | Output) -> bool:
    if leaf.kind != "tensor" or (isinstance(leaf, Input) and leaf.mutated):
        return False
    return is_shareable(dtypes.from_torch_name(leaf.dtype))


def is_shareable(row: Dtype) -> bool:
    """Whether DLPack exports and imports tensors of a dtype unchanged."""
    # Unsigned results come back signless, and a complex tensor may be lazily conjugated.
    return row.dlpack and row.kind not in ("uint", "complex")
