"""Matmul kernels with packed weights: which ops they replace, and that they match PyTorch."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.library.placing import AVX512, NEON, count, exported, placed
from turbine import target as targets
from turbine.capture.program import Program
from turbine.compiler import host, invoke, session, strategies
from turbine.library import linear as linear_module
from turbine.library.linear import linear, linear_by_amx
from turbine.lower.emission import TargetQuery
from turbine.lower.importer import lower_all
from turbine.mlir import context as mlir_context
from turbine.target import Target

pytestmark = pytest.mark.sweep(3)

aten = torch.ops.aten


class TwoProducts(nn.Module):
    """One product with a bias and one without, straight after it."""

    def __init__(self, columns: int = 100) -> None:
        super().__init__()
        self.first = nn.Linear(64, columns)
        self.second = nn.Linear(columns, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


def run(program: Program, model: nn.Module, *args: Tensor) -> Tensor:
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = dict(zip(program.inputs, args, strict=True))
    weights = {name: held[weight.name] for name, weight in program.weights.items()}
    places = [node.name for node in program.graph.graph.find_nodes(op="placeholder")]
    result: Tensor
    (result,) = program.graph(*[(weights | given)[place] for place in places])
    return result


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "width"),
    [(1, 37, 48, 48), (8, 64, 50, 12), (64, 40, 12, 12), (149, 33, 70, 32)],
)
def test_the_kernel_matches_torch(rows: int, depth: int, columns: int, width: int) -> None:
    x, weight, bias = (
        torch.randn(shape) for shape in ((rows, depth), (depth, columns), (columns,))
    )
    panels = -(-columns // width)
    padded = nn.functional.pad(weight, (0, panels * width - columns))
    packed = padded.view(depth, panels, width).permute(1, 0, 2).contiguous()
    expected = x @ weight + bias
    torch.testing.assert_close(linear(x, packed, bias), expected)
    torch.testing.assert_close(linear.interpret(x, packed, bias), expected)


def test_panels_are_read_in_place() -> None:
    linear(torch.randn(16, 64), torch.randn(4, 64, 48), torch.randn(192))
    plan = linear.text("plan")
    assert "b in place" in plan
    assert "b packed" not in plan


def test_matmuls_with_weights_are_replaced() -> None:
    model = TwoProducts()
    x = torch.randn(24, 64)
    program = exported(model, x)
    found = placed(program, AVX512)
    assert count(found, linear.op.op) == 2
    assert count(found, aten.mm.default, aten.addmm.default) == 0
    assert count(program, linear.op.op) == 0
    torch.testing.assert_close(run(found, model, x), model(x))


def test_ops_are_not_replaced_on_other_targets() -> None:
    program = exported(TwoProducts(), torch.randn(24, 64))
    assert placed(program, NEON) is program
    assert placed(program, targets.parse("hip:gfx942")) is program


@pytest.mark.parametrize(
    ("depth", "columns", "width"),
    [(64, 128, 64), (4096, 128, 32), (64, 96, 48), (64, 32, 32), (64, 100, 48), (8192, 128, 48)],
)
def test_panels_divide_the_columns_where_the_cache_allows(
    depth: int, columns: int, width: int
) -> None:
    assert linear_module.panel_width(depth, columns, AVX512) == width


class Changing(nn.Module):
    """Matmuls with state and with an argument instead of a weight."""

    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.randn(64, 96))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.state.add_(1)
        return x @ self.state, x @ y


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Changing(), (torch.randn(24, 64), torch.randn(64, 96))),
        (TwoProducts(30), (torch.randn(24, 64),)),
        (TwoProducts().double(), (torch.randn(24, 64, dtype=torch.float64),)),
    ],
    ids=["not constant", "few columns", "float64"],
)
def test_other_matmuls_are_not_replaced(model: nn.Module, args: tuple[Tensor, ...]) -> None:
    program = exported(model, *args)
    assert placed(program, AVX512) is program


@pytest.fixture
def kernels_here(monkeypatch: pytest.MonkeyPatch) -> Target:
    """This machine's target, with kernels enabled."""
    target = host.default_target()
    monkeypatch.setattr(linear_module, "FASTER_ON", {target.vector_bytes})
    return target


@pytest.mark.parametrize(
    ("rows", "dtype"), [(1, torch.float32), (200, torch.float32), (33, torch.float16)]
)
def test_artifacts_match_eager(kernels_here: Target, rows: int, dtype: torch.dtype) -> None:
    model, x = TwoProducts().eval().to(dtype), torch.randn(rows, 64).to(dtype)
    exported = turbine.aot.export(model, args=(x,))
    assert placed(exported.program, kernels_here) is not exported.program
    expected = model(x).detach()
    # Where f16 is rounded to the other side before the second layer, small elements differ by more.
    unit = torch.finfo(dtype).eps * expected.abs().max().item()
    limits = {} if dtype == torch.float32 else {"rtol": 1e-3, "atol": unit}
    torch.testing.assert_close(exported.compile()(x), expected, **limits)


def in_f32(model: nn.Module, x: Tensor) -> Tensor:
    """What a model of narrow floats gives without rounding; PyTorch warns of bf16 on some CPUs."""
    result: Tensor = deepcopy(model).float()(x.float())
    return result.detach().to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_stay_narrow(dtype: torch.dtype) -> None:
    model, x = TwoProducts().eval().to(dtype), torch.randn(24, 64).to(dtype)
    found = placed(exported(model, x), AVX512)
    calls = found.graph.graph.find_nodes(op="call_function", target=linear.op.op)
    assert [call.args[1].meta["val"].dtype for call in calls] == [dtype, dtype]
    assert [call.args[0].meta["val"].dtype for call in calls] == [torch.float32, torch.float32]
    torch.testing.assert_close(run(found, model, x), in_f32(model, x), atol=1e-2, rtol=2e-2)


def test_matmuls_of_bf16_use_amx() -> None:
    model, x = TwoProducts(96).eval().bfloat16(), torch.randn(24, 64).bfloat16()
    with_amx = replace(AVX512, features="+avx512f,+amx-tile,+amx-bf16")
    found = placed(exported(model, x), with_amx)
    calls = found.graph.graph.find_nodes(op="call_function", target=linear_by_amx.op.op)
    assert [tuple(call.args[1].meta["val"].shape) for call in calls] == [(3, 64, 32), (2, 96, 32)]
    assert count(found, aten._to_copy.default) == 1  # the bias
    torch.testing.assert_close(run(found, model, x), in_f32(model, x), atol=1e-2, rtol=2e-2)


def test_artifacts_support_a_dynamic_number_of_rows(kernels_here: Target) -> None:
    model, rows = TwoProducts().eval(), torch.export.Dim("rows", min=2)
    exported = turbine.aot.export(model, args=(torch.randn(24, 64),), dynamic_shapes=({0: rows},))
    assert placed(exported.program, kernels_here) is not exported.program
    artifact = exported.compile()
    for length in (2, 64, 131):
        x = torch.randn(length, 64)
        torch.testing.assert_close(artifact(x), model(x).detach())


@pytest.mark.parametrize(
    ("model", "depth"),
    [
        (TwoProducts(), 64),
        (TwoProducts(800).half(), 64),
        (TwoProducts(800).bfloat16(), 64),
        (nn.Linear(40_000, 49), 40_000),
    ],
    ids=["f32", "f16", "bf16", "1.8 MB of padding"],
)
def test_weights_are_packed_once(kernels_here: Target, model: nn.Module, depth: int) -> None:
    x = torch.randn(24, depth).to(next(model.parameters()).dtype)
    found = placed(exported(model, x), kernels_here)
    lowered = lower_all({"main": found}, TargetQuery(lambda: kernels_here))
    source = mlir_context.to_bytecode(lowered.module)
    flags = (*strategies.COMMON, *strategies.TABLE[0].flags, *kernels_here.flags)
    outcome = invoke.run(session.Request(source, flags, until=session.DISPATCHES))
    assert outcome.data is not None, outcome.diagnostics
    names = [dispatch["name"] for dispatch in json.loads(outcome.data)]
    called = [name for name in names if not name.startswith("_initializer")]
    others = [name for name in called if not name.startswith("linear")]
    assert len(called) - len(others) == len([*model.modules()]) - bool([*model.children()])
    assert not [name for name in others if "elementwise" not in name or "transpose" in name]
    assert x.dtype != torch.float32 or not others
    assert len(names) > len(called)
