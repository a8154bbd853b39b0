"""The ops of `turbine.ops`: results in every mode, gradients, and errors."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import turbine
from tests.commit_seed import Drawn
from tests.compiled import compiled, tensors
from tests.models import relative_error
from turbine import errors, ops
from turbine.dynamo import records
from turbine.runtime import run_trace

pytestmark = pytest.mark.sweep(3)

modes = pytest.mark.sweep(1, "modes")

HALVES = (torch.float16, torch.bfloat16)
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Sample:
    """A call of an op, and a function that computes the same in float64."""

    op: Any  # torch's
    call: Callable[..., Any]
    meaning: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple[Any, ...] = ()  # arguments after the tensors
    result: torch.dtype | None = None  # of narrower arguments; None where it is the argument's
    computed: torch.dtype = torch.float64  # the widest that anything is computed in
    dynamic: dict[int, int] | None = None  # argument -> axis whose size an export leaves open

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Arguments, always the same."""
        generator = torch.Generator().manual_seed(0)
        wide = [
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes
        ]
        return tuple(tensor.to(dtype) for tensor in wide)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    count = 2 * cos.shape[-1]
    turned, rest = x[..., :count], x[..., count:]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    spun = torch.complex(first, second) * torch.complex(cos, sin)
    pair = [spun.real, spun.imag]
    return torch.cat(
        [torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest], -1
    )


def inserted(src: Tensor, dst: Tensor) -> Tensor:
    result = dst.clone()
    result[1:3, 2:9:3] = src
    return result


def convolved(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, (2, 1), 0, (1, 2))
    return y.permute(0, 2, 3, 1)


def convolved_in_groups(x: Tensor, w: Tensor) -> Tensor:
    """x is [c, g, t, n], w [g, t, c, f], and the result [t, n, g, f] without its last window."""
    images, filters = x.permute(3, 1, 0, 2).flatten(1, 2), w.permute(0, 3, 2, 1).flatten(0, 1)
    y: Tensor = F.conv1d(images, filters, stride=2, groups=2)
    y = y.unflatten(1, (2, -1)).permute(3, 0, 1, 2)[:-1]
    return y


PACKED = ops.pack_weight(
    torch.randn(7, 37, generator=torch.Generator().manual_seed(1)), group_size=8
)
TAKEN_APART = (PACKED.values, PACKED.scales, PACKED.factor, PACKED.columns, PACKED.bits)
attend = F.scaled_dot_product_attention
turbine_ops = torch.ops.turbine
SAMPLES = {
    "rms_norm": Sample(
        turbine_ops.rms_norm.default,
        partial(ops.rms_norm, eps=1e-5),
        lambda x, w: F.rms_norm(x, [5], w, 1e-5),
        ((3, 5), (5,)),
        dynamic={0: 0},
    ),
    "rotary halves": Sample(
        turbine_ops.rotary_embedding.default,
        ops.rotary_embedding,
        rotated,
        ((2, 3, 5, 9), (5, 4), (5, 4)),
        dynamic={0: 2, 1: 0, 2: 0},
    ),
    "rotary pairs": Sample(
        turbine_ops.rotary_embedding.default,
        partial(ops.rotary_embedding, interleaved=True),
        partial(rotated, interleaved=True),
        ((2, 3, 5, 8), (2, 1, 5, 4), (2, 1, 5, 4)),
        dynamic={0: 1},
    ),
    "attention over shared heads": Sample(
        turbine_ops.attention.default,
        partial(ops.attention, causal=True),
        partial(attend, is_causal=True, enable_gqa=True),
        ((1, 4, 5, 3), (1, 2, 7, 3), (1, 2, 7, 3)),
        dynamic={1: 2, 2: 2},
    ),
    "attention under a mask": Sample(
        turbine_ops.attention.default,
        partial(ops.attention, scale=0.3),
        partial(attend, scale=0.3),
        ((2, 5, 3), (2, 7, 3), (2, 7, 6), (5, 7)),
        dynamic={0: 1, 3: 0},
    ),
    "insert_slice": Sample(
        turbine_ops.insert_slice.default,
        ops.insert_slice,
        lambda src, dst, offset, strides: inserted(src, dst),
        ((2, 3), (5, 11)),
        rest=([1, 2], [1, 3]),
        dynamic={1: 1},
    ),
    "conv_2d_nhwc_fhwc": Sample(
        turbine_ops.conv_2d_nhwc_fhwc.default,
        ops.conv_2d_nhwc_fhwc,
        lambda x, w, strides, dilations: convolved(x, w),
        ((3, 7, 9, 5), (4, 3, 2, 5)),
        rest=([2, 1], [1, 2]),
        result=torch.float32,
        dynamic={0: 0},
    ),
    "generic_conv": Sample(
        turbine_ops.generic_conv.default,
        ops.generic_conv,
        lambda x, w, *rest: convolved_in_groups(x, w),
        ((3, 2, 9, 2), (2, 3, 3, 5)),
        rest=([2], [1], "cgtn", "gtcf", "tngf", [3, -1, 2, 5]),
        result=torch.float32,
        dynamic={0: 3},
    ),
    "quantized_matmul": Sample(
        turbine_ops.quantized_matmul.default,
        lambda x: ops.quantized_matmul(x, PACKED),
        lambda x: x @ PACKED.unpacked().to(x.dtype).t(),
        ((2, 3, 37),),
        computed=torch.float32,
        dynamic={0: 0},
    ),
}
names = pytest.mark.parametrize("name", SAMPLES)


def close(name: str, found: Tensor, args: Sequence[Tensor]) -> None:
    """Check a result against float64."""
    sample = SAMPLES[name]
    given = args[0].dtype
    expected = sample.meaning(*(tensor.double() for tensor in args), *sample.rest)
    assert found.dtype == torch.promote_types(given, sample.result or given)
    assert found.shape == expected.shape
    tolerance = max(ROUNDING[found.dtype], ROUNDING[sample.computed])
    assert relative_error(found.double(), expected) <= tolerance


class Every(nn.Module):
    """All samples in one program, which is compiled once."""

    def forward(self, arguments: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
        return {
            name: SAMPLES[name].call(*args, *SAMPLES[name].rest) for name, args in arguments.items()
        }


@modes
@pytest.mark.run
@names
def test_eager_calls_match_the_reference(name: str) -> None:
    args = SAMPLES[name].tensors(torch.float64)
    before = [tensor.clone() for tensor in args]
    close(name, SAMPLES[name].call(*args, *SAMPLES[name].rest), args)
    assert all(map(torch.equal, args, before))


@pytest.mark.run
def test_torch_compile_compiles_the_whole_op() -> None:
    dtypes = zip(SAMPLES.items(), cycle(HALVES), strict=False)
    arguments = {name: sample.tensors(dtype) for (name, sample), dtype in dtypes}
    with records.collect() as heard:
        results = compiled(Every(), fullgraph=True)(arguments)
    for name, args in arguments.items():
        close(name, results[name], args)
    assert [left.op for record in heard for left in record.left] == []


@pytest.mark.run
@pytest.mark.sweep(1)
def test_exports_support_dynamic_shapes(drawn: Drawn) -> None:
    names = drawn(SAMPLES, 2)
    arguments = {name: SAMPLES[name].tensors(torch.float32) for name in names}
    open_sizes = {name: _open(SAMPLES[name]) for name in names}
    exported = turbine.aot.export(Every(), args=(arguments,), dynamic_shapes=(open_sizes,))
    artifact = exported.compile()
    for sizes in (0, 2):
        larger = {name: _larger(SAMPLES[name], args, sizes) for name, args in arguments.items()}
        results = artifact(larger)
        for name, args in larger.items():
            close(name, results[name], args)


def _open(sample: Sample) -> tuple[Any, ...]:
    dynamic = sample.dynamic or {}
    places = range(len(sample.shapes))
    return tuple({dynamic[place]: Dim.AUTO} if place in dynamic else None for place in places)


def _larger(sample: Sample, args: Sequence[Tensor], by: int) -> tuple[Tensor, ...]:
    dynamic = sample.dynamic or {}
    return tuple(
        torch.cat([arg, arg.narrow(dynamic[place], 0, by)], dynamic[place])
        if place in dynamic
        else arg
        for place, arg in enumerate(args)
    )


@modes
@pytest.mark.parametrize("name", {sample.op: name for name, sample in SAMPLES.items()}.values())
def test_opcheck_passes(name: str) -> None:
    sample = SAMPLES[name]
    args = [tensor.requires_grad_() for tensor in sample.tensors(torch.float64)]
    rest = TAKEN_APART if name == "quantized_matmul" else sample.rest
    torch.library.opcheck(sample.op, (*args, *rest))


@modes
@pytest.mark.run
@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "quantized_matmul"])
def test_gradients_match_finite_differences(name: str) -> None:
    sample = SAMPLES[name]
    args = [tensor.requires_grad_() for tensor in sample.tensors(torch.float64)]
    assert torch.autograd.gradcheck(lambda *a: sample.call(*a, *sample.rest), args, fast_mode=True)


@pytest.mark.run
def test_a_quantized_matmul_has_a_gradient_for_x() -> None:
    x, weight = torch.randn(3, 37, requires_grad=True), torch.randn(3, 7)
    ops.quantized_matmul(x, PACKED).backward(weight)
    assert x.grad is not None
    assert relative_error(x.grad, weight @ PACKED.unpacked()) <= 1e-6


@pytest.mark.run
def test_rotary_tables_are_accurate_for_large_positions() -> None:
    positions = torch.tensor([0, 3, 8191, 1_000_000])
    angles = positions.double()[:, None] * 500000.0 ** (-torch.arange(0, 6, 2).double() / 6)
    for found, expected in zip(
        ops.rotary_tables(positions, 6, 500000.0), (angles.cos(), angles.sin()), strict=True
    ):
        assert relative_error(found, expected) <= 1e-7


@pytest.mark.run
def test_fully_masked_rows_and_empty_tensors() -> None:
    q, k, none = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.zeros(2, 0, 4)
    hidden = torch.tensor([[True], [False], [True]]).expand(3, 5)
    seen = ops.attention(q, k, k, hidden)
    assert torch.equal(seen[:, 1], torch.zeros(2, 4))
    assert torch.equal(ops.attention(q, none, none), torch.zeros(2, 3, 4))
    assert ops.attention(none, k, k).shape == (2, 0, 4)
    assert ops.rms_norm(none).shape == none.shape
    assert torch.equal(ops.insert_slice(none, k, [0, 5, 0], [1, 1, 1]), k)


@pytest.mark.run
def test_mask_and_causal_are_combined() -> None:
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    past = torch.ones(3, 5, dtype=torch.bool).tril()
    mask = torch.randn(3, 5).masked_fill(torch.rand(3, 5) > 0.7, float("-inf"))
    found = ops.attention(q, k, k, mask, causal=True)
    both = mask.masked_fill(~past, float("-inf"))
    assert relative_error(found, attend(q, k, k, both)) <= 1e-6


@pytest.mark.parametrize(
    ("layouts", "x", "w"),
    [
        (("ncdhw", "fcdhw", "nfdhw"), (2, 3, 4, 5, 6), (5, 3, 2, 3, 1)),
        (("nhwg", "hwg", "nhwg"), (2, 6, 5, 4), (3, 2, 4)),  # each channel by itself
        (("hwc", "chwf", "fwh"), (6, 5, 4), (4, 3, 2, 3)),  # one image
    ],
)
def test_convolutions_of_any_layout_match_the_reference(
    layouts: tuple[str, str, str], x: Sequence[int], w: Sequence[int]
) -> None:
    xl, wl, ol = layouts
    image, weight = torch.randn(*x), torch.randn(*w)
    spatial = [letter for letter in xl if letter not in "ngcf"]
    ones = [1] * len(spatial)
    found = ops.generic_conv.function(image, weight, ones, ones, *layouts, None)
    windows = image
    for letter in spatial:
        windows = windows.unfold(xl.index(letter), weight.shape[wl.index(letter)], 1)
    taps = "".join(letter.upper() for letter in spatial)
    within = "".join(letter.upper() if letter in spatial else letter for letter in wl)
    assert (
        relative_error(found, torch.einsum(f"{xl}{taps},{within}->{ol}", windows, weight)) <= 1e-6
    )


@pytest.mark.run
def test_another_offset_does_not_recompile() -> None:
    src, dst = torch.randn(2, 3), torch.randn(9, 3)
    ops.insert_slice(src, dst, [4, 0], [1, 1])
    kernels = vars(ops.insert_slice)["launcher"].kernels
    before = len(kernels)
    for start in (5, 6, 7):
        result = ops.insert_slice(src, dst, [start, 0], [1, 1])
        assert torch.equal(result[start : start + 2], src)
    assert len(kernels) == before


# What only exported programs keep


class Placed(nn.Module):
    """Every marker, each followed by a trace."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = ops.transfer_to_logical_device("1", x) + 1
        y = ops.barrier_on_logical_device("a", y)
        ops.trace_tensor("placed", y)
        y = ops.compute_barrier_start(y)
        y = ops.compute_barrier_end(y * 2)
        return y


@pytest.fixture
def sent() -> Iterator[list[tuple[str, Tensor]]]:
    """Traced tensors, in order."""
    seen: list[tuple[str, Tensor]] = []
    before = run_trace.set_tensor_callback(lambda key, tensor: seen.append((key, tensor.clone())))
    yield seen
    run_trace.set_tensor_callback(before)


@pytest.mark.run
def test_exports_keep_markers_and_run_on_available_devices(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    out = turbine.aot.export(Placed(), args=(x,), dynamic_shapes=({0: Dim.AUTO},))
    lines = [line for line in out.text().splitlines() if "flow." in line or "barrier" in line]
    for line, word in zip(
        lines,
        [
            "transfer",
            "@__device_a",
            'trace "placed"',
            "compute_barrier.start",
            "compute_barrier.end",
        ],
        strict=True,
    ):
        assert word in line
    assert torch.equal(out.compile()(torch.ones(3, 3)), torch.full((3, 3), 4.0))
    assert "placed" in capfd.readouterr().err
    assert "@__device_1" in out.text()


@pytest.mark.run
def test_traces_are_emitted_once_a_call_in_program_order(
    sent: list[tuple[str, Tensor]],
) -> None:
    def traced(x: Tensor) -> Tensor:
        y = x.sin() * 2
        ops.trace_tensor("sine", y)
        ops.trace_tensor("again", y)
        z: Tensor = ops.transfer_to_logical_device("0", (y.exp() + y) * 3)
        return z.sum()

    x, twin = (torch.linspace(0, 1, 6, requires_grad=True) for _ in range(2))
    with records.collect() as heard:
        compiled(traced, fullgraph=True)(x).backward()
    assert [key for key, _ in sent] == ["sine", "again"]
    traced(twin).backward()
    assert [key for key, _ in sent] == ["sine", "again"] * 2
    assert relative_error(sent[0][1], sent[2][1]) <= 1e-6
    assert relative_error(tensors(x.grad)[0], tensors(twin.grad)[0]) <= 1e-6
    left = {row.op: row.reason for record in heard for row in record.left}
    assert left == {"iree.trace_tensor.default": "acts outside the program"}


def test_vmap_traces_the_whole_batch(sent: list[tuple[str, Tensor]]) -> None:
    def traced(x: Tensor) -> Tensor:
        ops.trace_tensor("x", x)
        return x

    torch.vmap(traced, in_dims=1)(torch.ones(2, 3))
    assert [tensor.shape for _, tensor in sent] == [(3, 2)]


MARKS = {
    torch.ops.iree.transfer_to_logical_device.default: ("0",),
    torch.ops.iree.barrier_on_logical_device.default: ("0",),
    torch.ops.iree.compute_barrier_start.default: (),
    torch.ops.iree.compute_barrier_end.default: (),
    torch.ops.iree.trace_tensor.default: ("key",),
}


@pytest.mark.parametrize("op", MARKS, ids=str)
def test_opcheck_passes_for_markers(op: Any) -> None:
    torch.library.opcheck(op, (*MARKS[op], torch.randn(3, 4).t().requires_grad_()))


def test_markers_in_eager_mode_are_differentiable_copies() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = ops.compute_barrier_end(ops.transfer_to_logical_device("0", x))
    y.backward(torch.ones(3, 4))
    assert torch.equal(y, x)
    assert y.data_ptr() != x.data_ptr()
    assert torch.equal(tensors(x.grad)[0], torch.ones(3, 4))


# What is refused


def refused(call: Callable[[], Any], *words: str) -> None:
    """Check that a call raises an error of ours that says all of this."""
    with pytest.raises(errors.TurbineError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


a, b = torch.ones(2, 4), torch.ones(3, 4)
images, filters = torch.ones(1, 5, 5, 2), torch.ones(3, 2, 2, 2)
conv = partial(ops.generic_conv, images, filters)
REFUSED: dict[str, tuple[Callable[[], Any], Sequence[str]]] = {
    "a dtype": (lambda: ops.rms_norm(a.int()), ["turbine::rms_norm: x is of torch.int32"]),
    "two dtypes": (
        lambda: ops.rms_norm(a, b[0].half()),
        ["weight is of torch.float16", "one dtype"],
    ),
    "a weight": (lambda: ops.rms_norm(a, b[0, :3]), ["weight has shape [3], expected [4]"]),
    "key sizes": (lambda: ops.attention(a, b[:, :3], b[:, :3]), ["turbine::attention", "differ"]),
    "value length": (lambda: ops.attention(a, b, a), ["key and value differ in length"]),
    "heads": (
        lambda: ops.attention(torch.ones(3, 2, 4), torch.ones(2, 2, 4), torch.ones(2, 2, 4)),
        ["not a multiple"],
    ),
    "a rank": (lambda: ops.attention(a, a[0], a), ["key has shape [4]", "[..., length, size]"]),
    "a mask": (
        lambda: ops.attention(a, b, b, torch.ones(4, 3)),
        ["mask has shape [4, 3]", "[2, 3]"],
    ),
    "a mask's dtype": (lambda: ops.attention(a, b, b, torch.ones(2, 3).int()), ["torch.int32"]),
    "tables": (
        lambda: ops.rotary_embedding(a, b, b),
        ["turbine::rotary_embedding: cos has", "[3, 4]"],
    ),
    "other tables": (
        lambda: ops.rotary_embedding(a, a, b),
        ["cos has shape [2, 4] and sin [3, 4]"],
    ),
    "an odd dim": (lambda: ops.rotary_tables(torch.arange(3), 5), ["dim is 5, expected an even"]),
    "past the end": (lambda: ops.insert_slice(a, b, [2, 0], [1, 1]), ["axis 0", "offset 2"]),
    "before the start": (lambda: ops.insert_slice(a, b, [-1, 0], [1, 1]), ["offset -1"]),
    "no stride": (lambda: ops.insert_slice(a, b, [0, 0], [0, 1]), ["strides[0] is 0"]),
    "an offset short": (
        lambda: ops.insert_slice(a, b, [0], [1, 1]),
        ["offset has 1 axes, expected 2"],
    ),
    "dtypes of slices": (lambda: ops.insert_slice(a.int(), b, [0, 0], [1, 1]), ["torch.int32"]),
    "a layout": (lambda: conv([1, 1], [1, 1], "nhw", "fhwc", "nhwf"), ["xl is 'nhw'", "of 4"]),
    "a letter twice": (lambda: conv([1, 1], [1, 1], "nhhc", "fhwc", "nhwf"), ["each once"]),
    "other letters": (lambda: conv([1, 1], [1, 1], "nhwc", "fxyc", "nhwf"), ["wl is 'fxyc'"]),
    "a result's letters": (
        lambda: conv([1, 1], [1, 1], "nhwc", "fhwc", "nhwc"),
        ["ol is 'nhwc'", "fhnw"],
    ),
    "a size": (
        lambda: conv([1, 1], [1, 1], "nhwc", "fhwc", "nhwf", [1, 5, 4, 3]),
        ["os has size 5"],
    ),
    "strides": (lambda: ops.conv_2d_nhwc_fhwc(images, filters, [1], [1, 1]), ["strides is [1]"]),
    "channels": (lambda: ops.conv_2d_nhwc_fhwc(images, filters[..., :1], [1, 1], [1, 1]), ["'c'"]),
    "a large kernel": (
        lambda: ops.conv_2d_nhwc_fhwc(images, filters, [1, 1], [5, 1]),
        ["reaches over 6"],
    ),
    "columns": (
        lambda: ops.quantized_matmul(a, PACKED),
        ["x has shape [2, 4], expected [..., 37]"],
    ),
    "bits": (lambda: ops.pack_weight(a, bits=3), ["bits=3", "4 or 8"]),
    "a vector": (lambda: ops.pack_weight(a[0]), ["weight has shape [4]"]),
    "infinity": (lambda: ops.pack_weight(a / 0), ["inf or nan"]),
    "a moniker": (lambda: ops.transfer_to_logical_device("a b", a), ["iree::transfer", "'a b'"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_calls_are_rejected_with_a_reason(what: str) -> None:
    call, words = REFUSED[what]
    refused(call, *words)


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(importlib.import_module("turbine.ops.quantized")) == (0, 6)
