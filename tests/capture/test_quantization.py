"""Packed weights compute like their unpacked values, are small, and stay packed at run time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import turbine
from tests.models import Fn, assert_alike, relative_error
from turbine import aot, errors, target
from turbine.aot import ExportOutput
from turbine.capture import grouped_product
from turbine.lower.emission import TargetQuery
from turbine.passes import RenameParameters
from turbine.zoo import decoder

pytestmark = pytest.mark.sweep(4)

shapes = pytest.mark.sweep(2, "shapes")

ROUNDING = 2e-6


def eager(output: ExportOutput, *args: Tensor) -> Any:
    """The program in PyTorch, where packed weights are unpacked."""
    program = output.program
    given = dict(zip(program.inputs, args, strict=True))
    weights = {name: weight.tensor for name, weight in program.weights.items()}
    placeholders = [n.name for n in program.graph.graph.nodes if n.op == "placeholder"]
    with torch.no_grad():
        return program.graph(*({**weights, **given}[name] for name in placeholders))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(5, 64), (3, 50), (1, 1), (4, 31)])
@pytest.mark.parametrize("size", [0.05, 1e-30, 1e30])
def test_unpacked_weights_approximate_the_weights(
    bits: int, shape: tuple[int, int], size: float
) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * size
    packed = grouped_product.pack(weight, bits, 32)
    assert packed.values.dtype == torch.int8
    assert relative_error(packed.unpacked(), weight) < {4: 0.13, 8: 0.005}[bits]


def test_representable_integers_are_packed_exactly() -> None:
    weight = (torch.arange(64) % 16 - 8).float().reshape(2, 32)
    packed = grouped_product.pack(weight, 4, 16)
    assert packed.values.shape == (2, 2, 8)
    assert torch.equal(packed.unpacked(), weight)


def test_the_largest_floats_are_packed() -> None:
    weight = torch.full((2, 32), 3e38)
    torch.testing.assert_close(
        grouped_product.pack(weight, 8, 16).unpacked(), weight, rtol=1e-3, atol=0
    )


def test_zeros_stay_zeros() -> None:
    packed = grouped_product.pack(torch.zeros(2, 32), 4, 16)
    assert not packed.unpacked().any()


class Forms(nn.Module):
    """Products with weights in every form a graph has them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(48, 40)
        self.rows = nn.Parameter(torch.randn(40, 48))
        self.columns = nn.Parameter(torch.randn(48, 40))
        self.both = nn.Parameter(torch.randn(80, 48))
        self.bias = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first, second = self.both.chunk(2)
        return {
            "linear": self.linear(x),
            "batched": self.linear(x.expand(2, *x.shape)),
            "vector": self.linear(x[0]),
            "rows": functional.linear(x, self.rows),
            "columns": x @ self.columns,
            "left": self.rows @ x.t(),
            "scaled": torch.addmm(self.bias, x, self.columns, alpha=0.5, beta=2.0),
            "einsum": torch.einsum("bi,oi->bo", x, self.rows),
            "slices": functional.linear(x, first) * functional.linear(x, second),
        }


# Groups that fill vectors, that do not divide the columns, that fill no vector, and are too long.
@shapes
@pytest.mark.run
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 16), (4, 10), (8, 7), (8, 1000)])
def test_every_form_of_matmul_is_quantized(bits: int, group_size: int) -> None:
    x = torch.randn(3, 48)
    small = turbine.aot.quantize(Forms(), args=(x,), bits=bits, group_size=group_size)
    assert small.quantization is not None
    assert sorted(kept.name for kept in small.quantization.kept) == ["bias", "linear.bias"]
    found = small.compile()(x)
    for ours, theirs in zip(found.values(), eager(small, x), strict=True):
        assert_alike(ours, theirs, ROUNDING)


@pytest.mark.run
def test_consecutive_layers_are_packed() -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 32))
    x = torch.randn(2, 64)
    small = turbine.aot.quantize(model, args=(x,))
    assert_alike(small.compile()(x), eager(small, x)[0], ROUNDING)


@shapes
@pytest.mark.run
@pytest.mark.parametrize("bits", [4, 8])
def test_any_number_of_rows_is_supported(bits: int) -> None:
    model = nn.Linear(100, 700)
    batch = {"x": {0: torch.export.Dim("batch")}}
    small = turbine.aot.quantize(
        Turned(model), args=(torch.randn(3, 100, 2),), dynamic_shapes=batch, bits=bits
    )
    artifact = small.compile()
    for rows in (1, 2, 16, 17, 40):
        x = torch.randn(rows, 100, 2)
        with torch.no_grad():
            expected = Turned(unpacked(small, model))(x)
        assert_alike(artifact(x), expected, ROUNDING)


class Turned(nn.Module):
    """A layer on permuted inputs, which PyTorch treats as a batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x.transpose(1, 2))
        return y


def unpacked(output: ExportOutput, layer: nn.Linear) -> nn.Linear:
    """The layer with the weight that the packed one stands for."""
    (node,) = output.program.graph.graph.find_nodes(
        op="call_function", target=grouped_product.GROUPED_PRODUCT
    )
    weights = output.program.weights
    values, scales = (weights[argument.name].tensor for argument in node.args[1:3])
    copy = nn.Linear(layer.in_features, layer.out_features)
    copy.load_state_dict(layer.state_dict())
    copy.weight = nn.Parameter(grouped_product.unpack(values, scales, *node.args[3:]))
    return copy


@shapes
@pytest.mark.run
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_dtypes_are_packed(dtype: torch.dtype) -> None:
    model, x = nn.Linear(64, 40).to(dtype), torch.randn(2, 64).to(dtype)
    small = turbine.aot.quantize(model, args=(x,), bits=8)
    (theirs,) = eager(small, x)
    ours = small.compile()(x)
    assert ours.dtype == dtype
    assert relative_error(ours, theirs) <= max(ROUNDING, torch.finfo(dtype).eps)


@pytest.mark.run
def test_rows_of_different_magnitude_are_accurate() -> None:
    model = nn.Linear(64, 32, bias=False)
    x = torch.randn(4, 64) * torch.tensor([1e-30, 1.0, 1e20, 0.0])[:, None]
    small = turbine.aot.quantize(model, args=(x,))
    (theirs,) = eager(small, x)
    for ours, expected in zip(small.compile()(x), theirs, strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=expected.abs().max().item() * ROUNDING)


@pytest.mark.run
def test_a_tied_embedding_is_looked_up_in_the_packed_weight() -> None:
    example = decoder.gpt2(length=6, vocab=96, dim=64, layers=1, heads=2)
    small = turbine.aot.quantize(example.model, args=example.args)
    assert small.quantization is not None
    assert "tokens.weight" not in {kept.name for kept in small.quantization.kept}
    (theirs,) = eager(small, *example.args)
    assert_alike(small.compile()(*example.args), theirs, 1e-5)


class Lookups(nn.Module):
    """Every way to look a row up in a weight that a product uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(40, 24))

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x @ self.table.t(),
            functional.embedding(ids % 40, self.table),
            self.table[ids],
            self.table.index_select(0, ids[0] % 40),
        )


@shapes
@pytest.mark.run
@pytest.mark.parametrize(("dtype", "bits"), [(torch.int64, 4), (torch.int32, 8)])
def test_embedding_lookups_take_any_index(dtype: torch.dtype, bits: int) -> None:
    args = (torch.tensor([[0, 39, 7], [-1, -40, 3]], dtype=dtype), torch.randn(1, 24))
    small = turbine.aot.quantize(Lookups(), args=args, bits=bits, group_size=16)
    assert small.quantization is not None
    assert not small.quantization.kept
    assert_alike(small.compile()(*args), eager(small, *args), ROUNDING)


def test_empty_weights_are_not_packed() -> None:
    small = turbine.aot.quantize(Fn(lambda x: x @ torch.ones(0, 4)), args=(torch.ones(2, 0),))
    assert small.quantization is not None
    assert not small.quantization.layers


def test_quantization_does_not_change_the_given_export() -> None:
    output = turbine.aot.export(nn.Linear(64, 32), args=(torch.ones(1, 64),))
    text, code, weights = output.text(), output.program.text(), dict(output.program.weights)
    turbine.aot.quantize(output)
    assert output.text() == text
    assert output.program.text() == code
    assert output.program.weights == weights
    assert output.quantization is None


def test_the_report_has_the_original_shape_of_a_weight() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 32))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    report = turbine.aot.quantize(Product(), args=(torch.ones(1, 64),)).quantization
    assert report is not None
    assert [layer.shape for layer in report.layers] == [(64, 32)]


def test_the_report_has_bytes_and_errors() -> None:
    model = nn.Linear(64, 32)
    report = turbine.aot.quantize(model, args=(torch.ones(1, 64),)).quantization
    assert report is not None
    (layer,) = report.layers
    error = grouped_product.pack(model.weight, 4, 32).unpacked() - model.weight.detach()
    assert (layer.name, layer.shape, layer.bits, layer.group_size) == ("weight", (32, 64), 4, 32)
    assert (layer.bytes_before, layer.bytes_after) == (32 * 64 * 4, 32 * 64 // 2 + 32 * 2 * 2)
    assert layer.max_error == error.abs().max().item()
    rms = model.weight.detach().square().mean().sqrt()
    assert layer.rms_error == pytest.approx((error.square().mean().sqrt() / rms).item())
    assert report.bytes_before == layer.bytes_before + 32 * 4
    assert report.bytes_after == layer.bytes_after + 32 * 4
    assert "8.0 KiB" in str(report)


@pytest.fixture(scope="module")
def blocks() -> ExportOutput:
    torch.manual_seed(0)
    model = nn.Sequential(*(decoder.LlamaBlock(64, 128, 2, 1) for _ in range(2)))
    return turbine.aot.export(model, args=(torch.ones(1, 1, 64),))


def test_patterns_choose_layers(blocks: ExportOutput) -> None:
    chosen = turbine.aot.quantize(blocks, include=["1.*"], exclude=["*.gate", "*.attention.*"])
    assert chosen.quantization is not None
    assert [row.name for row in chosen.quantization.layers] == ["1.up.weight", "1.down.weight"]
    why = {kept.name: kept.why for kept in chosen.quantization.kept}
    assert why["1.gate.weight"] == "excluded by include or exclude"
    assert why["0.attention_norm.weight"] == "not the weight of a matmul"


def test_patterns_match_every_module_of_a_tied_weight() -> None:
    example = decoder.gpt2(length=4, vocab=32, dim=32, layers=1, heads=2)
    kept = turbine.aot.quantize(example.model, args=example.args, exclude=["lm_head"]).quantization
    assert kept is not None
    assert "tokens.weight" in {row.name for row in kept.kept}


def test_weights_that_are_not_finite_are_not_packed() -> None:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight[0, 0] = torch.inf
    report = turbine.aot.quantize(model, args=(torch.ones(1, 4),)).quantization
    assert report is not None
    assert not report.layers


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"bits": 3}, "bits=3"),
        ({"group_size": 0}, "group_size=0"),
        ({"group_size": 2.5}, "group_size=2.5"),
        ({"include": ["*.gat"]}, r"unknown layer to quantize '\*.gat'; valid: ..gate"),
        ({"exclude": ["2.*"]}, "unknown layer"),
        ({"exclude": "*.gate"}, "a list of patterns"),
        ({"dynamic_shapes": {}}, "exported already"),
    ],
)
def test_invalid_input_is_rejected(
    blocks: ExportOutput, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(errors.ConfigError, match=complaint):
        turbine.aot.quantize(blocks, **options)


@pytest.mark.run
def test_quantized_artifacts_are_smaller(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1408), nn.SiLU(), nn.Linear(1408, 512))
    x = torch.randn(1, 512)
    small = turbine.aot.quantize(model, args=(x,))
    artifact = small.compile(tmp_path / "small.turbine")
    assert small.quantization is not None
    assert small.quantization.bytes_before >= 7 * small.quantization.bytes_after
    # The whole file, code included, against the weights alone.
    size = (tmp_path / "small.turbine").stat().st_size
    assert small.quantization.bytes_before >= 3.5 * size
    assert_alike(artifact(x), eager(small, x)[0], 1e-5)


def test_quantized_exports_compile_for_other_targets() -> None:
    small = turbine.aot.quantize(nn.Linear(64, 32), args=(torch.ones(1, 64),))
    assert "stream.executable" in small.text()
    artifact = small.compile(target="cuda:sm_80")
    assert artifact.target.kind == "cuda"


# Prints by how many bytes the peak of resident memory rose while an artifact was loaded and called.
GROWTH = """
import re, sys
from pathlib import Path
import numpy, turbine
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
turbine.load(sys.argv[1])(numpy.ones((1, 1024), dtype=numpy.float32))  # starts the threads
x = numpy.ones((int(sys.argv[3]), 4096), dtype=numpy.float32)
before = peak()
turbine.load(sys.argv[2])(x)
print(peak() - before)
"""


@shapes
@pytest.mark.run
@pytest.mark.parametrize("rows", [1, 64])
def test_weights_are_not_unpacked_in_memory(tmp_path: Path, rows: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4096, 4096, bias=False), torch.randn(rows, 4096)
    small = turbine.aot.quantize(model, args=(x,))
    small.compile(tmp_path / "small.turbine")
    first = turbine.aot.export(nn.Linear(1024, 1024), args=(torch.ones(1, 1024),))
    first.compile(tmp_path / "first.turbine")
    paths = [str(tmp_path / name) for name in ("first.turbine", "small.turbine")]
    command = [sys.executable, "-c", GROWTH, *paths, str(rows)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < model.weight.nbytes * {1: 0.25, 64: 0.5}[rows]


@shapes
@pytest.mark.run
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_with_inf_is_nan_and_others_are_unaffected(bits: int) -> None:
    layer = nn.Linear(64, 6, bias=False).requires_grad_(False)
    x = torch.randn(3, 64)
    small = turbine.aot.quantize(layer, args=(x,), bits=bits).compile()
    expected = small(x)
    for value in (float("inf"), float("-inf"), float("nan")):
        x[1, 5] = value
        found = small(x)
        assert found[1].isnan().all()
        torch.testing.assert_close(found[::2], expected[::2])


CUDA = TargetQuery(lambda: target.parse("cuda"))


def test_transforms_are_kept_for_other_targets() -> None:
    layer = nn.Linear(64, 6, bias=False)
    small = turbine.aot.quantize(layer, args=(torch.ones(1, 64),), bits=8)
    renamed = small.transform(RenameParameters({"weight.packed": "packed"}))
    assert '"packed"' in renamed.lowered_for(CUDA).text()


# Compiled modules.

torch.manual_seed(0)
GIVEN, CLOSED_OVER, OWN = nn.Linear(64, 48), nn.Linear(48, 64, bias=False), nn.Linear(64, 32)


class Several(aot.CompiledModule):
    """A weight for each way to come to one, and state."""

    params = aot.export_parameters(GIVEN)
    unused = aot.export_global(torch.ones(3))
    total = aot.export_global(torch.zeros(64), mutable=True)
    _head = torch.export.export(OWN, (torch.ones(2, 64),))

    def main(self, x=aot.AbstractTensor(2, 64)):  # type: ignore[no-untyped-def]
        y = self.given(x, self.params)
        z = self.closed_over(y)
        self.total = self.add(self.total, z)
        return self._head(z)

    def again(self, x=aot.AbstractTensor(None, 64)):  # type: ignore[no-untyped-def]
        return self.given(x, self.params)

    @aot.jittable
    def given(x: Tensor, params: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(GIVEN, params, (x,))

    @aot.jittable
    def closed_over(x: Tensor) -> Any:
        return CLOSED_OVER(x)

    @aot.jittable
    def add(total: Tensor, x: Tensor) -> Tensor:
        return total + x.sum(0)


def packed_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    packed = grouped_product.pack(layer.weight, 4, 32).unpacked()
    return nn.functional.linear(x, packed, layer.bias).detach()


@pytest.fixture(scope="module")
def several() -> ExportOutput:
    return turbine.aot.quantize(Several)


@pytest.mark.run
def test_procedures_compute_with_packed_weights(several: ExportOutput) -> None:
    artifact = several.compile()
    x = torch.randn(2, 64)
    y = packed_linear(GIVEN, x)
    z = packed_linear(CLOSED_OVER, y)
    assert_alike(artifact.main(x), packed_linear(OWN, z), 1e-5)
    assert_alike(artifact.state["total"], z.sum(0), 1e-5)
    assert_alike(artifact.again(x[:1]), y[:1], 1e-5)


def test_packed_weights_of_a_compiled_module_are_stored_once(several: ExportOutput) -> None:
    report = several.quantization
    assert report is not None
    names = {layer.name for layer in report.layers}
    assert len(report.layers) == 3
    assert "params.weight" in names
    held = {w.name: w.tensor for w in several.lowered.external}
    assert held.keys() == {
        *(f"{name}.{part}" for name in names for part in ("packed", "scales")),
        *("params.bias", "unused", "bias"),
    }
    total = sum(tensor.nbytes for tensor in held.values())
    assert report.bytes_after == total + 64 * 4
    assert {row.name for row in report.kept} == {"params.bias", "unused", "bias", "total"}


def test_an_export_of_a_compiled_module_is_quantized_by_patterns() -> None:
    plain = turbine.aot.export(Several)
    some = turbine.aot.quantize(plain, exclude=["params.*"])
    assert some.quantization is not None
    assert "params.weight" in {row.name for row in some.quantization.kept}
    assert {w.name for w in plain.lowered.external} > {"params.weight"}
    with pytest.raises(errors.ConfigError, match="unknown layer to quantize 'heads'"):
        turbine.aot.quantize(plain, include=["heads"])


def test_quantized_compiled_modules_compile_for_other_targets(several: ExportOutput) -> None:
    assert "stream.executable" in several.text()
    other = several.lowered_for(CUDA)
    assert "stream.executable" not in other.text()
    assert [w.name for w in other.lowered.external] == [w.name for w in several.lowered.external]
