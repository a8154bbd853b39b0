"""Kernels of norms and softmax: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turbine
from tests.library.placing import count, exported, placed
from tests.models import Fn
from turbine import target as targets
from turbine.library.rows import group_norm, group_norm_silu, layer_norm, log_softmax, softmax

pytestmark = pytest.mark.sweep(3)

INF, NAN = float("inf"), float("nan")


class Rows(nn.Module):
    """A layer norm of a matmul's result, a softmax, and a layer norm of a layer norm."""

    def __init__(self, *, affine: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 48)
        self.norm = nn.LayerNorm(48, eps=1e-3, elementwise_affine=affine)
        self.again = nn.LayerNorm(48, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(self.linear(x))
        result: Tensor = self.again(normal) + self.again(self.norm(normal))
        return F.softmax(normal, -1) + result


@pytest.mark.parametrize("columns", [1, 33, 1000])
def test_results_are_as_accurate_as_pytorch(columns: int) -> None:
    x = torch.randn(3, 5, columns) * 100 + 1000
    weight, bias = torch.randn(2, columns).unbind(0)
    exact = F.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-5)
    off = (F.layer_norm(x, (columns,), weight, bias, 1e-5) - exact).abs().max()
    assert (layer_norm(x, weight, bias, 1e-5) - exact).abs().max() <= 2 * off + 1e-6
    small = x / 100
    torch.testing.assert_close(softmax(small), small.softmax(-1))
    torch.testing.assert_close(log_softmax(small), small.log_softmax(-1))


def test_softmax_of_infinities_and_nans() -> None:
    x = torch.randn(1, 4, 40)
    x[0, 0] = -INF
    x[0, 1, 3] = INF
    x[0, 2, 5] = NAN
    x[0, 3, ::2] = -INF
    torch.testing.assert_close(softmax(x), x.softmax(-1), equal_nan=True)
    torch.testing.assert_close(log_softmax(x), x.log_softmax(-1), equal_nan=True)


def test_losses_of_labels_have_a_kernel() -> None:
    args = torch.randn(30, 50) * 9, torch.randint(50, (30,))
    output = turbine.aot.export(Fn(F.cross_entropy), args=args)
    assert count(placed(output.program), log_softmax.op.op) == 1
    torch.testing.assert_close(output.compile()(*args), F.cross_entropy(*args))


@pytest.mark.parametrize("shape", [(64,), (7, 64), (2, 7, 64), (2, 3, 5, 64)])
@pytest.mark.parametrize("affine", [True, False])
def test_whole_layer_norms_are_replaced(shape: tuple[int, ...], affine: bool) -> None:
    program = exported(Rows(affine=affine), torch.randn(shape))
    found = placed(program)
    assert count(found, layer_norm.op.op) == 4
    assert count(found, softmax.op.op) == 1
    assert count(found, torch.ops.aten.rsqrt.default, torch.ops.aten.sum.dim_IntList) == 0
    assert count(placed(program, targets.parse("cuda:sm_80")), layer_norm.op.op) == 4
    assert count(placed(program, targets.parse("hip:gfx942")), layer_norm.op.op) == 0


@pytest.mark.parametrize("shape", [(64,), (2, 3, 5, 64)])
def test_artifacts_match_eager(shape: tuple[int, ...]) -> None:
    model, x = Rows().eval(), torch.randn(shape)
    artifact = turbine.aot.export(model, args=(x,)).compile()
    torch.testing.assert_close(artifact(x), model(x).detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_narrow_floats_are_taken(dtype: torch.dtype) -> None:
    model, x = nn.LayerNorm(64).to(dtype).eval(), torch.randn(3, 64, dtype=dtype)
    nn.init.normal_(model.weight)
    output = turbine.aot.export(model, args=(x,))
    assert count(placed(output.program), layer_norm.op.op) == 1
    torch.testing.assert_close(output.compile()(x), model(x).detach())


@pytest.mark.parametrize("affine", [True, False])
def test_group_norms_are_replaced(affine: bool) -> None:
    model, x = nn.GroupNorm(4, 12, affine=affine).eval(), torch.randn(3, 12, 7, 5) * 3 + 10
    sizes = ({0: torch.export.Dim("batch", max=8)},)
    output = turbine.aot.export(model, args=(x,), dynamic_shapes=sizes)
    found = placed(output.program)
    assert count(found, group_norm.op.op) == 1
    assert count(found, torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor) == 0
    artifact = output.compile()
    for images in (x, x[:1]):
        torch.testing.assert_close(artifact(images), model(images).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 12, 70), (2, 12, 5, 7, 3), (3, 96)])
def test_group_norms_include_an_activation(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.GroupNorm(3, shape[1]), nn.SiLU()).eval()
    for values in model.parameters():
        nn.init.normal_(values)
    x = torch.randn(shape)
    output = turbine.aot.export(model, args=(x,))
    assert count(placed(output.program), group_norm_silu.op.op) == 1
    torch.testing.assert_close(output.compile()(x), model(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of_x", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_weight", [torch.float32, torch.float16, torch.bfloat16])
def test_group_norms_have_narrow_weights(of_x: torch.dtype, of_weight: torch.dtype) -> None:
    model, x = nn.GroupNorm(4, 12).to(of_weight).eval(), torch.randn(2, 12, 7, 5).to(of_x)
    try:
        expected = model(x).detach()
    except RuntimeError:
        pytest.skip("PyTorch does not mix these dtypes")
    output = turbine.aot.export(model, args=(x,))
    assert count(placed(output.program), group_norm.op.op) == 1
    torch.testing.assert_close(output.compile()(x), expected)


def test_an_activation_of_a_result_that_is_read_is_left() -> None:
    norm = nn.GroupNorm(4, 12)
    program = placed(exported(Fn(lambda x: (y := norm(x)) + F.silu(y)), torch.randn(2, 12, 7, 5)))
    assert count(program, group_norm.op.op) == 1
    assert count(program, torch.ops.aten.sigmoid.default) == 1


def test_small_groups_are_left() -> None:
    program = placed(exported(nn.GroupNorm(4, 12), torch.randn(3, 12, 3, 3)))
    assert count(program, group_norm.op.op) == 0


def test_dynamic_shapes_are_supported() -> None:
    model, (batch, length) = Rows().eval(), torch.export.dims("batch", "length", min=2)
    sizes = ({0: batch, 1: length},)
    out = turbine.aot.export(model, args=(torch.randn(2, 7, 64),), dynamic_shapes=sizes)
    assert count(placed(out.program), layer_norm.op.op) == 4
    artifact = out.compile()
    for shape in ((2, 2, 64), (5, 33, 64)):
        x = torch.randn(shape)
        torch.testing.assert_close(artifact(x), model(x).detach())


OTHERS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "short rows": (lambda x: F.layer_norm(x, (8,)), torch.randn(4, 8)),
    "several axes": (lambda x: F.layer_norm(x, (4, 64)), torch.randn(3, 4, 64)),
    "float64": (lambda x: F.layer_norm(x, (64,)), torch.randn(4, 64, dtype=torch.float64)),
    "another axis": (lambda x: F.softmax(x, 0), torch.randn(64, 64)),
    "an rsqrt": (torch.rsqrt, torch.rand(4, 64)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ops_are_not_replaced(name: str) -> None:
    function, x = OTHERS[name]
    program = exported(Fn(function), x)
    assert count(placed(program), layer_norm.op.op, softmax.op.op) == 0
