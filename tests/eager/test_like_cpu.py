"""Small programs on the turbine device give what they give on the CPU: values, dtypes, strides."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import turbine
from turbine import errors

Program = Callable[[str], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def casts_in_inference_mode(device: str) -> Any:
    with torch.inference_mode():
        x = torch.arange(6, device=device)
        y = x.float()
        y.add_(1)
        z = y.double()
        y.zero_()
        w = y.to(y.dtype, copy=True)
        y.add_(1)
        return x, y, z, w


@program
def reshapes_in_inference_mode(device: str) -> Any:
    with torch.inference_mode():
        x = torch.arange(6.0, device=device).view(2, 3)
        y = x.t().reshape(-1)
        y.zero_()
        return x, y


@program
def views_of_weights_in_inference_mode(device: str) -> Any:
    w = torch.arange(16.0).view(4, 4).to(device)
    with torch.inference_mode():
        w[0].add_(1)
        return w[:2], *w.chunk(2), w.view_as(w), w[:1].expand_as(w)


@program
def writes_to_a_resized_result(device: str) -> Any:
    out = torch.empty(0, device=device)
    torch.mul(torch.arange(6, device=device), 2, out=out)
    out += 1
    return out


@program
def sums_in_the_dtype_of_their_result(device: str) -> Any:
    out = torch.empty(1, dtype=torch.int64, device=device)
    return torch.sum(torch.tensor([[0.5, 0.6]], device=device), -1, out=out)


@program
def tied_weights_stay_tied(device: str) -> Any:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    weight = layers[1].weight = layers[0].weight
    layers.to(device)
    tied = [layers[0].weight is layers[1].weight, layers[0].weight is weight]
    layers.cpu()
    return *tied, layers[0].weight is layers[1].weight, layers[0].weight is weight


@program
def optimizers_made_before_a_move(device: str) -> Any:
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    layer.to(device)
    layer(torch.ones(1, 2, device=device)).sum().backward()
    optimizer.step()
    return [(one, one.grad) for one in layer.parameters()]


@program
def running_statistics(device: str) -> Any:
    layer = nn.BatchNorm1d(3).to(device)
    layer(torch.arange(12.0, device=device).view(4, 3))
    return [one.clone() for one in layer.buffers()]


@program
def channels_last(device: str) -> Any:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last).to(device)
    y = nn.Conv2d(3, 4, 3).to(device)(x)
    return y.stride(), nn.functional.dropout(y) == 0


@program
def lists_with_views(device: str) -> Any:
    a, b, c = (torch.arange(n, device=device) + 0.5 for n in (4, 2, 3))
    torch._foreach_mul_([a.split(2)[0], b, c], 3.0)
    return a, b, c


@program
def indices_on_the_cpu(device: str) -> Any:
    x = torch.arange(6.0, device=device).view(3, 2)
    y = x[torch.tensor([0, 2])]
    x[torch.tensor([1])] = 9.0
    return x, y, x[torch.tensor([True, False, True])]


@program
def packed_sequences(device: str) -> Any:
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, batch_first=True).to(device)
    x = torch.randn(3, 6, 3).to(device).requires_grad_()
    lengths = torch.tensor([6, 4, 2])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    y, counts = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
    y.sum().backward()
    return y, counts, x.grad


@program
def writes_to_data(device: str) -> Any:
    w = torch.ones(2, device=device, requires_grad=True)
    y = (w * w).sum()
    w.data.mul_(2)
    y.backward()
    return w, w.grad


@program
def resized_views(device: str) -> Any:
    x = torch.arange(6.0, device=device)
    y, z = x[1:5], x.view(-1)
    y.resize_(2)
    z.resize_(3)
    z.add_(1)
    return x, y, z


@program
def copies_that_share_memory(device: str) -> Any:
    x = torch.arange(4.0, device=device)
    a, b = copy.deepcopy([x, x[1:]])
    a[1] = 5
    return x, a, b


@program
def shown_parameters(device: str) -> Any:
    shown = repr(nn.Parameter(torch.ones(2).to(device)))
    return shown.replace(", device='turbine:0'", "")


def describe(one: Tensor) -> Any:
    return [[round(n, 4) for n in one.flatten().tolist()], one.dtype, one.stride()]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:aten.index.Tensor runs in PyTorch by itself")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_it_gives_on_the_cpu(name: str) -> None:
    turbine.eager.enable()
    found, expected = (
        tree_map_only(Tensor, describe, PROGRAMS[name](device)) for device in ("turbine", "cpu")
    )
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16])
def test_results_of_another_dtype_are_refused_as_on_the_cpu(dtype: torch.dtype) -> None:
    turbine.eager.enable()
    x = torch.ones(2, 2, device="turbine")
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(x, x, out=torch.empty(2, 2, dtype=dtype, device="turbine"))


@pytest.mark.parametrize("location", ["turbine", "turbine:0", {"cpu": "turbine"}])
def test_saved_tensors_load_to_the_device(location: Any) -> None:
    turbine.eager.enable()
    file = io.BytesIO()
    torch.save({"w": torch.arange(4.0).view(2, 2).T, "p": nn.Parameter(torch.ones(2))}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=location)
    assert {str(one.device) for one in loaded.values()} == {"turbine:0"}
    assert loaded["w"].tolist() == [[0.0, 2.0], [1.0, 3.0]]
    assert isinstance(loaded["p"], nn.Parameter)


def test_other_indices_of_the_device_are_refused() -> None:
    turbine.eager.enable()
    x = torch.ones(2, device="turbine")
    calls: list[Callable[[], object]] = [
        lambda: x.to("turbine:1"),
        lambda: torch.zeros_like(x, device="turbine:3"),
        lambda: x.new_zeros(2, device="turbine:2"),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="one turbine device"):
            call()


def test_tensors_work_after_the_device_is_disabled() -> None:
    turbine.eager.enable()
    x = torch.ones(3, device="turbine")
    turbine.eager.disable()
    try:
        x[0] = 5.0
        assert x.tolist() == [5.0, 1.0, 1.0]
        with pytest.raises(errors.DeviceError, match="disabled"):
            torch.ones(2, device="turbine")
    finally:
        turbine.eager.enable()


def test_values_that_are_read_in_inference_mode_may_be_written_later() -> None:
    turbine.eager.enable()
    x = torch.arange(4.0, device="turbine") * 2
    with torch.inference_mode():
        assert x.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert not x._storage.value.data.is_inference()  # type: ignore[attr-defined]
    x.as_strided((2,), (1,)).add_(1)
    assert x.tolist() == [1.0, 3.0, 4.0, 6.0]


def test_autocast_reaches_into_layers() -> None:
    turbine.eager.enable()
    x = torch.ones(2, 3, 4, device="turbine")
    attention, recurrent = nn.MultiheadAttention(4, 2), nn.LSTM(4, 4)
    with torch.autocast("turbine", torch.bfloat16):
        assert attention.to("turbine")(x, x, x)[0].dtype == torch.bfloat16
        assert recurrent.to("turbine")(x)[0].dtype == torch.bfloat16
        assert torch.einsum("bij,bkj->bik", x, x).dtype == torch.bfloat16
        assert x.bfloat16().prod().dtype == torch.float32
