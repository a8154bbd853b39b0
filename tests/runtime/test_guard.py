"""Guard pages detect out-of-bounds accesses to arguments and results."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch

import turbine
from tests.compiled import agrees
from turbine import config, errors
from turbine.dtypes import from_torch_name
from turbine.runtime import device, guard, numpy_buffers
from turbine.signature import StoredResult


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 4096, 5000])
def test_guarded_memory_ends_at_a_page_and_is_aligned(size: int) -> None:
    fenced = guard.fence(size)
    assert fenced.data.nbytes == size
    assert fenced.memory.ctypes.data % numpy_buffers.ALIGNMENT == 0
    assert fenced.start % numpy_buffers.ALIGNMENT == 0
    assert len(fenced.memory) - fenced.start - size < numpy_buffers.ALIGNMENT
    fenced.data[:] = 1
    assert fenced.damage() is None


@pytest.mark.parametrize(("place", "offset"), [(-1, -1), (100, 100), (101, 101)])
def test_writes_next_to_the_data_are_detected(place: int, offset: int) -> None:
    fenced = guard.fence(100)
    fenced.memory[fenced.start + place] = 0
    assert fenced.damage() == offset


def test_an_access_beyond_the_page_faults() -> None:
    script = (
        "import ctypes; from turbine.runtime import guard; f = guard.fence(64)\n"
        "ctypes.string_at(f.data.ctypes.data + 64, 1)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode < 0


def test_out_of_bounds_writes_to_arguments_are_reported() -> None:
    def invoke(arguments: Any, _: int) -> Any:
        view = arguments.get_as_object(0, iree.HalBufferView)
        array = numpy_buffers.from_view(None, view, from_torch_name("float32"))
        beside = numpy.lib.stride_tricks.as_strided(array, (array.size + 1,), (4,))
        beside[array.size] = 0.0
        return None

    device.instance()  # knows the types of what lists hold
    hal = device.device("local-sync")
    arguments = iree.VmVariantList(1)
    arguments.push_ref(
        numpy_buffers.to_view(hal, numpy.ones(5, "f4"), from_torch_name("float32"), [])
    )
    with pytest.raises(errors.RunError, match=r"outside of argument 0: at byte 20 of 20"):
        guard.guard_calls(invoke, lambda: hal)(arguments, 0)


def test_guarded_calls_return_the_same_results() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return torch.relu(x @ y)[i]

    x, i = torch.randn(7, 5), torch.tensor([0, -1, 3])
    with config.override(guard=True):
        compiled = torch.compile(f, backend="turbine")
        for _ in range(2):
            ours, theirs = torch.ones(5, 3), torch.ones(5, 3)
            torch.testing.assert_close(compiled(x, ours, i), f(x, theirs, i))
            torch.testing.assert_close(ours, theirs)


def test_results_of_static_shape_are_between_guard_pages(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            y = x.relu()
            narrow = [y.bfloat16(), y > 0, y.to(torch.complex64), y.argmax(1)]
            return [x, y, y.sum(), torch.ones(3), y[:0], *narrow]

    x = torch.randn(4, 5)
    with config.override(guard=True):
        artifact = turbine.aot.export(Model(), args=(x,)).compile()
        ours = artifact(x)
    torch.testing.assert_close(ours, Model()(x))
    for result in [result for result in ours if result.numel()]:
        behind = result.data_ptr() + result.nbytes
        assert -behind % mmap.PAGESIZE < numpy_buffers.ALIGNMENT
    # The code says that it is called so: it runs without the option too.
    artifact.save(tmp_path / "guarded.turbine")
    torch.testing.assert_close(turbine.load(tmp_path / "guarded.turbine")(x), Model()(x))


def test_results_of_dynamic_shape_are_mixed_with_guarded_ones() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [y + 1, x + 1, y.sum(), x.sum(0)]

    with config.override(guard=True):
        agrees(f, lambda: (torch.randn(3, 2), torch.randn(4)), dynamic=True)


def test_a_result_that_is_an_argument_keeps_its_memory() -> None:
    with config.override(guard=True):
        agrees(lambda x: x.reshape(-1), lambda: (torch.ones(3, 1).expand(3, 4),), dynamic=True)


def test_out_of_bounds_writes_to_results_are_reported() -> None:
    def invoke(arguments: Any, _: int) -> Any:
        view = arguments.get_as_object(0, iree.HalBufferView)
        ctypes.memset(_address(view) - 1, 0, 1)
        return iree.VmVariantList(0)

    device.instance()
    hal = device.device("local-sync")
    stored = [StoredResult(0, "float32", (5,))]
    with pytest.raises(errors.RunError, match=r"outside of result 0: at byte -1 of 20"):
        guard.guard_calls(invoke, lambda: hal, stored)(iree.VmVariantList(0), 1)


def _address(view: Any) -> int:
    array = view.map().asarray([view.byte_length], numpy.dtype(numpy.uint8))
    return int(array.ctypes.data)


def test_uninitialized_memory_is_poisoned() -> None:
    with config.override(guard=True):
        hal = device.device("local-sync")
    kind = iree.MemoryType.HOST_LOCAL | iree.MemoryType.DEVICE_VISIBLE
    usage = iree.BufferUsage.DEFAULT | iree.BufferUsage.MAPPING
    buffer = hal.allocator.allocate_buffer(int(kind), int(usage), 16)
    view = iree.HalBufferView(buffer, [16], from_torch_name("uint8").hal)
    assert view.map().asarray([16], numpy.dtype(numpy.uint8)).tolist() == [0xCD] * 16
