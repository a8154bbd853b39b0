"""What to compile for: "cpu", "cpu:generic", "cuda:sm_80" ... parsed into driver and flags."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from turbine import errors


@dataclass(frozen=True)
class Kind:
    """One family of targets: the drivers that run it and the flags that compile for it."""

    name: str
    drivers: tuple[str, ...]
    device: str  # as the compiler calls it
    flags: tuple[str, ...]
    chip_flag: str
    default_chip: str
    example_chips: tuple[str, ...]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "cpu",
            ("local-sync", "local-task"),
            "local",
            ("--iree-hal-local-target-device-backends=llvm-cpu",),
            "--iree-llvmcpu-target-cpu",
            "host",
            ("generic", "<llvm cpu name>"),
        ),
        Kind(
            "cuda",
            ("cuda",),
            "cuda",
            (),
            "--iree-cuda-target",
            "sm_80",
            ("sm_80", "sm_90"),
        ),
        Kind(
            "hip",
            ("hip",),
            "hip",
            (),
            "--iree-rocm-target",
            "gfx942",
            ("gfx942", "gfx1100"),
        ),
        Kind(
            "vulkan",
            ("vulkan",),
            "vulkan",
            (),
            "--iree-vulkan-target",
            "vp_android_baseline_2022",
            ("rdna3", "ampere"),
        ),
    )
}


# The newest NVIDIA GPU that IREE's compiler has a description of; newer ones run its code.
_NEWEST_KNOWN = 89


@dataclass(frozen=True)
class Target:
    """A chip to compile for. `features` is filled in once the compiler has resolved the host."""

    kind: str
    chip: str
    features: str = ""
    architecture: str = ""
    devices: int = 1  # how many of them a program runs on

    @property
    def text(self) -> str:
        """The spelling that parses back to this target."""
        return f"{self.kind}:{self.chip}"

    @property
    def drivers(self) -> tuple[str, ...]:
        """Runtime drivers that can run code for this target."""
        return KINDS[self.kind].drivers

    @property
    def enabled(self) -> list[str]:
        """The CPU features that code may use."""
        return [name[1:] for name in self.features.split(",") if name.startswith("+")]

    @property
    def vector_bytes(self) -> int:
        """The width of a vector register; a CPU has to be resolved, `compiler.host.resolve`."""
        assert self.kind != "cpu" or self.architecture, f"{self.text} is not resolved"
        features = self.features.split(",")
        return 64 if "+avx512f" in features else 32 if "+avx2" in features else 16

    @property
    def has_amx(self) -> bool:
        """Whether the CPU multiplies matrices of bf16 with AMX."""
        return {"+amx-tile", "+amx-bf16"} <= set(self.features.split(","))

    @property
    def code_facts(self) -> tuple[str, int | str, bool]:
        """What IR that was emitted for this target depends on."""
        of_chip = self.vector_bytes if self.kind == "cpu" else self.chip
        return self.kind, of_chip, self.has_amx

    @property
    def _known_chip(self) -> str:
        """The chip, or one whose code it runs if the compiler does not know it."""
        is_newer = self.kind == "cuda" and (self.capability or 0) > _NEWEST_KNOWN
        return f"sm_{_NEWEST_KNOWN}" if is_newer else self.chip

    @property
    def capability(self) -> int | None:
        """The compute capability of an NVIDIA GPU, 90 for sm_90; None for other spellings."""
        number = self.chip.removeprefix("sm_").removesuffix("a")
        return int(number) if self.chip.startswith("sm_") and number.isdigit() else None

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags that select this target."""
        kind = KINDS[self.kind]
        places = [""] if self.devices == 1 else [f"[{at}]" for at in range(self.devices)]
        device = tuple(f"--iree-hal-target-device={kind.device}{place}" for place in places)
        flags = (*device, *kind.flags, f"{kind.chip_flag}={self._known_chip}")
        if self.features:
            flags += (f"--iree-llvmcpu-target-cpu-features={self.features}",)
        return flags


def parse(text: str) -> Target:
    """Parse "cpu", "cpu:generic", "cpu:<llvm cpu name>", "cuda:sm_80", "hip:gfx942", "vulkan"."""
    if not isinstance(text, str):
        raise errors.UnknownTarget(
            f"target is a {type(text).__name__}, expected a str", hint='write target="cpu"'
        )
    name, _, chip = text.partition(":")
    if name not in KINDS or text.endswith(":"):
        raise errors.UnknownTarget(errors.unknown("target", text, spellings()))
    if name == "cpu":
        chip = chip.replace("_", "-")  # x86_64_v3 is x86-64-v3 in LLVM
    return Target(name, chip or KINDS[name].default_chip)


def spellings() -> list[str]:
    """Every kind of target spelling that `parse` takes."""
    return [
        s for k in KINDS.values() for s in (k.name, *(f"{k.name}:{c}" for c in k.example_chips))
    ]


def missing_features(target: Target) -> list[str]:
    """CPU features that code for this target uses and this machine lacks."""
    if target.kind != "cpu":
        return []
    have = host_flags()
    checkable = _LINUX_FLAG.get(host_architecture(), {})
    return sorted({f for f in target.enabled if f in checkable and checkable[f] not in have})


def host_architecture() -> str:
    """This machine's architecture as LLVM spells it: "x86_64" or "aarch64"."""
    return _ARCHITECTURE.get(platform.machine().lower(), platform.machine().lower())


@cache
def host_flags() -> frozenset[str]:
    """The CPU feature flags the Linux kernel reports, those of AMX if this process may use it."""
    for line in _cpuinfo().splitlines():
        if line.startswith(("flags", "Features")):
            flags = line.partition(":")[2].split()
            return frozenset(f for f in flags if not f.startswith("amx_") or request_amx())
    return frozenset()


@cache
def request_amx() -> bool:
    """Ask Linux to let this process use AMX; without it, an AMX instruction kills the process."""
    if host_architecture() != "x86_64" or platform.system() != "Linux":
        return False
    library = ctypes.CDLL(None)
    return bool(library.syscall(*PERMISSION_REQUEST) == 0)


# The system call arch_prctl, ARCH_REQ_XCOMP_PERM, and the state that AMX needs.
PERMISSION_REQUEST = (158, 0x1023, 18)


@cache
def host_fingerprint() -> str:
    """The first processor's description: equal text means equal CPU model and features."""
    lines = _cpuinfo().split("\n\n")[0].splitlines()
    stable = [line for line in lines if line.startswith(_STABLE_FIELDS)]
    return "\n".join(stable) or f"{platform.machine()} {platform.processor()}"


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


_ARCHITECTURE = {"arm64": "aarch64", "amd64": "x86_64"}
_STABLE_FIELDS = (
    "vendor_id",
    "cpu family",
    "model",
    "stepping",
    "flags",
    "Features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
)
# LLVM feature -> the flag Linux shows for it. Features without a row are not checked.
_X86_SAME = (
    "avx avx2 avx512f avx512bw avx512cd avx512dq avx512vl avx512vbmi avx512ifma f16c fma bmi1 bmi2 "
    "popcnt movbe aes adx vaes vpclmulqdq gfni avx512_vnni avx512_bf16 avx512_fp16 avx_vnni "
    "avx512_bitalg avx512_vbmi2 avx512_vpopcntdq avx512_vp2intersect cx16 fma4 xop tbm sse4a "
    "amx_tile amx_int8 amx_bf16"
).split()
_LINUX_FLAG = {
    "x86_64": {
        **{flag.replace("_", ""): flag for flag in _X86_SAME},
        **{flag.replace("_", "-"): flag for flag in _X86_SAME if "_" in flag},
        "bmi": "bmi1",
        "sha": "sha_ni",
        "crc32": "sse4_2",
        "lzcnt": "abm",
        "pclmul": "pclmulqdq",
        "sse3": "pni",
        "ssse3": "ssse3",
        "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
    },
    "aarch64": {
        "neon": "asimd",
        "fp-armv8": "fp",
        "fullfp16": "asimdhp",
        "dotprod": "asimddp",
        "lse": "atomics",
        "crc": "crc32",
        "aes": "aes",
        "sha2": "sha2",
        "sha3": "sha3",
        "rdm": "asimdrdm",
        "rcpc": "lrcpc",
        "complxnum": "fcma",
        "fp16fml": "asimdfhm",
        "jsconv": "jscvt",
        "sve": "sve",
        "sve2": "sve2",
        "sve-bitperm": "svebitperm",
        "i8mm": "i8mm",
        "bf16": "bf16",
    },
}
