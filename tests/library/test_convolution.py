"""Convolution kernels: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from tests.library.placing import AVX512, NEON, exported, placed
from turbine.capture.program import Program
from turbine.library.convolution import Form, depthwise, full
from turbine.target import Target

pytestmark = pytest.mark.sweep(3)

aten = torch.ops.aten


def kernels_of(program: Program) -> list[str]:
    """The kernels that a program calls."""
    names = [str(node.target) for node in program.graph.graph.nodes]
    return [name for name in names if "convolution" in name and "aten" not in name]


def max_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("interpreted", [False, True], ids=["compiled", "interpreted"])
def test_the_kernel_matches_torch(interpreted: bool) -> None:
    x, weight, bias = torch.randn(2, 6, 9, 7), torch.randn(8, 6, 3, 2), torch.randn(8)
    images = x.permute(0, 2, 3, 1)[:, None].contiguous()
    panels = weight.permute(2, 3, 1, 0)[None].contiguous()
    convolve = full(Form((3, 2)), (1, 4))
    run = convolve.interpret if interpreted else convolve
    found = run(images, panels, bias).permute(0, 3, 1, 2)
    assert max_error(found, nn.functional.conv2d(x, weight, bias)) < 1e-5


@pytest.mark.parametrize("interpreted", [False, True], ids=["compiled", "interpreted"])
def test_the_depthwise_kernel_matches_torch(interpreted: bool) -> None:
    x, weight, bias = torch.randn(2, 5, 8, 6), torch.randn(5, 1, 2, 3), torch.randn(5)
    images = x.permute(0, 2, 3, 1)[:, None].contiguous()
    taps = weight[:, 0].permute(1, 2, 0).contiguous()
    convolve = depthwise(Form((2, 3)))
    run = convolve.interpret if interpreted else convolve
    found = run(images, taps, bias).permute(0, 3, 1, 2)
    assert max_error(found, nn.functional.conv2d(x, weight, bias, groups=5)) < 1e-5


def test_operands_are_read_in_place() -> None:
    x, weight, bias = torch.randn(1, 1, 30, 30, 64), torch.randn(8, 3, 3, 64, 8), torch.randn(64)
    plan = full(Form((3, 3)), (1, 14)).text("plan", x, weight, bias)
    assert "packed" not in plan


LAYERS = {
    "3x3": (nn.Conv2d(8, 16, 3, padding=1), (1, 8, 12, 12)),
    "batch": (nn.Conv2d(8, 16, 3), (3, 8, 9, 9)),
    "stride": (nn.Conv2d(8, 16, 3, stride=2, padding=1), (2, 8, 13, 11)),
    "even window": (nn.Conv2d(8, 9, (4, 2), stride=(2, 1), padding=(1, 0)), (1, 8, 10, 9)),
    "1x1": (nn.Conv2d(24, 10, 1, bias=False), (1, 24, 7, 7)),
    "1x1 with stride": (nn.Conv2d(24, 10, 1, stride=2), (2, 24, 7, 6)),
    "few channels": (nn.Conv2d(3, 8, 7, stride=2, padding=3), (1, 3, 20, 18)),
    "few channels, one column": (nn.Conv2d(3, 8, (3, 1), stride=2, padding=1), (1, 3, 9, 10)),
    "one channel": (nn.Conv2d(1, 6, 5, padding=2), (4, 1, 12, 12)),
    "columns after the last window": (nn.Conv2d(8, 16, 2, stride=2), (1, 8, 9, 7)),
    "1x1 with unused columns": (nn.Conv2d(8, 16, 1, stride=2, padding=1), (1, 8, 8, 9)),
    "one window": (nn.Conv2d(8, 16, 3), (1, 8, 4, 3)),
    "large padding": (nn.Conv2d(8, 8, 2, padding=2), (1, 8, 3, 3)),
    "1-d": (nn.Conv1d(8, 12, 5, padding=2), (2, 8, 30)),
    "1-d with stride": (nn.Conv1d(1, 12, 9, stride=2, padding=4), (2, 1, 31)),
    "depthwise": (nn.Conv2d(20, 20, 3, padding=1, groups=20), (1, 20, 9, 9)),
    "depthwise with stride": (nn.Conv2d(20, 20, 3, 2, 1, groups=20), (2, 20, 9, 10)),
    "depthwise, dilated": (nn.Conv2d(20, 20, 3, padding=2, dilation=2, groups=20), (1, 20, 9, 8)),
    "dilated": (nn.Conv2d(8, 16, 3, padding=(2, 3), dilation=(2, 3)), (2, 8, 12, 11)),
    "dilated rows, stride of columns": (
        nn.Conv2d(8, 16, (3, 2), (1, 2), dilation=(3, 1)),
        (1, 8, 12, 11),
    ),
    "1-d, dilated": (nn.Conv1d(8, 12, 3, padding=4, dilation=4), (2, 8, 30)),
    "few channels, dilated": (nn.Conv2d(3, 8, 3, dilation=2), (1, 3, 12, 12)),
    "groups": (nn.Conv2d(64, 64, 3, padding=1, groups=2), (1, 64, 9, 9)),
    "small groups": (nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=8), (2, 32, 9, 9)),
    "groups of odd sizes": (nn.Conv2d(15, 25, 3, groups=5, dilation=2), (1, 15, 9, 9)),
    "several channels of each": (nn.Conv2d(6, 24, 3, groups=6), (1, 6, 9, 9)),
    "1-d groups": (nn.Conv1d(32, 32, 8, padding=4, groups=4), (2, 32, 20)),
    "3-d": (nn.Conv3d(8, 16, 3, padding=1), (2, 8, 5, 6, 7)),
    "3-d with stride": (nn.Conv3d(3, 8, (3, 2, 2), (2, 1, 2), (1, 0, 1)), (1, 3, 7, 6, 5)),
    "3-d, dilated": (nn.Conv3d(8, 9, 2, dilation=(2, 1, 2)), (1, 8, 5, 6, 7)),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", LAYERS)
def test_artifacts_with_kernels_match_eager(name: str) -> None:
    layer, shape = LAYERS[name]
    x = torch.randn(shape)
    output = turbine.aot.export(layer.eval(), args=(x,))
    assert kernels_of(placed(output.program))
    found = output.compile()(x)
    expected = layer(x).detach()
    assert (found.stride(), found.dtype) == (expected.stride(), expected.dtype)
    assert max_error(found, expected) < 1e-5


def test_a_dynamic_batch_has_kernels() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    x = torch.randn(3, 8, 10, 10)
    output = turbine.aot.export(model, args=(x,), dynamic_shapes=({0: Dim("batch", max=64)},))
    assert len(kernels_of(placed(output.program))) == 2
    artifact = output.compile()
    for batch in (1, 3, 5):
        images = torch.randn(batch, 8, 10, 10)
        assert max_error(artifact(images), model(images).detach()) < 1e-5


def test_a_batch_of_images_with_few_channels_stays_dynamic() -> None:
    model = nn.Conv2d(3, 8, 3, stride=2, padding=1).eval()
    sizes = ({0: Dim.DYNAMIC},)
    artifact = turbine.aot.export(
        model, args=(torch.randn(2, 3, 10, 10),), dynamic_shapes=sizes
    ).compile()
    images = torch.randn(5, 3, 10, 10)
    assert max_error(artifact(images), model(images).detach()) < 1e-5


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 8, 3, dilation=2, stride=2),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.Conv2d(8, 8, 3, stride=3),
        nn.ConvTranspose2d(8, 8, 3),
        nn.Conv2d(8, 8, 3).double(),
    ],
    ids=["dilation and stride", "small groups", "stride 3", "transposed", "f64"],
)
def test_other_convolutions_have_none(layer: nn.Module) -> None:
    x = torch.randn(1, 8, 12, 12, dtype=next(layer.parameters()).dtype)
    program = placed(exported(layer, x), NEON)
    assert not kernels_of(program)


def test_a_weight_that_is_an_argument_has_none() -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return nn.functional.conv2d(x, weight)

    program = placed(exported(Given(), torch.randn(1, 8, 9, 9), torch.randn(4, 8, 3, 3)), NEON)
    assert not kernels_of(program)


@pytest.mark.parametrize(
    ("target", "channels", "outputs", "panels"),
    [
        (NEON, 64, 100, (13, 8)),
        (NEON, 64, 12, (3, 4)),
        (AVX512, 64, 64, (1, 64)),
        (AVX512, 512, 64, (2, 32)),
        (AVX512, 64, 6, (1, 16)),
    ],
)
def test_panels_have_few_unused_columns(
    target: Target, channels: int, outputs: int, panels: tuple[int, int]
) -> None:
    program = placed(
        exported(nn.Conv2d(channels, outputs, 3), torch.randn(1, channels, 9, 9)), target
    )
    (call,) = [n for n in program.graph.graph.nodes if str(n.target) in kernels_of(program)]
    count, _, _, _, width = call.args[1].meta["val"].shape
    assert (count, width) == panels
