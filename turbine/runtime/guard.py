"""Guard pages around arguments and results: a call in, the same call on fenced memory out.

With `guard` on (`TURBINE_GUARD=1`), compiled code gets copies of its arguments that end at a guard
page, and such memory for results of static size. An access to the page ends the process at the
instruction; a write into the gap before the page is reported after the call. Other results and
scratch memory are allocated by IREE, and filled with 0xCD.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import iree.runtime as iree
import numpy
from numpy.typing import NDArray

from turbine import dtypes, errors
from turbine.runtime import numpy_buffers
from turbine.runtime.numpy_buffers import ALIGNMENT
from turbine.signature import StoredResult

_PAGE = mmap.PAGESIZE
_CANARY = 0xA5
_PROT_NONE = 0

Bytes = NDArray[numpy.uint8]
Invoke = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Fenced:
    """Memory between two guard pages; bytes around the data hold a canary."""

    memory: Bytes  # without the guard pages
    start: int
    size: int

    @property
    def data(self) -> Bytes:
        """The bytes that a program may use, at an aligned address."""
        return self.memory[self.start : self.start + self.size]

    def source(self) -> Bytes:
        """The data for IREE; canary bytes if it is empty, since IREE takes no empty memory."""
        return self.data if self.size else self.memory[:ALIGNMENT]

    def damage(self) -> int | None:
        """The offset from the data of the first overwritten canary byte, if there is one."""
        is_canary = self.memory == _CANARY
        is_canary[self.start : self.start + self.size] = True
        if is_canary.all():
            return None
        return int(numpy.argmin(is_canary)) - self.start


def fence(size: int) -> Fenced:
    """Allocate memory that ends as close to a guard page as alignment allows."""
    room = -(-size // ALIGNMENT) * ALIGNMENT
    inner = -(-max(room, 1) // _PAGE) * _PAGE
    pages = mmap.mmap(-1, inner + 2 * _PAGE)
    whole = numpy.frombuffer(pages, numpy.uint8)
    address = whole.ctypes.data
    _forbid(address)
    _forbid(address + _PAGE + inner)
    memory = whole[_PAGE : _PAGE + inner]
    memory[:] = _CANARY
    return Fenced(memory, inner - room, size)


def guard_calls(
    invoke: Invoke, device: Callable[[], Any], stored: Sequence[StoredResult] = ()
) -> Invoke:
    """Wrap a call: buffers are replaced by fenced copies, and results get fenced memory."""

    def call_guarded(arguments: Any, result_count: int) -> Any:
        fenced = iree.VmVariantList(len(arguments) + len(stored))
        copies: dict[int, tuple[Any, _FencedBuffer]] = {}
        for index in range(len(arguments)):
            view = _push_number(fenced, arguments, index)
            if view is not None:
                room = _copy(device(), view)
                copies[index] = view, room
                fenced.push_ref(room.view)
        rooms = [_allocate_result(device(), result) for result in stored]
        for room in rooms:
            fenced.push_ref(room.view)
        given = invoke(fenced, result_count - len(stored))
        for index, (view, room) in copies.items():
            room.check(f"argument {index}")
            if room.memory.size and not numpy.array_equal(_bytes(view), room.memory.data):
                _bytes(view)[:] = room.memory.data
        results = {}
        for result, room in zip(stored, rooms, strict=True):
            room.check(f"result {result.index}")
            results[result.index] = _share(device(), result, room.memory)
        return _merge(given, results)

    return call_guarded


def _push_number(to: Any, source: Any, index: int) -> Any:
    """Push a number to the arguments; returns the value instead if it is a buffer view."""
    value = source.get_variant(index)
    if isinstance(value, int):
        to.push_int(value)
    elif isinstance(value, float):
        to.push_float(value)
    else:
        return source.get_as_object(index, iree.HalBufferView)
    return None


@dataclass(frozen=True)
class _FencedBuffer:
    """Fenced memory with an IREE buffer and view of it."""

    memory: Fenced
    buffer: Any
    view: Any

    @staticmethod
    def of(memory: Fenced, buffer: Any, shape: Sequence[int], element_type: int) -> _FencedBuffer:
        return _FencedBuffer(memory, buffer, iree.HalBufferView(buffer, list(shape), element_type))

    def check(self, what: str) -> None:
        """Raise if compiled code wrote outside of the data."""
        offset = self.memory.damage()
        if offset is not None:
            raise errors.RunError(
                f"compiled code wrote outside of {what}: at byte {offset} of "
                f"{self.memory.size}, shape {list(self.view.shape)}",
                hint="this is a bug of the compiler; report the program",
            )


def _copy(device: Any, view: Any) -> _FencedBuffer:
    """A fenced copy by DLPack: the view keeps the memory alive, as a result may be a view of it."""
    memory = fence(view.byte_length)
    memory.data[:] = _bytes(view)
    made = device.from_dlpack_capsule(memory.source().__dlpack__())
    return _FencedBuffer.of(memory, made.get_buffer(), view.shape, view.element_type)


def _allocate_result(device: Any, result: StoredResult) -> _FencedBuffer:
    """Fenced memory for a result, without DLPack, whose buffers IREE may not fill.

    The caller keeps the memory alive during the call.
    """
    row = dtypes.from_torch_name(result.dtype)
    memory = fence(math.prod(result.shape) * row.itemsize)
    kind = iree.MemoryType.HOST_LOCAL | iree.MemoryType.DEVICE_VISIBLE
    usage = iree.BufferUsage.DEFAULT | iree.BufferUsage.MAPPING
    buffer = device.allocator.import_host_allocation(memory.source(), int(kind), int(usage))
    return _FencedBuffer.of(memory, buffer, result.shape, row.hal)


def _share(device: Any, result: StoredResult, memory: Fenced) -> Any:
    """A view of a result that keeps its memory alive."""
    row = dtypes.from_torch_name(result.dtype)
    array = memory.data.view(row.numpy).reshape(result.shape)
    return numpy_buffers.to_view(device, array, row, [])


def _merge(given: Any, stored: dict[int, Any]) -> Any:
    """The results in order: those stored in fenced memory and those returned."""
    if not stored:
        return given
    merged = iree.VmVariantList(len(given) + len(stored))
    taken = 0
    for index in range(len(given) + len(stored)):
        if index in stored:
            merged.push_ref(stored[index])
            continue
        view = _push_number(merged, given, taken)
        if view is not None:
            merged.push_ref(view)
        taken += 1
    return merged


def _bytes(view: Any) -> Bytes:
    array: Bytes = view.map().asarray([view.byte_length], numpy.dtype(numpy.uint8))
    return array


def _forbid(address: int) -> None:
    if _libc().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect failed")


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
