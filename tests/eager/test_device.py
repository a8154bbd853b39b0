"""Tensors on the turbine device behave like those on other devices."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data._utils import worker

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import errors, ops

N, B = tkl.symbols("N B")


@pytest.fixture(autouse=True)
def device() -> None:
    turbine.eager.enable()


def on(values: Tensor) -> Tensor:
    return values.to("turbine")


FACTORIES: dict[str, Callable[..., Tensor]] = {
    "zeros": lambda **k: torch.zeros(2, 3, **k),
    "ones": lambda **k: torch.ones(2, 3, dtype=torch.int32, **k),
    "full": lambda **k: torch.full((3,), 2.5, **k),
    "arange": lambda **k: torch.arange(2, 9, 3, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 5, **k),
    "eye": lambda **k: torch.eye(3, **k),
    "tensor": lambda **k: torch.tensor([[1.0, 2.0], [3.0, 4.0]], **k),
    "scalar": lambda **k: torch.tensor(3, **k),
    "randn": lambda **k: torch.randn(4, **k),
    "rand": lambda **k: torch.rand(4, **k),
    "randint": lambda **k: torch.randint(0, 9, (4,), **k),
    "randperm": lambda **k: torch.randperm(9, **k),
    "as_tensor": lambda **k: torch.as_tensor(np.arange(3.0), **k),
    "empty, filled": lambda **k: torch.empty(3, **k).fill_(7),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_give_the_values_of_the_cpu(name: str) -> None:
    torch.manual_seed(3)
    expected = FACTORIES[name]()
    torch.manual_seed(3)
    found = FACTORIES[name](device="turbine")
    assert found.device == torch.device("turbine:0")
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def test_the_default_device_may_be_turbine() -> None:
    with torch.device("turbine"):
        assert torch.ones(2).device.type == "turbine"
        assert nn.Linear(2, 3).weight.device.type == "turbine"
    assert torch.ones(2).device.type == "cpu"


def test_likes_and_news_stay_on_the_device() -> None:
    x = on(torch.arange(6.0).reshape(2, 3))
    made = [torch.zeros_like(x), torch.rand_like(x), x.new_ones(4), x.new_tensor([1.0])]
    assert all(one.device.type == "turbine" for one in made)
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"


def test_text_shows_values_and_device() -> None:
    x = on(torch.tensor([1.0, 2.0]))
    assert repr(x) == "tensor([1., 2.], device='turbine:0')"
    assert repr(x.requires_grad_()) == "tensor([1., 2.], device='turbine:0', requires_grad=True)"
    assert f"{on(torch.tensor(2.5)):.2f}" == "2.50"
    assert x.tolist() == [1.0, 2.0]


def test_numpy_asks_for_a_copy_to_the_cpu() -> None:
    x = on(torch.ones(2))
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy"):
        x.numpy()
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy"):
        np.asarray(x)
    assert torch.utils.dlpack.from_dlpack(x + 1).tolist() == [2.0, 2.0]


def test_saved_tensors_load_on_the_cpu() -> None:
    x = on(torch.arange(3.0))
    file = io.BytesIO()
    torch.save({"x": x, "w": nn.Parameter(x)}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["x"].device.type == "cpu"
    assert isinstance(loaded["w"], nn.Parameter)
    torch.testing.assert_close(loaded["x"], torch.arange(3.0))
    torch.testing.assert_close(pickle.loads(pickle.dumps(x)), torch.arange(3.0))


def test_copies_have_memory_of_their_own() -> None:
    x = on(torch.arange(3.0))
    other = copy.deepcopy(x)
    other += 1
    assert x.tolist() == [0.0, 1.0, 2.0]
    assert other.tolist() == [1.0, 2.0, 3.0]
    assert isinstance(copy.deepcopy(nn.Parameter(x)), nn.Parameter)
    on_cpu = x.cpu()
    x.zero_()
    assert on_cpu.tolist() == [0.0, 1.0, 2.0]


def test_to_the_same_device_is_the_same_tensor() -> None:
    x = on(torch.ones(2))
    assert x.to("turbine") is x
    assert x.to("turbine", torch.float64).dtype == torch.float64
    assert x.to(torch.int32).device.type == "turbine"
    assert x.to(x.device, copy=True) is not x


def writes(x: Tensor) -> list[Tensor]:
    """Writes through views, views of views, and indices."""
    row = x[1]
    row.fill_(2)
    x[:, 0] = 5
    row += 1
    x.t()[2].mul_(10)
    flat = x.view(-1)
    flat[0] = 9
    x[x > 8] = -1
    x.unsqueeze(0)[0, 2, 1:] = torch.tensor([3.0, 4.0, 5.0]).to(x.device)
    x.diagonal().add_(1)
    first, second = x.split(2)[:2]
    first.sub_(second.sum())
    window = x.as_strided((2, 2), (1, 2))
    window.zero_()
    x.unfold(0, 2, 1)[0].exp_()
    x.index_add_(0, torch.tensor([0, 0]).to(x.device), torch.ones(2, 4).to(x.device))
    x[torch.tensor([2, 1]).to(x.device)] *= 2
    return [x, row, flat, first, second, window]


def test_writes_through_views_match_the_cpu() -> None:
    expected = writes(torch.arange(12.0).reshape(3, 4))
    found = writes(on(torch.arange(12.0).reshape(3, 4)))
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())
        torch.testing.assert_close(one.cpu(), other)


def reshapes(x: Tensor) -> list[Tensor]:
    """Ops that change how a tensor sees its memory, beside views of it."""
    row = x[0]
    x.unsqueeze_(0)
    x.squeeze_(0)
    x.t_()
    x[0, 1] = 7
    y = torch.arange(4.0).reshape(2, 2).to(x.device)
    first = y[0]
    y.resize_(4)
    y[1] = 9
    z = torch.zeros(1).to(x.device)
    z.set_(x)  # type: ignore[call-overload]
    return [x, row, y, first, z]


def test_tensors_that_change_their_shape_keep_their_views() -> None:
    expected = reshapes(torch.arange(4.0).reshape(2, 2))
    found = reshapes(on(torch.arange(4.0).reshape(2, 2)))
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())
        torch.testing.assert_close(one.cpu(), other)


def test_out_is_resized_and_filled() -> None:
    x, out = on(torch.arange(3.0)), torch.empty(0, device="turbine")
    assert torch.add(x, 1, out=out) is out
    assert out.shape == (3,)
    assert out.tolist() == [1.0, 2.0, 3.0]
    torch.mul(x, 2, out=out)
    assert out.tolist() == [0.0, 2.0, 4.0]


def test_data_of_a_tensor_may_be_replaced() -> None:
    x = nn.Parameter(on(torch.ones(2)))
    x.data = on(torch.zeros(2, 3))
    assert x.shape == (2, 3)
    assert (x + 1).sum().item() == 6.0


def test_numbers_and_tensors_without_axes_mix_with_the_device() -> None:
    x = on(torch.arange(3.0))
    assert (x * 2 + torch.tensor(1.0)).tolist() == [1.0, 3.0, 5.0]
    assert (on(torch.arange(3)) + 0.5).dtype == torch.float32
    assert (on(torch.arange(3)) * True).dtype == torch.int64
    assert (x * -0.0).signbit().tolist() == [True, True, True]


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        on(torch.ones(2)) + torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2).add_(on(torch.ones(2)))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.add(on(torch.ones(2)), 1, out=torch.empty(2))


def test_errors_are_those_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        on(torch.ones(2, 3)) @ on(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="can't be cast"):
        on(torch.arange(3)).add_(0.5)
    with pytest.raises(RuntimeError, match="turbine:1"):
        torch.ones(2, device="turbine:1")
    x = on(torch.ones(2))
    with pytest.raises(IndexError):
        x[on(torch.tensor([5]))].tolist()
    assert (x + 1).tolist() == [2.0, 2.0]


def test_tensors_that_exist_outlive_the_device() -> None:
    x = on(torch.ones(2))
    turbine.eager.disable()
    try:
        with pytest.raises(errors.DeviceError, match="enable"):
            torch.ones(2, device="turbine")
        assert (x + 1).tolist() == [2.0, 2.0]
    finally:
        turbine.eager.enable()


def test_the_module_of_the_device() -> None:
    module = torch.turbine  # type: ignore[attr-defined]
    assert (module.is_available(), module.device_count(), module.current_device()) == (True, 1, 0)
    before = module.memory_allocated()
    x = on(torch.ones(1000))
    assert module.memory_allocated() >= before + 4000
    y = x + 1
    assert "aten.add.Tensor" in turbine.eager.trace()
    module.synchronize()
    assert turbine.eager.trace() == ""
    state = module.get_rng_state()
    first = torch.rand(3, device="turbine")
    module.set_rng_state(state)
    assert torch.equal(first.cpu(), torch.rand(3, device="turbine").cpu())
    assert y.sum().item() == 2000


def test_autocast_lowers_products() -> None:
    x = on(torch.randn(4, 4)).requires_grad_()
    with torch.autocast("turbine", dtype=torch.bfloat16):
        product = x @ x
        total = torch.nn.functional.mse_loss(product, product.detach() * 2)
    assert product.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    total.backward()
    assert x.grad is not None
    assert (x @ x).dtype == torch.float32
    with torch.autocast("turbine"):
        assert (x @ x).dtype == torch.bfloat16


def test_batches_of_a_data_loader_are_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [on(torch.full((2,), float(number))) for number in range(3)]
    assert torch.utils.data.default_collate(rows).device.type == "turbine"
    monkeypatch.setattr(worker, "_worker_info", object())  # what it sends arrives on the CPU
    batch = torch.utils.data.default_collate(rows)
    assert type(batch) is Tensor
    assert batch.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


def test_the_type_of_a_tensor_names_the_device() -> None:
    x = on(torch.ones(2))
    assert x.type() == "torch.turbine.FloatTensor"
    assert x.type(torch.int64).dtype == torch.int64


def test_transforms_of_functions() -> None:
    x = on(torch.arange(6.0).reshape(2, 3))
    assert torch.func.vmap(lambda row: row.sum())(x).tolist() == [3.0, 12.0]
    assert torch.func.grad(lambda y: (y * y).sum())(x).tolist() == (2 * x).tolist()
    found = torch.func.jacrev(torch.sin)(x[0])
    torch.testing.assert_close(found.cpu(), x[0].cpu().cos().diag())


def test_gradients_pass_between_devices() -> None:
    w = torch.randn(3, requires_grad=True)
    (on(w) * 2).cpu().sum().backward()
    assert type(w.grad) is Tensor
    assert w.grad.tolist() == [2.0, 2.0, 2.0]


def test_torch_compile_takes_tensors_of_the_device() -> None:
    function = torch.compile(lambda x: x.sin() + 1, backend="turbine")
    x = torch.randn(8)
    found = function(on(x))
    assert found.device.type == "turbine"
    torch.testing.assert_close(found.cpu(), x.sin() + 1)


def test_threads_may_record_at_once() -> None:
    sums: dict[int, float] = {}

    def work(number: int) -> None:
        x = torch.full((100,), float(number), device="turbine")
        for _ in range(50):
            x = x + 1
        sums[number] = x.sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: 100.0 * (number + 50) for number in range(4)}


def test_a_written_tensor_keeps_its_strides() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        a, b = x.t().clone(), x.t().clone()
        added = (a + torch.ones_like(a)).tanh()
        b[0] = 1.0
        b.add_(torch.ones_like(b, memory_format=torch.contiguous_format))
        return [added, b.tanh(), b.tanh().sum(0)]

    x = torch.randn(3, 4)
    for found, expected in zip(compute(on(x)), compute(x), strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected)


def test_a_view_by_memory_of_a_result_is_an_operand_beside_it() -> None:
    x = torch.arange(6.0)

    def compute(x: Tensor) -> Tensor:
        y = x * 2
        return y[:3] + y.as_strided((3,), (2,), 0)

    torch.testing.assert_close(compute(on(x)).cpu(), compute(x))


def test_a_module_on_the_device_may_be_moved_there_again() -> None:
    model = torch.nn.Linear(2, 2).to("turbine").to("turbine")
    assert model.weight.device.type == "turbine"
    assert model.to("turbine", torch.float64).weight.dtype == torch.float64


@ops.custom_op("eager_device::soft_clip(Tensor x) -> Tensor")
def soft_clip(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


@torch.library.custom_op("eager_device::thrice", mutates_args=())
def thrice(x: Tensor) -> Tensor:
    return x * 3


@thrice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@tk.gen.kernel(N // B)
def double(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
    start = tkl.program_id(0) * B
    tkl.store(y, (start,), tkl.load(x, (start,), (B,)) * 2)


def test_kernels_and_custom_ops_take_tensors_of_the_device() -> None:
    x = torch.randn(40)
    for op in (soft_clip, thrice, double):
        found = op(on(x) + 1)
        assert found.device.type == "turbine"
        torch.testing.assert_close(found.cpu(), op(x + 1))
    own, other = on(x).requires_grad_(), x.clone().requires_grad_()
    soft_clip(own).sum().backward()
    soft_clip(other).sum().backward()
    assert own.grad is not None
    torch.testing.assert_close(own.grad.cpu(), other.grad)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_second_derivatives_match_the_cpu() -> None:
    x = torch.randn(4)
    found = torch.func.hessian(lambda a: (a**3).sum())(on(x))
    torch.testing.assert_close(found.cpu(), torch.func.hessian(lambda a: (a**3).sum())(x))


def test_memory_has_an_address() -> None:
    x, y = torch.ones(3).to("turbine") + 1, torch.ones(3).to("turbine") + 2
    assert x.data_ptr() == x.view(3, 1).data_ptr()
    assert x.data_ptr() != y.data_ptr()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_of_other_kinds_are_refused() -> None:
    x = on(torch.ones(3))
    with pytest.raises(NotImplementedError, match=r"gives a quantized tensor.*\.cpu\(\) first"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match=r"gives a torch\.sparse_coo tensor"):
        x.to_sparse()
