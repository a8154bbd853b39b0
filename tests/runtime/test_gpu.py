"""Programs without a signature, devices and custom ops on CUDA tensors: `make test-gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from iree.compiler.dialects import arith

from turbine import errors, ops
from turbine.runtime import Device, Launchable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DOUBLED = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %y = arith.addf %x, %x : tensor<?xf32>
  return %y : tensor<?xf32>
}
"""
INTO_STORAGE = """
func.func @main(%x: tensor<70xf32>, %into: tensor<70xf32> {iree.abi.output = 0 : index})
    -> tensor<70xf32> {
  %y = arith.addf %x, %x : tensor<70xf32>
  return %y : tensor<70xf32>
}
"""


@pytest.fixture(scope="module")
def doubled() -> Launchable:
    return Launchable.jit_compile(DOUBLED)


@pytest.fixture
def added() -> Iterator[Any]:
    op = ops.custom_op("gpu_tests::added(Tensor x, Tensor y) -> Tensor")(lambda x, y: x + y)
    op.register_emission(lambda builder, x, y: arith.addf(x, y))
    yield op
    op.remove()


def test_a_program_takes_cuda_tensors_where_they_are(doubled: Launchable) -> None:
    x = torch.randn(70, device="cuda")
    result = doubled(x)
    assert result.device == x.device
    torch.testing.assert_close(result, x + x)


@pytest.mark.parametrize("uri", ["cuda", "cuda://0"])
def test_tensors_and_arrays_of_the_cpu_are_copied(uri: str, doubled: Launchable) -> None:
    x = torch.randn(70)
    with Device(uri):
        torch.testing.assert_close(doubled(x), x + x)
        numpy.testing.assert_array_equal(doubled(x.numpy()), (x + x).numpy())
    torch.testing.assert_close(doubled(x, device="cuda:0"), x + x)


def test_a_call_waits_for_the_current_stream(doubled: Launchable) -> None:
    x = torch.randn(70, device="cuda")
    doubled(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        tripled = x * 3
        result = doubled(tripled)
    torch.cuda.synchronize()
    torch.testing.assert_close(result, x * 6)


@pytest.mark.parametrize("source", [DOUBLED, INTO_STORAGE])
def test_outputs_are_written_in_place(source: str) -> None:
    x = torch.randn(71, device="cuda")
    program = Launchable.jit_compile(source)
    aligned, misaligned = torch.empty(70, device="cuda"), torch.empty(71, device="cuda")[1:]
    on_cpu = torch.empty(70)
    for into in (aligned, misaligned, on_cpu):
        program(x[:70], outputs=[into])
        torch.testing.assert_close(into.cpu(), 2 * x[:70].cpu())


def test_devices_import_and_export_cuda_tensors() -> None:
    device = Device("cuda://0")
    x = torch.randn(2, 3, device="cuda")
    device.setup_iree_action()
    view = device.import_torch_tensor(x)
    back = device.export_torch_tensor(view, x)
    device.finalize_iree_action()
    assert back.device == x.device
    assert torch.equal(back, x)
    assert torch.equal(device.export_torch_tensor(view, torch.empty(2, 3)), x.cpu())
    with pytest.raises(errors.ArgumentError, match=r"cannot be a float32\[3\]"):
        device.export_torch_tensor(view, torch.empty(3))


def test_an_emission_runs_on_the_gpu(added: Any) -> None:
    x, y = torch.randn(2, 70, 70, device="cuda")
    for given in (x, x, x.T, x[:, ::2], x[:, 1:], x[:0]):
        result = added(given, y[: len(given), : given.shape[1]])
        assert result.device == x.device
        torch.testing.assert_close(result, given + y[: len(given), : given.shape[1]])
    torch.testing.assert_close(added(x.cpu(), y.cpu()), x.cpu() + y.cpu())


def test_functions_of_pytorch_run_on_the_gpu() -> None:
    x, weight = torch.randn(2, 9, 8, 4), torch.randn(6, 3, 3, 4)
    expected = ops.conv_2d_nhwc_fhwc(x, weight, [1, 1], [1, 1])
    result = ops.conv_2d_nhwc_fhwc(x.cuda(), weight.cuda(), [1, 1], [1, 1])
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=1e-3)


# Errors


def test_a_program_on_the_cpu_refuses_cuda_tensors(doubled: Launchable) -> None:
    with pytest.raises(errors.ArgumentError, match="argument 0 is on device cuda:0, expected cpu"):
        doubled(torch.ones(3, device="cuda"), device="cpu")


def test_an_op_refuses_tensors_of_several_devices(added: Any) -> None:
    x = torch.ones(3)
    for given in ((x, x.cuda()), (x.cuda(), x)):
        with pytest.raises(errors.CustomOpError, match="with tensors on cpu, cuda:0"):
            added(*given)
