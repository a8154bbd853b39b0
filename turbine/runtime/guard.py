"""Guard pages around arguments: a call in, the same call on fenced copies out.

With `guard` on (`TURBINE_GUARD=1`), compiled code gets copies of its arguments that end at a page
which may not be touched. An access past that page ends the process at the instruction that made
it; a write into the gap between an argument and the page is reported after the call. Results and
scratch memory are allocated inside IREE and have no such pages.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import iree.runtime as iree
import numpy
from numpy.typing import NDArray

from turbine import errors
from turbine.runtime.numpy_buffers import ALIGNMENT

_PAGE = mmap.PAGESIZE
_CANARY = 0xA5
_PROT_NONE = 0

Bytes = NDArray[numpy.uint8]
Invoke = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Fenced:
    """Memory between two pages without access; what is not data holds the canary."""

    memory: Bytes  # all of it but the guard pages
    start: int
    size: int

    @property
    def data(self) -> Bytes:
        """The bytes that a program may use, at an aligned address."""
        return self.memory[self.start : self.start + self.size]

    def damage(self) -> int | None:
        """The offset from the data's start of the first byte written outside of it."""
        is_canary = self.memory == _CANARY
        is_canary[self.start : self.start + self.size] = True
        if is_canary.all():
            return None
        return int(numpy.argmin(is_canary)) - self.start


def fence(size: int) -> Fenced:
    """Memory for so many bytes, as near to the page behind it as alignment allows."""
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


def guard_calls(invoke: Invoke, device: Callable[[], Any]) -> Invoke:
    """The same call, with a fenced copy in place of each buffer that is passed."""

    def guarded(arguments: Any, result_count: int) -> Any:
        copies: list[tuple[int, Any, Fenced]] = []
        fenced = iree.VmVariantList(len(arguments))
        for index in range(len(arguments)):
            value = arguments.get_variant(index)
            if isinstance(value, int):
                fenced.push_int(value)
            elif isinstance(value, float):
                fenced.push_float(value)
            else:
                view = arguments.get_as_object(index, iree.HalBufferView)
                fenced.push_ref(_copy(device(), index, view, copies))
        results = invoke(fenced, result_count)
        for index, view, memory in copies:
            _check(index, view, memory)
        return results

    return guarded


def _copy(device: Any, index: int, view: Any, copies: list[tuple[int, Any, Fenced]]) -> Any:
    memory = fence(view.byte_length)
    memory.data[:] = _bytes(view)
    copies.append((index, view, memory))
    # IREE takes no empty memory; an empty view is of bytes that hold the canary.
    source = memory.data if memory.size else memory.memory[:ALIGNMENT]
    made = device.from_dlpack_capsule(source.__dlpack__())
    return iree.HalBufferView(made.get_buffer(), list(view.shape), view.element_type)


def _check(index: int, view: Any, memory: Fenced) -> None:
    """Report a write outside the argument; pass on what was written inside."""
    offset = memory.damage()
    if offset is not None:
        raise errors.RunError(
            f"compiled code wrote outside of argument {index}: at byte {offset} of "
            f"{memory.size}, shape {list(view.shape)}",
            hint="this is a bug of the compiler; report the program",
        )
    if memory.size and not numpy.array_equal(_bytes(view), memory.data):
        _bytes(view)[:] = memory.data


def _bytes(view: Any) -> Bytes:
    array: Bytes = view.map().asarray([view.byte_length], numpy.dtype(numpy.uint8))
    return array


def _forbid(address: int) -> None:
    if _libc().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect failed")


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
