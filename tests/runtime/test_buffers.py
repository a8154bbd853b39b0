"""Tensors and arrays are converted to IREE buffers and back, without a copy if possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from turbine import dtypes
from turbine.dtypes import Dtype
from turbine.runtime import device as devices
from turbine.runtime import numpy_buffers, torch_buffers
from turbine.runtime.numpy_buffers import ALIGNMENT
from turbine.runtime.overlap import Span

SHAPES = [(3, 4), (), (1, 5), (0,), (2, 0, 3)]
F32 = dtypes.from_torch_name("float32")
C64 = dtypes.from_torch_name("complex64")
# IREE's compiler knows integers of a width, not of a sign: this is the type results come in.
SIGNLESS = 0x10000000


@pytest.fixture(scope="module")
def device() -> Any:
    return devices.device(devices.SYNC)


def random_tensor(row: Dtype, shape: tuple[int, ...]) -> Tensor:
    """Any bit pattern a row's type can hold, at an aligned address."""
    random = torch.Generator().manual_seed(sum(map(ord, row.name)))
    count = math.prod(shape) * row.itemsize
    limit = 2 if row.kind == "bool" else 256
    raw = torch.randint(limit, (count,), dtype=torch.uint8, generator=random)
    return raw.view(row.torch).reshape(shape) if count else torch.empty(shape, dtype=row.torch)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.name)
def test_tensors_of_every_dtype_are_shared_without_a_copy(
    row: Dtype, shape: tuple[int, ...], device: Any
) -> None:
    tensor = random_tensor(row, shape)
    shared: list[Span] = []
    back = torch_buffers.from_view(device, torch_buffers.to_view(device, tensor, row, shared), row)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(bits(back), bits(tensor))
    if tensor.numel():
        assert back.data_ptr() == tensor.data_ptr()
        assert shared == [torch_buffers.span(tensor)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.name)
def test_arrays_of_every_dtype_are_shared_without_a_copy(
    row: Dtype, shape: tuple[int, ...], device: Any
) -> None:
    array = bits(random_tensor(row, shape)).numpy().view(row.numpy).reshape(shape)
    shared: list[Span] = []
    back = numpy_buffers.from_view(device, numpy_buffers.to_view(device, array, row, shared), row)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    if array.size:
        assert back.ctypes.data == array.ctypes.data
        assert shared == [(array.ctypes.data, array.ctypes.data + array.nbytes)]


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
def test_signless_results_take_the_dtype_of_the_signature(name: str, device: Any) -> None:
    row = dtypes.from_torch_name(name)
    largest = int(torch.iinfo(row.torch).max)
    expected = torch.tensor([largest, largest - 1, 0, 1], dtype=row.torch)
    view = torch_buffers.to_view(device, expected, row, [])
    signless = iree.HalBufferView(view.get_buffer(), [4], SIGNLESS | row.bits)
    found = torch_buffers.from_view(device, signless, row)
    assert found.dtype == row.torch
    assert found.tolist() == expected.tolist()
    array = numpy_buffers.from_view(device, signless, row)
    assert array.dtype == row.numpy
    assert array.tolist() == expected.tolist()


def transposed() -> Tensor:
    return torch.arange(12.0).reshape(3, 4).T


def strided() -> Tensor:
    return torch.arange(24.0).reshape(3, 8)[:, ::2]


def unaligned() -> Tensor:
    return torch.arange(13.0)[1:].reshape(3, 4)


def expanded() -> Tensor:
    return torch.arange(4.0).expand(3, 4)


def channels_last() -> Tensor:
    return torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last)


def needs_gradient() -> Tensor:
    return torch.arange(4.0, requires_grad=True)


def computed_with_gradient() -> Tensor:
    return torch.arange(4.0, requires_grad=True) * 2


def negated_view() -> Tensor:
    return torch.complex(torch.arange(4.0), torch.ones(4)).conj().imag


def negated_scalar() -> Tensor:
    """Contiguous, unlike longer views of this kind."""
    return torch.tensor([1 + 2j]).conj().imag


def odd_strides_of_one_row() -> Tensor:
    return torch.arange(100.0).as_strided((1, 4), (77, 1))


def odd_strides_of_nothing() -> Tensor:
    return torch.arange(100.0).as_strided((0, 4), (7, 9))


ODD_TENSORS = [
    transposed,
    strided,
    unaligned,
    expanded,
    channels_last,
    needs_gradient,
    computed_with_gradient,
    negated_view,
    negated_scalar,
    odd_strides_of_one_row,
    odd_strides_of_nothing,
]


@pytest.mark.parametrize("make", ODD_TENSORS, ids=lambda make: make.__name__)
def test_tensors_of_any_layout_are_read_correctly(make: Callable[[], Tensor], device: Any) -> None:
    tensor = make()
    view = torch_buffers.to_view(device, tensor, F32, [])
    assert torch.equal(torch_buffers.from_view(device, view, F32), tensor)


def test_conjugated_tensors_are_read_correctly(device: Any) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()
    assert tensor.is_conj()
    view = torch_buffers.to_view(device, tensor, C64, [])
    assert torch.equal(torch_buffers.from_view(device, view, C64), tensor)


def read_only() -> Any:
    array = torch.arange(4.0).numpy()
    array.flags.writeable = False
    return array


ODD_ARRAYS: dict[str, Callable[[], Any]] = {
    "transposed": lambda: numpy.arange(12, dtype="float32").reshape(3, 4).T,
    "strided": lambda: numpy.arange(24, dtype="float32").reshape(3, 8)[:, ::2],
    "reversed": lambda: numpy.arange(4, dtype="float32")[::-1],
    "unaligned": lambda: torch.arange(13.0).numpy()[1:].reshape(3, 4),
    "broadcast": lambda: numpy.broadcast_to(numpy.float32(3), (2, 3)),
    "read only": read_only,
    "scalar": lambda: numpy.array(3, dtype="float32"),
    "matrix": lambda: torch.arange(4.0).numpy().reshape(2, 2).view(numpy.matrix),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_arrays_of_any_layout_are_read_correctly(name: str, device: Any) -> None:
    array = ODD_ARRAYS[name]()
    view = numpy_buffers.to_view(device, array, F32, [])
    found = numpy_buffers.from_view(device, view, F32)
    assert found.shape == array.shape
    assert found.tolist() == array.tolist()


def test_a_copy_is_not_reported_as_shared(device: Any) -> None:
    shared: list[Span] = []
    torch_buffers.to_view(device, transposed(), F32, shared)
    torch_buffers.to_view(device, unaligned(), F32, shared)
    numpy_buffers.to_view(device, ODD_ARRAYS["reversed"](), F32, shared)
    numpy_buffers.to_view(device, read_only(), F32, shared)
    assert not shared


def freed() -> Tensor:
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


def freed_and_strided() -> Tensor:
    tensor = torch.ones(3, 2).T
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(2, 3)


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


REFUSED: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: torch.ones(2, dtype=torch.float64), "has dtype torch.float64"),
    (lambda: torch.ones(2, device="meta"), "is on device meta"),
    (lambda: torch.ones(2, 2).to_sparse(), "has layout torch.sparse_coo"),
    (lambda: torch.ones(2, 2).to_sparse_csr(), "has layout torch.sparse_csr"),
    (lambda: torch.ones(2, 2).to_mkldnn(), "has layout torch._mkldnn"),
    (nested, "is a nested tensor"),
    (freed, "has no memory"),
    (freed_and_strided, "has no memory"),
    (fake, "has no memory"),
]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize(("make", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_unsupported_tensors_are_rejected(
    make: Callable[[], Tensor], reason: str, device: Any
) -> None:
    tensor = make()
    assert torch_buffers.to_view(device, tensor, F32, []) is None
    assert torch_buffers.problem(tensor, F32).startswith(reason)


@pytest.mark.parametrize("dtype", [">f4", "float64", "object", "V4"])
def test_unsupported_array_dtypes_are_rejected(dtype: str, device: Any) -> None:
    array = numpy.zeros(4, dtype)
    assert numpy_buffers.to_view(device, array, F32, []) is None
    assert "expected float32" in numpy_buffers.problem(array, F32)


def test_read_only_memory_is_detected() -> None:
    assert torch_buffers.is_writable(transposed())
    assert not torch_buffers.is_writable(expanded())
    assert torch_buffers.is_writable(expanded()[:, :0])
    assert numpy_buffers.is_writable(numpy.zeros(3)[::-1])
    assert not numpy_buffers.is_writable(read_only())


def test_buffers_keep_imported_memory_alive(device: Any) -> None:
    fp8 = dtypes.from_torch_name("float8_e5m2")
    views = []
    for i in range(8):
        tensor = torch.full((1000,), float(i))
        views.append(torch_buffers.to_view(device, tensor, F32, []))
        views.append(torch_buffers.to_view(device, tensor[1:901], F32, []))
        views.append(numpy_buffers.to_view(device, tensor.numpy()[1:], F32, []))
        eighths = torch.full((4000,), float(i)).to(fp8.torch)
        views.append(
            numpy_buffers.relabel(torch_buffers.to_view(device, eighths, fp8, []), [1000], F32)
        )
    del tensor, eighths
    rubbish = [numpy.full(1000, -1, "float32") for _ in range(200)]  # where freed memory was
    found = [torch_buffers.from_view(device, view, F32) for view in views]
    del views, rubbish
    for i in range(8):
        assert [float(t.mean()) for t in found[4 * i : 4 * i + 3]] == [i, i, i]
        assert (found[4 * i + 3].view(fp8.torch).float() == i).all()


def test_iree_requires_the_alignment_we_use(device: Any) -> None:
    raw = numpy.zeros(4 * ALIGNMENT, numpy.uint8)
    aligned = raw[-raw.ctypes.data % ALIGNMENT :]
    device.from_dlpack_capsule(aligned[:ALIGNMENT].__dlpack__())
    with pytest.raises(IndexError, match="aligned"):
        device.from_dlpack_capsule(aligned[ALIGNMENT // 2 : ALIGNMENT].__dlpack__())
