"""Targets: drivers, compiler flags, and the CPU of this machine."""

from __future__ import annotations

import pytest

from turbine import config, errors, target
from turbine.compiler import cache, host, invoke, pipeline, session
from turbine.target import Target

CPU_FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
SPELLINGS = [
    ("cpu", "cpu:host", (*CPU_FLAGS, "--iree-llvmcpu-target-cpu=host")),
    ("cpu:generic", "cpu:generic", (*CPU_FLAGS, "--iree-llvmcpu-target-cpu=generic")),
    ("cpu:znver4", "cpu:znver4", (*CPU_FLAGS, "--iree-llvmcpu-target-cpu=znver4")),
    ("cuda", "cuda:sm_80", ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80")),
    ("cuda:sm_89", "cuda:sm_89", ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_89")),
    ("hip:gfx942", "hip:gfx942", ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942")),
    ("hip", "hip:gfx942", ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942")),
    (
        "vulkan",
        "vulkan:vp_android_baseline_2022",
        ("--iree-hal-target-device=vulkan", "--iree-vulkan-target=vp_android_baseline_2022"),
    ),
]
DRIVERS = {
    "cpu": ("local-sync", "local-task"),
    "cuda": ("cuda",),
    "hip": ("hip",),
    "vulkan": ("vulkan",),
}
MATMUL = b"""
func.func @f(%a: tensor<16x16xf32>, %b: tensor<16x16xf32>, %c: tensor<16x16xf32>)
    -> tensor<16x16xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<16x16xf32>, tensor<16x16xf32>)
                     outs(%c : tensor<16x16xf32>) -> tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
"""


@pytest.mark.parametrize(("spelling", "text", "flags"), SPELLINGS)
def test_a_target_string_maps_to_driver_and_flags(
    spelling: str, text: str, flags: tuple[str, ...]
) -> None:
    parsed = target.parse(spelling)
    assert (parsed.text, parsed.flags) == (text, flags)
    assert parsed.drivers == DRIVERS[spelling.partition(":")[0]]
    assert target.parse(parsed.text) == parsed


@pytest.mark.parametrize("spelling", ["", "cpu:", "cdua", "cdua:sm_80", ":sm_80", "CPU", "local"])
def test_an_unknown_target_lists_the_valid_ones(spelling: str) -> None:
    with pytest.raises(errors.UnknownTarget) as caught:
        target.parse(spelling)
    assert all(valid in caught.value.fact for valid in target.spellings())


def test_the_nearest_target_is_listed_first() -> None:
    with pytest.raises(errors.UnknownTarget, match="unknown target 'cdua'; valid: cuda,"):
        target.parse("cdua")


def test_cpu_resolves_to_a_real_model_and_its_features() -> None:
    found = host.resolve(target.parse("cpu"))
    assert found.chip not in ("", "host")
    assert found.features.startswith(("+", "-"))
    assert found.architecture == target.host_architecture()
    assert not any("host" in flag.split("=")[-1] for flag in found.flags)
    assert target.missing_features(found) == []


def test_generic_requires_fewer_features_than_this_cpu() -> None:
    generic = host.resolve(target.parse("cpu:generic"))
    this = host.resolve(target.parse("cpu"))
    assert generic.chip == "generic"
    assert generic.architecture == this.architecture
    assert set(filter(None, generic.features.split(","))) < set(this.features.split(","))


def test_resolution_is_idempotent() -> None:
    found = host.resolve(target.parse("cpu"))
    assert host.resolve(found) == found


def test_cpu_detection_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host.resolve.cache_clear()
    first = host.resolve(target.parse("cpu"))
    host.resolve.cache_clear()
    monkeypatch.setattr(invoke, "run", None)
    assert host.resolve(target.parse("cpu")) == first


def test_cpu_detection_is_cached_per_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    host.resolve(target.parse("cpu"))
    host.resolve.cache_clear()
    monkeypatch.setattr(target, "host_fingerprint", lambda: "another machine with the same home")
    monkeypatch.setattr(invoke, "run", lambda *_, **__: session.Outcome(OTHER_MACHINE, ()))
    try:
        found = host.resolve(target.parse("cpu"))
    finally:
        host.resolve.cache_clear()
    # The model comes first and what the machine has of it last: here not all of it.
    assert found == Target("cpu", "znver4", "+avx2,-sse4a,-avx512f", "x86_64")


OTHER_MACHINE = b"""
  util.global private @__device_0 = #hal.device.target<"local", [#hal.executable.target<"llvm-cpu",
  "embedded-elf-x86_64", {cpu = "znver4", cpu_features = "+avx2,-sse4a,+avx512f,+avx2,-avx512f",
  target_triple = "x86_64-unknown-unknown-eabi-elf"}>]> : !hal.device
"""


def test_resolution_without_the_cache_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "read", None)
    monkeypatch.setattr(cache, "write", None)
    host.resolve.cache_clear()
    with config.override(cache=False):
        assert host.resolve(target.parse("cpu:generic")).chip == "generic"


@pytest.mark.parametrize("spelling", ["cpu:bogus", "cuda:bogus", "cuda:sm_9", "hip:bogus"])
def test_an_unknown_chip_is_rejected(spelling: str) -> None:
    with pytest.raises(errors.UnknownTarget, match=spelling.partition(":")[2]) as caught:
        host.resolve(target.parse(spelling))
    assert spelling.partition(":")[0] in str(caught.value.hint)


# What LLVM may write for a CPU, beside what Linux shows on a CPU that has only part of it.
HALF = {
    "x86_64": (
        "pni ssse3 sse4_1 sse4_2 avx avx2 fma bmi1 avx512f avx512_vnni abm",
        "+sse3,+ssse3,+sse4.1,+sse4.2,+crc32,+avx,+avx2,+fma,+bmi,+bmi2,+avx512f,+avx512vnni,"
        "+avx512bf16,+avx512vbmi2,+amx-tile,+lzcnt,-xop,+x87,+not-a-feature",
        ["amx-tile", "avx512bf16", "avx512vbmi2", "bmi2"],
    ),
    "aarch64": (
        "fp asimd crc32 atomics asimddp asimdhp aes",
        "+v8.2a,+aes,+crc,+dotprod,+fp-armv8,+fullfp16,+lse,+neon,+rcpc,+sha2,-sve,+sve2,+i8mm,"
        "+reserve-x18",
        ["i8mm", "rcpc", "sha2", "sve2"],
    ),
}


@pytest.mark.parametrize("architecture", HALF)
def test_missing_cpu_features_are_listed(
    monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    shown, wanted, missing = HALF[architecture]
    monkeypatch.setattr(target, "host_flags", lambda: frozenset(shown.split()))
    monkeypatch.setattr(target, "host_architecture", lambda: architecture)
    assert target.missing_features(Target("cpu", "any", wanted, architecture)) == missing


def test_gpu_targets_require_no_cpu_features() -> None:
    assert target.missing_features(Target("cuda", "sm_80", "+avx512f")) == []


@pytest.mark.parametrize(
    ("machine", "architecture"),
    [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"), ("aarch64", "aarch64")],
)
def test_architectures_are_llvm_names(
    monkeypatch: pytest.MonkeyPatch, machine: str, architecture: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert target.host_architecture() == architecture


CPUINFO = """processor\t: {number}
vendor_id\t: GenuineIntel
model\t\t: {model}
model name\t: Some CPU
cpu MHz\t\t: {clock}
flags\t\t: {flags}
"""


@pytest.mark.parametrize(
    ("change", "same"),
    [({"clock": 999}, True), ({"model": 8}, False), ({"flags": "sse"}, False)],
)
def test_the_fingerprint_depends_on_cpu_and_features_only(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], same: bool
) -> None:
    facts: dict[str, object] = {"number": 0, "model": 7, "clock": 100, "flags": "sse avx"}
    assert (_fingerprint(monkeypatch, facts) == _fingerprint(monkeypatch, facts | change)) is same


def _fingerprint(monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]) -> str:
    two = "\n".join(CPUINFO.format(**(facts | {"number": n})) for n in (0, 1))
    monkeypatch.setattr(target, "_cpuinfo", lambda: two)
    target.host_fingerprint.cache_clear()
    try:
        return target.host_fingerprint()
    finally:
        target.host_fingerprint.cache_clear()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("spelling", ["cuda:sm_80", "hip:gfx942", "vulkan"])
def test_a_matmul_compiles_for_an_absent_gpu(spelling: str) -> None:
    compiled = pipeline.compile_ir(MATMUL, target.parse(spelling), use_cache=False)
    assert compiled.target == target.parse(spelling)
    assert GPU_CODE[compiled.target.kind] in compiled.data


# Bytes that only code for that kind of GPU holds; the last is the magic number of SPIR-V.
GPU_CODE = {"cuda": b"sm_80", "hip": b"AMDGPU", "vulkan": b"\x03\x02\x23\x07"}
