"""Arguments that share memory: inputs are read before the call writes, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import errors
from turbine.ops import aliasing
from turbine.runtime import numpy_buffers, torch_buffers
from turbine.runtime.overlap import Layout, overlaps_itself, share_memory

programs = pytest.mark.sweep(1, "programs")

N, B = tkl.symbols("N B")
T = tkl.types.T
Views = Callable[[Tensor], tuple[Tensor, Tensor]]


@tk.gen.kernel(N // B, blocks={B: 2})
def add_reversed_(x: tkl.InputBuffer[N, T], y: tkl.InOutBuffer[N, T]) -> None:
    """Programs read elements that others write if x and y are one tensor."""
    start = tkl.program_id(0) * B
    tile = tkl.load(x, (N - B - start,), (B,))
    tkl.store(y, (start,), tile + tkl.load(y, (start,), (B,)))


@tk.gen.kernel(N // B, blocks={B: 2})
def write_two_(x: tkl.InOutBuffer[N, T], y: tkl.InOutBuffer[N, T]) -> None:
    start = tkl.program_id(0) * B
    tkl.store(x, (start,), tkl.load(x, (start,), (B,)) + 1)
    tkl.store(y, (start,), tkl.load(y, (start,), (B,)) * 2)


def whole() -> Tensor:
    return torch.arange(16.0)


APART: dict[str, Views] = {
    "halves": lambda z: (z[:8], z[8:]),
    "odd and even": lambda z: (z[::2], z[1::2]),
    "columns": lambda z: (z.view(4, 4)[:, 1], z.view(4, 4)[:, 3]),
    "empty": lambda z: (z[:0], z[:0]),
}
SHARED: dict[str, Views] = {
    "the same": lambda z: (z, z),
    "an alias": lambda z: (z, z.view_as(z)),
    "shifted": lambda z: (z[1:9], z[2:10]),
    "strided": lambda z: (z[::2], z[8:]),
    "crossing": lambda z: (z.view(4, 4)[:, 1], z.view(4, 4)[2]),
}
BOTH = [*APART.items(), *SHARED.items()]
NAMES = [*APART, *SHARED]


def add_in_pytorch(x: Tensor, y: Tensor) -> None:
    blocks = x.clone().view(-1, 2).flip(0).reshape(-1)
    y.add_(blocks)


def changed(call: Callable[..., Any], views: Views) -> list[float]:
    z = whole()
    call(*views(z))
    return z.tolist()


@pytest.mark.parametrize(("name", "views"), BOTH, ids=NAMES)
def test_inputs_are_read_before_aliased_writes(name: str, views: Views) -> None:
    wanted = changed(add_in_pytorch, views)
    assert changed(add_reversed_, views) == wanted
    assert changed(add_reversed_.interpret, views) == wanted
    assert changed(lambda x, y: add_reversed_(x.detach().requires_grad_(), y), views) == wanted


@programs
def test_inputs_are_read_before_aliased_writes_on_all_cores() -> None:
    z, kernel = torch.randn(2**18), add_reversed_.using(B=256)
    wanted = z + z.view(-1, 256).flip(0).reshape(-1)
    kernel(z, z)
    assert torch.equal(z, wanted)


TRACED = ("odd and even", "the same", "shifted")


class Several(nn.Module):
    """Calls on tensors that share memory, all in one program."""

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        for z, name in zip(given, TRACED, strict=True):
            add_reversed_(*{**APART, **SHARED}[name](z))
        a, b = given[0] * 2, given[0] * 2  # which a compiler may take for one
        add_reversed_(a, b)
        c = given[0] * 3
        add_reversed_(c, c.view(4, 4).view(16))
        return a, b, c


@programs
def test_compiled_and_exported_programs_match_eager_on_aliased_tensors() -> None:
    wanted = [whole() for _ in TRACED]
    results = Several()(*wanted)
    compiled = torch.compile(Several(), backend="turbine", fullgraph=True)
    artifact = turbine.aot.export(Several(), args=tuple(whole() for _ in TRACED)).compile()
    for call in (compiled, artifact):
        given = [whole() for _ in TRACED]
        found = call(*given)
        for one, other in zip((*found, *given), (*results, *wanted), strict=True):
            assert torch.equal(one, other)


@programs
def test_views_of_dynamic_sizes_match_eager() -> None:
    def odd_and_even(z: Tensor) -> Tensor:
        add_reversed_(z, z)
        write_two_(z[::2], z[1::2])
        half = z.shape[0] // 2
        write_two_(z[:half], z[half:])
        return z

    compiled = torch.compile(odd_and_even, backend="turbine", fullgraph=True, dynamic=True)
    for size in (8, 16, 24):
        z = torch.arange(float(size))
        assert torch.equal(compiled(z.clone()), odd_and_even(z.clone()))


@pytest.mark.parametrize(("name", "views"), BOTH, ids=NAMES)
def test_only_aliased_in_out_buffers_are_rejected(name: str, views: Views) -> None:
    def in_pytorch(x: Tensor, y: Tensor) -> None:
        x.add_(1)
        y.mul_(2)

    for call in (write_two_, write_two_.interpret):
        if name in APART:
            assert changed(call, views) == changed(in_pytorch, views)
            continue
        with pytest.raises(errors.KernelError, match="x and y are in-out and share memory"):
            changed(call, views)


def test_aliased_in_out_buffers_are_rejected_during_tracing() -> None:
    class Wrong(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            write_two_(z[1:9], z[2:10])
            return z

    message = "write_two_ writes to x and y, which share memory"
    with pytest.raises(RuntimeError, match=message):
        torch.compile(Wrong(), backend="turbine", fullgraph=True)(whole())
    with pytest.raises(errors.ExportError, match=message):
        turbine.aot.export(Wrong(), args=(whole(),))


def test_in_out_buffers_with_overlapping_elements_are_rejected() -> None:
    windows = torch.ones(5).as_strided((4, 2), (1, 1))
    assert overlaps_itself(torch_buffers.layout(windows))
    assert not overlaps_itself(torch_buffers.layout(windows.T.contiguous()[:, ::2].T))
    with pytest.raises(errors.KernelError, match="several elements of y, which is in-out, share"):
        add_reversed_(torch.ones(4), torch.ones(1).expand(4))
    with pytest.raises(errors.KernelError, match="several elements of y, which is in-out, share"):
        add_reversed_.interpret(torch.ones(4), torch.ones(1).expand(4))


@programs
def test_artifacts_reject_inputs_that_alias_in_out_buffers() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            y.add_(1)
            return x * 2

    artifact = turbine.aot.export(Model(), args=(torch.ones(8), torch.ones(8))).compile()
    message = "argument 'y' is written by the program and shares memory with argument 'x'"
    z = whole()
    with pytest.raises(errors.ArgumentError, match=message):
        artifact(z[:8], z[4:12])
    array = numpy.arange(16, dtype=numpy.float32)
    with pytest.raises(errors.ArgumentError, match=message):
        artifact(array[:8], array[7:15])
    assert artifact(z[::2], z[1::2]).tolist() == (2 * whole()[::2]).tolist()
    assert z[1::2].tolist() == (whole()[1::2] + 1).tolist()


def test_overlap_matches_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    def layout() -> Layout:
        rank = drawn(0, 4)
        shape = tuple(drawn(0, 6) for _ in range(rank))
        strides = tuple(4 * drawn(-6, 7) for _ in range(rank))
        return Layout(4 * drawn(100, 112), shape, strides, 4)

    def places(of: Layout) -> list[int]:
        steps = [range(0, n * s, s) if s else [0] * n for n, s in zip(of.shape, of.strides)]  # noqa: B905
        return [of.start + sum(at) for at in product(*steps)]

    both = [0, 0]
    for _ in range(600):
        one, other = layout(), layout()
        shared = bool(set(places(one)) & set(places(other)))
        both[shared] += 1
        assert share_memory(one, other) == shared, (one, other)
        if len(set(places(one))) < len(places(one)):
            assert overlaps_itself(one), one
    assert min(both) > 50


def test_overlap_of_strided_tensors_and_arrays_is_exact() -> None:
    z = torch.arange(24, dtype=torch.bfloat16).view(4, 6)
    for one, other, shared in ((z[:, :3], z[:, 3:], False), (z.T[1], z[2], True)):
        assert aliasing.share_memory(one, other) is shared
    array = numpy.arange(8)
    ends = numpy_buffers.layout(array[::-2]), numpy_buffers.layout(array[::2])
    assert not share_memory(*ends)
