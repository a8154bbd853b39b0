"""The device changes nothing for tensors on other devices, and a fork may use it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import turbine
from tests.forked import in_child
from turbine import errors
from turbine.eager import device

PROGRAM = """
import threading
import torch

def state():
    found = [torch.accelerator.current_accelerator(), torch.accelerator.is_available()]
    try:
        torch.ones(2).pin_memory()
    except RuntimeError as error:
        found.append(str(error))
    found.append(torch.ones(2).is_pinned())
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
    found.append([batch.tolist() for batch in loader])
    with torch._subclasses.fake_tensor.FakeTensorMode():
        found.append(str(torch.ones(2, 3) @ torch.ones(3)))
    w = torch.ones(2, requires_grad=True)
    (w * 3).sum().backward()
    found += [w.grad.tolist(), threading.active_count()]
    found.append(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist())
    return found

import warnings
warnings.simplefilter("ignore")
before = state()
import turbine
assert state() == before
turbine.eager.enable()
turbine.eager.enable()
after = state()
assert after == before, (before, after)
assert torch.ones(2, device="turbine").tolist() == [1.0, 1.0]
"""


def test_code_for_the_cpu_behaves_as_before() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)


def test_the_device_is_refused_beside_another_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_library", None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(errors.DeviceError, match="one accelerator in a process"):
        turbine.eager.enable()


def test_a_forked_child_does_not_run_what_its_parent_called() -> None:
    turbine.eager.enable()
    torch.randn(1 << 20).exp()  # starts threads, which a child does not have
    large = torch.randn(1 << 20).to("turbine").exp()
    x = torch.arange(4.0, device="turbine") + 1

    assert in_child(lambda: str((x - 1).tolist())) == "[0.0, 1.0, 2.0, 3.0]"
    assert large.min().item() > 0


def test_a_fork_goes_on_with_tensors_of_the_device() -> None:
    turbine.eager.enable()
    x = torch.arange(4.0, device="turbine")
    y = x * 2 + 1

    assert in_child(lambda: str([(y - 1).tolist() for _ in range(3)][-1])) == "[0.0, 2.0, 4.0, 6.0]"
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0]
