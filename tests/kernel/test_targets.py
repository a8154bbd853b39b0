"""Kernels use the vector width of the target, in every way of compiling them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import config, errors, target
from turbine.capture import work
from turbine.compiler import host, session, strategies
from turbine.kernel.inspection import peaks
from turbine.lower.emission import TargetQuery
from turbine.passes import RenameParameters
from turbine.runtime import device
from turbine.target import Target

M, N, K, BM, BN, BK = tkl.symbols("M N K BM BN BK")
A, B = torch.randn(8, 16), torch.randn(16, 32)
AVX512 = Target("cpu", "znver4", "+avx2,+avx512f,+fma", "x86_64")
AVX2 = Target("cpu", "znver3", "+avx2,+fma", "x86_64")
SSE = Target("cpu", "generic", "", "x86_64")


@tk.gen.kernel(M // BM, N // BN, blocks={BM: 8, BN: 32, BK: 16})
def gemm(
    a: tkl.InputBuffer[M, K, tkl.f32],
    b: tkl.InputBuffer[K, N, tkl.f32],
    c: tkl.OutputBuffer[M, N, tkl.f32],
) -> None:
    i, j = tkl.program_id(0) * BM, tkl.program_id(1) * BN

    @tkl.for_loop(0, K // BK, init_args=[tkl.zeros((BM, BN), tkl.f32)])
    def product(k, acc):  # type: ignore[no-untyped-def]
        x = tkl.load(a, (i, k * BK), (BM, BK))
        y = tkl.load(b, (k * BK, j), (BK, BN))
        return tkl.dot(x, y, acc)

    tkl.store(c, (i, j), product[0])


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(B, requires_grad=False)

    def forward(self, a: Tensor) -> Tensor:
        result: Tensor = gemm(a, self.b) + 1
        return result


def lanes_of_products(text: str) -> set[int]:
    """The vector lengths of fma ops in a module."""
    sums = re.findall(r"(?:math\.fma|vector\.fma|llvm\.intr\.fma).*?vector<(\d+)xf32>", text)
    return set(map(int, sums))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 512 bits; a CPU that has none computes with parts of them."""
    monkeypatch.setattr(Target, "vector_bytes", property(lambda self: 64))


@pytest.mark.usefixtures("wide")
def test_every_compilation_path_uses_the_vector_width_of_the_target(tmp_path: Path) -> None:
    fresh, expected = gemm.using(BK=16), A @ B
    with config.override(dump=str(tmp_path), cache=False):
        torch.testing.assert_close(fresh(A, B), expected, atol=1e-4, rtol=1e-4)
        compiled = torch.compile(lambda a: gemm(a, B) + 1, backend="turbine", fullgraph=True)
        torch.testing.assert_close(compiled(A), expected + 1, atol=1e-4, rtol=1e-4)
        artifact = turbine.aot.export(Product(), args=(A,)).compile()
        torch.testing.assert_close(artifact(A), expected + 1, atol=1e-4, rtol=1e-4)
    texts = {p: p.read_text() for p in tmp_path.rglob("*.mlir")}
    found = {str(p.relative_to(tmp_path)): lanes_of_products(t) for p, t in texts.items()}
    assert len(found) == 3
    assert set.intersection(*found.values()) == {16}, found
    launched = [text for path, text in texts.items() if path.name.endswith("kernel.mlir")]
    assert launched == [fresh.text("mlir")]


def test_text_uses_the_configured_target(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen, lanes in ((AVX512, 16), (AVX2, 8), (SSE, 4)):
        monkeypatch.setattr(host, "default_target", partial(replace, chosen))
        assert max(lanes_of_products(gemm.text("mlir", A, B))) == lanes


def test_exports_are_emitted_again_for_another_cpu() -> None:
    output = turbine.aot.export(Product(), args=(A,))
    renamed = output.transform(RenameParameters({"b": "weight"}))
    for chosen, lanes in ((AVX512, 16), (AVX2, 8), (SSE, 4)):
        ready = renamed.lowered_for(TargetQuery(partial(replace, chosen)))
        assert max(lanes_of_products(ready.text())) == lanes
        assert '"weight"' in ready.text()
    (wanted,) = {output.lowered.target}
    assert wanted == host.default_target()
    assert output.lowered_for(TargetQuery(host.default_target)) is output


def test_a_program_without_kernels_is_the_same_for_every_cpu() -> None:
    output = turbine.aot.export(nn.Linear(4, 2), args=(torch.ones(3, 4),))
    assert output.lowered.target is None


def test_a_kernel_for_another_cpu_has_its_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "default_target", partial(replace, AVX512))
    source = gemm.text("mlir", A, B).encode()
    flags = (
        *target.parse("cpu:znver4").flags,
        "--iree-llvmcpu-target-triple=x86_64-linux-gnu",
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
    )
    outcome = session.run(session.Request(source, (*strategies.COMMON, *flags)))
    assert outcome.data is not None, outcome.diagnostics
    assembly = "\n".join(path.read_text() for path in tmp_path.glob("*.s"))
    assert re.search(r"vfmadd\d+ps.*%?zmm", assembly)


def test_an_unresolved_cpu_has_no_vector_width() -> None:
    with pytest.raises(AssertionError, match="not resolved"):
        _ = target.parse("cpu").vector_bytes
    resolved = host.resolve(target.parse("cpu"))
    assert resolved.vector_bytes in (16, 32, 64)
    assert replace(resolved, devices=2).code_facts == resolved.code_facts


def test_targets_without_a_backend_are_rejected() -> None:
    output = turbine.aot.export(Product(), args=(A,))
    with pytest.raises(errors.KernelError, match=r"kernel gemm is compiled for hip:gfx942"):
        output.lowered_for(TargetQuery(lambda: target.parse("hip:gfx942")))


def test_exports_count_the_work_of_kernels() -> None:
    a, b = torch.randn(512, 512), torch.randn(512, 512)

    class Large(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            result: Tensor = gemm(a, b)
            return result

    output = turbine.aot.export(Large(), args=(a, b))
    assert work.mflop(output.program.graph.graph) == pytest.approx(2 * 512**3 / 1e6, rel=0.05)
    assert output.entry_points["main"].load > 2 * 512**3 / 1e6


def test_the_driver_of_a_kernel_is_chosen_by_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def driver_for(wanted: Target, load: float) -> str:
        loads.append(load)
        return device.SYNC

    monkeypatch.setattr(device, "driver_for", driver_for)
    a, b = torch.randn(64, 512), torch.randn(512, 64)
    gemm.using()(a, b)
    assert loads == [pytest.approx(2 * 64 * 512 * 64 / 1e6, rel=0.1)]


def test_the_peak_is_measured_with_full_width_vectors() -> None:
    limits = peaks.peaks()
    assert limits.operations >= 1e9 * limits.cores
    for chosen, lanes in ((AVX512, 16), (AVX2, 8)):
        text = peaks.loop_text(chosen, groups=4)
        assert lanes_of_products(text) == {lanes}
    assert lanes_of_products(peaks.loop_text(SSE, groups=4)) == set()
    report = str(tk.explain(gemm, A, B))
    assert "f32 fma in registers" in report
