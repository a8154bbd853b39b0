"""Call a compiled graph on tensors, in the memory order it was compiled for.

Imported once torch is. Dtypes and shapes are not checked: under torch.compile, guards do that.
Memory is shared where a tensor's layout allows it, otherwise copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import iree.runtime as iree
from torch import Tensor
from torch._C import _AutoDispatchBelowADInplaceOrView
from torch._C import _to_dlpack as to_dlpack
from torch.autograd.graph import increment_version

from turbine import errors
from turbine.runtime import device as devices
from turbine.runtime import torch_buffers
from turbine.runtime.executable import EntryPoint, Executable, align_code
from turbine.runtime.overlap import Span, overlaps
from turbine.runtime.quick_call import NOT_SHAREABLE, is_shareable, tensor_at
from turbine.signature import Slot

_VIEW = iree.HalBufferView
_NOWHERE: Span = (0, 0)
# With more spans, sorting them is faster than comparing all pairs.
_FEW_PAIRS = 16


class TensorCall:
    """Calls a function of flat arguments and results.

    A result in `in_place` is the new value of an argument, {result: argument}, which the call
    writes to that argument. IREE computes it there, unless memory could not be shared.
    """

    def __init__(
        self,
        entry: EntryPoint,
        inputs: Sequence[Slot],
        results: Sequence[Slot],
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        self.entry = entry
        self.inputs = inputs
        self.results = results
        self.in_place = in_place or {}
        self.dtypes = [slot.dtype for slot in results]
        on_host = entry.is_on_host
        self.library: Any = torch_buffers if on_host else _cuda_tensors()
        self.plain = [
            on_host and not slot.fixed and slot.order is None and _is_plain(slot) for slot in inputs
        ]
        self.has_plain_results = on_host and all(map(_is_plain, results))
        self.permuted = [
            (i, slot.order) for i, slot in enumerate(results) if slot.order is not None
        ]
        # For each tensor with fixed memory, its address and view.
        self.known: dict[int, tuple[int, Any, list[Span]]] = {}

    @staticmethod
    def load(
        code: bytes,
        driver: str,
        name: str,
        inputs: Sequence[Slot],
        results: Sequence[Slot],
        *,
        in_place: Mapping[int, int] | None = None,
        needs_cores: bool = False,
        is_static: bool = False,
        label: str = "",
    ) -> TensorCall:
        """Load code without weights, for a call of one of its functions.

        One that `is_static` takes arguments of the same sizes in each call. It may be loaded twice.
        """
        executable = Executable(
            align_code(code),
            driver,
            list,
            needs_cores=needs_cores,
            may_overflow=is_static and driver == devices.TASK,
            label=label,
        )
        return TensorCall(executable.entry(name, is_static=is_static), inputs, results, in_place)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The results, as tensors that share no memory; those in place are the arguments."""
        device = self.entry.device()
        shared: list[Span] = []
        try:
            arguments = self._share(device, args, shared)
        except NOT_SHAREABLE:
            shared = []
            arguments = self._convert(device, args, shared)
        self.library.wait()
        results = self.entry.invoke(arguments, len(self.results))
        values: list[Any]
        if self.has_plain_results:
            values = [tensor_at(device, results, index) for index in range(len(self.dtypes))]
        else:
            values = [
                results.get_variant(index)
                if dtype is None
                else self.library.from_view(device, results.get_as_object(index, _VIEW), dtype)
                for index, dtype in enumerate(self.dtypes)
            ]
        for result, argument in self.in_place.items():
            _write_back(values[result], args[argument])
            values[result] = None
        if len(self.in_place) < len(values):
            values = _copy_shared(values, shared)
        for result, argument in self.in_place.items():
            values[result] = args[argument]
        for index, order in self.permuted:
            values[index] = _permute(values[index], order)
        return values

    def _share(self, device: Any, args: Sequence[Any], shared: list[Span]) -> Any:
        """Arguments whose memory is shared as it is; others raise one of `NOT_SHAREABLE`."""
        arguments = iree.VmVariantList(len(args))
        for index, (is_plain, argument) in enumerate(zip(self.plain, args, strict=True)):
            if not is_plain:
                self._push(arguments, device, index, argument, shared)
                continue
            start = argument.data_ptr()
            # DLPack exports the memory of a lazily negated tensor without its sign.
            if not start or argument.is_neg():
                raise BufferError
            shared.append((start, start + argument.nbytes))
            arguments.push_ref(device.from_dlpack_capsule(to_dlpack(argument)))
        return arguments

    def _convert(self, device: Any, args: Sequence[Any], shared: list[Span]) -> Any:
        """Arguments, copied where their memory cannot be shared."""
        arguments = iree.VmVariantList(len(args))
        for index, argument in enumerate(args):
            self._push(arguments, device, index, argument, shared)
        return arguments

    def _push(
        self, arguments: Any, device: Any, index: int, argument: Any, shared: list[Span]
    ) -> None:
        slot = self.inputs[index]
        if slot.dtype is None:
            arguments.push_int(argument)
        elif slot.fixed:
            arguments.push_ref(self._view_in_place(device, index, argument, shared))
        else:
            arguments.push_ref(self._view(device, slot, argument, shared))

    def _view_in_place(self, device: Any, index: int, argument: Tensor, shared: list[Span]) -> Any:
        """The view of a weight, kept as long as its address is the same."""
        address = argument.data_ptr()
        known = self.known.get(index)
        if known is None or known[0] != address or not address:
            spans: list[Span] = []
            view = self._view(device, self.inputs[index], argument, spans)
            known = (address, view, spans)
            # Views of copies are not kept: the weight may change.
            if spans:
                self.known[index] = known
        shared += known[2]
        return known[1]

    def _view(self, device: Any, slot: Slot, argument: Tensor, shared: list[Span]) -> Any:
        tensor = argument if slot.order is None else argument.permute(slot.order)
        assert slot.dtype is not None
        view = self.library.to_view(device, tensor, slot.dtype, shared)
        if view is None:
            raise errors.ArgumentError(
                f"a tensor {self.library.problem(tensor, slot.dtype)}",
                hint=self.library.remedy(tensor, slot.dtype),
            )
        return view


def _cuda_tensors() -> Any:
    from turbine.runtime import cuda_tensors

    return cuda_tensors


def _is_plain(slot: Slot) -> bool:
    return slot.dtype is not None and is_shareable(slot.dtype)


def _permute(value: Tensor, order: tuple[int, ...]) -> Tensor:
    # Below autograd, otherwise the result would be a view, which may not be written to.
    with _AutoDispatchBelowADInplaceOrView():
        return value.permute(order)


def _write_back(value: Tensor, argument: Tensor) -> None:
    """Write the new value of an argument, unless it was computed in its memory."""
    if value.data_ptr() == argument.data_ptr():
        increment_version(argument)
    else:
        argument.copy_(value)


def _copy_shared(values: list[Any], shared: list[Span]) -> list[Any]:
    """Copy results that share memory with an argument or another result."""
    if len(values) == 1 and len(shared) <= _FEW_PAIRS and isinstance(values[0], Tensor):
        start = values[0].data_ptr()
        end = start + values[0].nbytes
        for first, stop in shared:
            if first < end and start < stop:
                return [torch_buffers.copy(values[0])]
        return values
    spans = [torch_buffers.span(v) if isinstance(v, Tensor) else _NOWHERE for v in values]
    if not _any_overlap(spans, shared):
        return values
    taken = list(shared)
    own = []
    for value, span in zip(values, spans, strict=True):
        if overlaps(span, taken):
            value = torch_buffers.copy(value)
        taken.append(span)
        own.append(value)
    return own


def _any_overlap(results: list[Span], shared: list[Span]) -> bool:
    """Whether a result overlaps anything; arguments may overlap each other."""
    spans = sorted(
        [(start, end, True) for start, end in results if end > start]
        + [(start, end, False) for start, end in shared]
    )
    end_of_any = end_of_results = 0
    for start, end, is_result in spans:
        if start < (end_of_any if is_result else end_of_results):
            return True
        end_of_any = max(end_of_any, end)
        if is_result:
            end_of_results = max(end_of_results, end)
    return False
