"""Groups of ops as kernels: what is fused, and that kernels compute it, without a GPU.

Kernels run in the interpreter, some in Triton's; all are compiled for a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from tests.kernel.triton_interpreter import triton_interpreter
from turbine import config
from turbine.dynamo import gpu_graphs, graphs, quick_ops
from turbine.dynamo.gpu_graphs import FusedPart
from turbine.dynamo.records import GraphRecord
from turbine.kernel.call.kernel import Kernel
from turbine.library import fusion_rules
from turbine.library.fused import FusedKernel

aten = torch.ops.aten
Run = Callable[..., Any]
HALF, BF16 = torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def faults() -> Iterator[None]:
    with config.override(raise_faults=True):
        yield


def interpret(kernel: Kernel, *args: Tensor) -> Any:
    return kernel.interpret(*args)


def run_as_triton(kernel: Kernel, *args: Tensor) -> Any:
    return triton_interpreter().call(kernel, *args)


class Interpreted(nn.Module):
    """A part whose kernel runs on the CPU."""

    def __init__(self, fused: FusedKernel, run: Run) -> None:
        super().__init__()
        self.fused = fused
        self.run = run

    def forward(self, *bases: Tensor) -> list[Tensor]:
        made = self.run(self.fused.kernel, *self.fused.views(bases))
        values = [node.meta["val"] for node in self.fused.outputs]
        results = made if isinstance(made, tuple) else (made,)
        return [
            result.as_strided(value.shape, value.stride())
            for result, value in zip(results, values, strict=True)
        ]


def fuse(graph: fx.GraphModule, run: Run, record: GraphRecord) -> fx.GraphModule:
    outer = gpu_graphs.fuse(graph, record, is_forced=True, device="cpu")
    for name, part in list(outer.named_children()):
        if isinstance(part, FusedPart):
            delattr(outer, name)
            outer.add_module(name, Interpreted(part.kernel, run))
    return outer


def kernels_of(function: Run, *args: Any, run: Run = interpret) -> list[dict[str, int]]:
    """The ops of each kernel, after comparing values, dtypes and strides with PyTorch."""
    graph = make_fx(function, tracing_mode="fake")(*args)
    record = GraphRecord("inference")
    outer = fuse(graph, run, record)
    results, expected = outer(*args), function(*args)
    torch.testing.assert_close(results, expected, equal_nan=True)
    for result, wanted in zip(_tensors(results), _tensors(expected), strict=True):
        assert result.stride() == wanted.stride()
    return [dict(_by_name(part.ops)) for part in record.parts]


def _by_name(ops: Mapping[str, int]) -> Counter[str]:
    """The ops of a kernel, overloads together."""
    return Counter(op.split(".")[1] for op in Counter(ops).elements())


def _tensors(results: Any) -> Sequence[Tensor]:
    return [results] if isinstance(results, Tensor) else results


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def chain(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias) * 2 - x


def norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return F.layer_norm(total, (x.shape[-1],), w, b), total


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * scaled.to(x.dtype)


def attention_weights(x: Tensor, hidden: Tensor) -> Tensor:
    return torch.softmax((x * 0.125).masked_fill(hidden, float("-inf")), -1)


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


NORM = (x(4, 6, 96), x(4, 6, 96) * 2, x(96), x(96) + 1)
CASES: dict[str, tuple[Run, tuple[Tensor, ...], list[dict[str, int]]]] = {
    "chain": (chain, (x(5, 70), x(70)), [{"add": 1, "gelu": 1, "mul": 1, "sub": 1}]),
    "norm": (norm, NORM, [{"add": 1, "native_layer_norm": 1}]),
    "rms norm": (
        rms_norm,
        (x(3, 7, 64, dtype=HALF), x(64, dtype=HALF)),
        [{"_to_copy": 2, "pow": 1, "mean": 1, "add": 1, "rsqrt": 1, "mul": 2}],
    ),
    "masked softmax": (
        attention_weights,
        (x(2, 3, 40, 40), torch.ones(40, 40, dtype=torch.bool).triu(1)),
        [{"mul": 1, "masked_fill": 1, "_softmax": 1}],
    ),
    "halves of a tensor": (swiglu, (x(3, 5, 64),), [{"silu": 1, "mul": 1}]),
    "a softmax alone": (partial(torch.softmax, dim=-1), (x(4, 50),), [{"_softmax": 1}]),
    "channels last": (
        lambda x, y: F.relu(x * y) + 1,
        (
            x(2, 5, 6, 7).to(memory_format=torch.channels_last),
            x(1, 5, 1, 1),
        ),
        [{"mul": 1, "relu": 1, "add": 1}],
    ),
    "transposed": (lambda x: torch.exp(x.T) * 2, (x(30, 40),), [{"exp": 1, "mul": 1}]),
    "expanded": (lambda x: (x.expand(4, 5, 6) + 1) * 2, (x(5, 1),), [{"add": 1, "mul": 1}]),
    "booleans": (
        lambda x, y: (x > y) & (y > 0),
        (x(40), x(40).flip(0)),
        [{"gt": 2, "bitwise_and": 1}],
    ),
    "one element": (lambda x: (x + 1) * 2, (torch.tensor(3.0),), [{"add": 1, "mul": 1}]),
    "integers": (
        lambda x: torch.where(x * 3 > 4, x, -x) + 1,
        (torch.arange(-5, 6),),
        [{"mul": 1, "gt": 1, "neg": 1, "where": 1, "add": 1}],
    ),
    "promoted": (
        lambda x, y: (x + y) * 2,
        (x(40, dtype=BF16), x(40)),
        [{"add": 1, "mul": 1}],
    ),
    "rounded": (
        lambda x: ((x + 1e-3) * 3 - x) / 7,
        (x(300, dtype=BF16),),
        [{"add": 1, "mul": 1, "sub": 1, "div": 1}],
    ),
    "not a number": (
        lambda x: F.relu(x).clamp(max=1) + torch.maximum(x, x * 2),
        (torch.tensor([float("nan"), float("inf"), -float("inf"), 0.5]),),
        [{"relu": 1, "clamp": 1, "mul": 1, "maximum": 1, "add": 1}],
    ),
    "arguments left out": (
        lambda x: F.leaky_relu(F.hardtanh(x * 3)) + F.relu6(x).clamp(min=0.1),
        (x(40),),
        [{"mul": 1, "hardtanh": 2, "leaky_relu": 1, "clamp": 1, "add": 1}],
    ),
    "variance": (
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1),
        (x(9, 33),),
        [{"mean": 1, "sub": 1, "var": 1, "add": 1, "div": 1}],
    ),
    "two kernels around a product": (
        lambda x, w: F.silu(torch.exp(x * 2) @ w) + 1,
        (x(8, 8), x(8, 8)),
        [{"mul": 1, "exp": 1}, {"silu": 1, "add": 1}],
    ),
    "an op between": (
        lambda x: (x * 2 + 1) + torch.cumsum(x * 2, 0),
        (x(6, 8),),
        [{"mul": 1, "add": 2}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_compute_what_pytorch_does(name: str) -> None:
    function, args, expected = CASES[name]
    assert kernels_of(function, *args) == expected


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["norm", "rms norm", "masked softmax", "halves of a tensor"])
def test_kernels_compute_the_same_as_triton(name: str) -> None:
    function, args, expected = CASES[name]
    assert kernels_of(function, *args, run=run_as_triton) == expected


# Arguments of ops whose rules need others than positive numbers, one for each tensor, and 2.5.
A, B = x(6, 40), x(6, 40).flip(0)
TRUE = A > 0
SAMPLES: dict[Any, tuple[Any, ...]] = {
    aten._log_softmax.default: (A, -1, False),
    aten._log_softmax_backward_data.default: (A, B.log_softmax(-1), -1, torch.float32),
    aten._softmax.default: (A, -1, False),
    aten._softmax_backward_data.default: (A, B.softmax(-1), -1, torch.float32),
    aten._to_copy.default: (TRUE,),
    aten.amax.default: (A, [-1], True),
    aten.amin.default: (A, [-1], True),
    aten.bitwise_and.Tensor: (TRUE, B > 0),
    aten.bitwise_not.default: (TRUE,),
    aten.bitwise_or.Tensor: (TRUE, B > 0),
    aten.clamp.default: (A, None, 0.5),
    aten.masked_fill.Scalar: (A, TRUE, 2.0),
    aten.masked_fill.Tensor: (A, TRUE, torch.tensor(2.0)),
    aten.mean.dim: (A, [-1], True),
    aten.native_dropout_backward.default: (A, TRUE, 2.0),
    aten.native_layer_norm.default: (A, [40], B[0], B[1], 1e-5),
    aten.pow.Tensor_Scalar: (A.abs() + 0.1, -0.5),
    aten.sum.dim_IntList: (A, [-1], True),
    aten.threshold_backward.default: (A, B, 0),
    aten.where.self: (TRUE, A, B),
}
KEYWORDS: dict[Any, dict[str, Any]] = {
    aten._to_copy.default: {"dtype": torch.float32},
    aten.var.correction: {"keepdim": True},
    aten.var_mean.correction: {"keepdim": True, "correction": 0},
}


# On the CPU, this op is traced as others.
WITHOUT_TRACE = {aten._fused_rms_norm.default}


@pytest.mark.parametrize(
    "op", [op for op in fusion_rules.RULES if op not in WITHOUT_TRACE], ids=str
)
def test_each_rule_computes_what_pytorch_does(op: Any) -> None:
    given = SAMPLES.get(op) or _arguments_of(op)
    places = [place for place, one in enumerate(given) if isinstance(one, Tensor)]

    def call(*tensors: Tensor) -> list[Tensor]:
        args = list(given)
        for place, tensor in zip(places, tensors, strict=True):
            args[place] = tensor
        made = op(*args, **KEYWORDS.get(op, {}))
        results = made if isinstance(made, tuple) else (made,)
        return [~one if one.dtype == torch.bool else one * 2 for one in results]

    (kernel,) = kernels_of(call, *[given[place] for place in places])
    assert op._opname in kernel


def _arguments_of(op: Any) -> tuple[Any, ...]:
    needed = [one for one in op._schema.arguments if not one.kwarg_only]
    tensors, axes = [B, A.abs() + 0.1], "Optional[List[int]]"
    values: list[Any] = []
    for one in needed:
        if str(one.type) == "Tensor":
            values.append(tensors.pop())
        elif str(one.type) == axes or not one.has_default_value():
            values.append([-1] if str(one.type) == axes else 2.5)
    return tuple(values)


def test_every_kernel_compiles_for_a_gpu() -> None:
    for function, args, _ in CASES.values():
        record = GraphRecord("inference")
        gpu_graphs.fuse(make_fx(function, tracing_mode="fake")(*args), record, True, device="cpu")
        for part in _parts(record):
            values = [node.meta["val"] for node in part.kernel.inputs]
            bases = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in values]
            assert ".entry" in part.kernel.kernel.text("ptx", *part.kernel.views(bases))


# Training, and ops that keep their order


def compiled(function: Run, records: list[GraphRecord]) -> Run:
    """A function whose forward and backward graphs have kernels, in the interpreter."""

    def compile(graph: fx.GraphModule, _: Any) -> Run:
        records.append(GraphRecord("forward"))
        made = fuse(graph, interpret, records[-1])
        quick_ops.use_quick_ops(made)
        return graphs.box(made)

    backend = aot_autograd(
        fw_compiler=compile,
        inference_compiler=compile,
        partition_fn=default_partition,
        decompositions={},
    )
    run: Run = torch.compile(function, backend=backend, fullgraph=True)
    return run


class Block(nn.Module):
    """A block of a transformer, without its products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = x + F.gelu(self.linear(self.norm(x)), approximate="tanh")
        weights = torch.softmax(y * 0.3 + mask, -1)
        return torch.log_softmax(F.silu(weights) * torch.sigmoid(y) + torch.tanh(y), -1)


def test_gradients_are_those_of_pytorch() -> None:
    records: list[GraphRecord] = []
    model, inputs = Block(), (x(4, 64).requires_grad_(), x(64))
    run = compiled(model, records)
    results = []
    for call in (model, run):
        result = call(*inputs)
        loss = (result * x(4, 64).flip(0)).sum()
        results.append((result, *torch.autograd.grad(loss, (inputs[0], *model.parameters()))))
    torch.testing.assert_close(results[1], results[0])
    backward = records[1].parts
    assert sum("backward" in op for part in backward for op in part.ops) >= 3


def test_writes_and_random_numbers_keep_their_order() -> None:
    def step(x: Tensor, state: Tensor) -> Tensor:
        before = torch.exp(state) * 2
        state.add_(1)
        noise = torch.rand_like(x)
        return before + F.dropout(x * noise + 1, 0.5) + torch.rand_like(x)

    records: list[GraphRecord] = []
    run = compiled(step, records)
    pairs = []
    for call in (step, run):
        state = x(5, 6)
        torch.manual_seed(0)
        pairs.append((call(x(5, 6), state), state))
    torch.testing.assert_close(pairs[1], pairs[0])
    assert records[0].parts


def test_rows_of_other_lengths_stay_in_pytorch() -> None:
    short, long = x(4, 8), x(1, 20000)
    assert kernels_of(partial(torch.softmax, dim=-1), short) == []
    assert kernels_of(partial(torch.softmax, dim=-1), long) == []
    assert kernels_of(partial(torch.softmax, dim=0), x(64, 64)) == []


def test_what_kernels_leave_open_stays_in_pytorch() -> None:
    assert kernels_of(lambda x: (x * 100).to(torch.int32).float(), x(40)) == []
    assert kernels_of(lambda x: x.pow(5) + 1, x(40)) == []


def test_views_and_products_are_called_with_less_overhead() -> None:
    def heads(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.linear(x, weight, bias).view(2, 3, 2, 4).transpose(1, 2)
        first, second = F.linear(hidden, weight[:4, :4]).chunk(2, -1)
        return first @ first.transpose(-1, -2), second.sum(0), hidden

    args = x(2, 3, 8), x(8, 8), x(8)
    graph = make_fx(heads, tracing_mode="fake")(*args)
    quick_ops.use_quick_ops(graph)
    torch.testing.assert_close(graph(*args), heads(*args))
    targets = Counter(node.target for node in graph.graph.nodes)
    assert targets[F.linear] == 1  # the other weight is a part of a tensor
    assert not targets[torch.ops.aten.t.default]


def test_a_view_of_a_tensor_with_other_strides_is_right() -> None:
    base = x(4, 6)
    view = quick_ops.view_of(base.T.contiguous().T, (6, 1), (6, 2), (2, 12), 1)
    assert torch.equal(view, base.as_strided((6, 2), (2, 12), 1))


def test_layers_share_a_kernel() -> None:
    def layers(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        for _ in range(2):
            x = F.silu(x * y) @ weight
        return F.silu(x * 2)

    record = GraphRecord("inference")
    args = x(8, 8), x(8, 8), x(8, 8)
    fuse(make_fx(layers, tracing_mode="fake")(*args), interpret, record)
    first, second, last = (part.kernel.kernel for part in _parts(record))
    assert first is second
    assert last is not first


def _parts(record: GraphRecord) -> list[FusedPart]:
    return [part for part in record.parts if isinstance(part, FusedPart)]


def test_without_triton_all_ops_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graphs, "find_spec", lambda name: None)
    graph = make_fx(chain, tracing_mode="fake")(x(5, 70), x(70))
    record = GraphRecord("inference")
    call = gpu_graphs.compile_graph(graph, record, "auto")
    torch.testing.assert_close(call([x(5, 70), x(70)]), chain(x(5, 70), x(70)))
    assert {op.reason for op in record.left} == {"kernels need Triton: pip install turbine[cuda]"}


def test_ops_of_pytorch_are_recorded_and_those_of_kernels_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = make_fx(lambda x, w: F.silu(x @ w * 2), tracing_mode="fake")(x(8, 8), x(8, 8))
    record = GraphRecord("inference")
    monkeypatch.setattr(gpu_graphs, "fuse", partial(gpu_graphs.fuse, device="cpu"))
    gpu_graphs.compile_graph(graph, record, "never")
    assert [op.op for op in record.left] == ["aten.mm.default"]
    assert record.left[0].is_chosen
    assert len(record.parts) == 1
