"""The common call in one loop: torch tensors of fixed shapes in, one tensor out.

Imported once a torch tensor has been seen. Asks what `calling` and `torch_buffers` ask, and gives
None where an answer is unusual: the general way then takes the call, or refuses it.
"""

from __future__ import annotations

from typing import Any

import iree.runtime as iree
import torch
from torch import Size, Tensor
from torch._C import _from_dlpack as from_dlpack
from torch._C import _to_dlpack as to_dlpack

from turbine import dtypes, pytree
from turbine.runtime.executable import Executable
from turbine.runtime.numpy_buffers import Span
from turbine.signature import Input, Output, Signature

_VIEW = iree.HalBufferView
_DLPACK_CPU = 1


class QuickCall:
    """Calls an executable whose signature `serves` says is plain."""

    def __init__(self, signature: Signature, executable: Executable, fixed: Span) -> None:
        self.executable = executable
        self.fixed_start, self.fixed_end = fixed
        self.expected = [_expected(spec) for spec in signature.inputs]

    def call(self, args: tuple[Any, ...]) -> Tensor | None:
        """The result, or None if the general way has to look at the arguments."""
        device = self.executable.device()
        arguments = iree.VmVariantList(len(args))
        starts = []
        try:
            for tensor, (dtype, shape, _) in zip(args, self.expected, strict=True):
                if (
                    type(tensor) is not Tensor
                    or tensor.dtype is not dtype
                    or tensor.shape != shape
                    or not tensor.is_cpu
                    or tensor.is_neg()
                ):
                    return None
                start = tensor.data_ptr()
                if not start:
                    return None
                starts.append(start)
                arguments.push_ref(device.from_dlpack_capsule(to_dlpack(tensor)))
        except _NOT_SHAREABLE:
            return None
        results = self.executable.invoke(arguments, 1)
        view = results.get_as_object(0, _VIEW)
        value: Tensor = from_dlpack(device.create_dlpack_capsule(view, _DLPACK_CPU, 0))
        return value.clone() if self._is_shared(value.data_ptr(), starts) else value

    def _is_shared(self, address: int, starts: list[int]) -> bool:
        """Whether IREE handed back the memory of an argument or a weight."""
        for start, (_, _, size) in zip(starts, self.expected, strict=True):
            if start <= address < start + size:
                return True
        return self.fixed_start <= address < self.fixed_end


# What torch raises for a tensor without plain memory, and IREE for one that is strided or whose
# address is not a multiple of its alignment.
_NOT_SHAREABLE = (RuntimeError, ValueError, IndexError, BufferError)


def _expected(spec: Input) -> tuple[torch.dtype, Size, int]:
    row = dtypes.named(spec.dtype)
    shape = Size(map(int, spec.shape))
    return row.torch, shape, shape.numel() * row.itemsize


def serves(signature: Signature) -> bool:
    """Whether every call is by position, of tensors that DLPack carries, with one such result."""
    positional, keywords = signature.in_tree.children
    flat = not keywords.children and all(tree == pytree.LEAF for tree in positional.children)
    single = signature.out_tree == pytree.LEAF and len(signature.outputs) == 1
    leaves: list[Input | Output] = [*signature.inputs, *signature.outputs]
    return flat and single and all(_is_plain(leaf) for leaf in leaves)


def _is_plain(leaf: Input | Output) -> bool:
    if leaf.kind != "tensor" or (isinstance(leaf, Input) and leaf.mutated):
        return False
    row = dtypes.named(leaf.dtype)
    # Unsigned results come back signless, and a complex tensor may be lazily conjugated.
    carried = row.dlpack and row.kind not in ("uint", "complex")
    sized = isinstance(leaf, Output) or all(isinstance(d, int) and d > 0 for d in leaf.shape)
    return carried and sized
