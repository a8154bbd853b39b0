"""`turbine doctor`: check the installation, one line per check."""

from __future__ import annotations

import json as jsons
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

from turbine import config, errors, permissions, whole_package
from turbine import target as targets
from turbine.progress import progress
from turbine.tables import bytes_text, fit
from turbine.version import __version__

if TYPE_CHECKING:
    from turbine.compiler.cache import Listing


def check_installation(
    *,
    calibrate: Annotated[
        bool, "time the usual library calls on this machine, so that torch.compile need not"
    ] = False,
    all: Annotated[bool, "print long lines in full, and every CPU feature"] = False,
    json: Annotated[bool, "print the findings as JSON"] = False,
) -> int:
    """Check the installation; the exit code is 0 if everything works.

    example:
      turbine doctor
    """
    findings = []
    width = _width(all)
    for name, ok, text in _findings(calibrate):
        findings.append({"name": name, "ok": ok, "text": text})
        if not json:
            line = f"{'ok' if ok else 'FAIL':5}{name:15}{text}"
            print(fit(line, width) if ok else line, flush=True)
    if json:
        print(jsons.dumps(findings, indent=2))
    failed = [finding for finding in findings if not finding["ok"]]
    return 1 if failed else 0


def _width(in_full: bool) -> int:
    """What fits in a line of a terminal; elsewhere nothing is cut."""
    if in_full or not sys.stdout.isatty():
        return sys.maxsize
    return shutil.get_terminal_size().columns


def _findings(calibrate: bool) -> Iterator[tuple[str, bool, str]]:
    names = CHECKS if whole_package.is_installed() else RUNTIME_CHECKS
    for name in names:
        check = CHECKS[name]
        if calibrate and check is _library_calls:
            yield name, *_verdict(_calibrate)  # it shows its own progress
            continue
        with progress(f"checking {name}"):
            verdict = _verdict(check)
        yield name, *verdict


def _verdict(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    # Whatever is wrong with an installation, the doctor says it and goes on.
    except Exception as error:
        fact = error.fact if isinstance(error, errors.TurbineError) else f"{error}"
        return False, f"{type(error).__name__}: {fact}"


def _python() -> str:
    return f"{platform.python_version()} ({sys.executable})"


def _turbine() -> str:
    if whole_package.is_installed():
        return __version__
    return f"{__version__}, the runtime alone; {whole_package.HINT} adds the compiler"


def _torch() -> str:
    import torch

    return torch.__version__


def _compiler() -> str:
    return version("iree-base-compiler")


def _runtime() -> str:
    from turbine.runtime import device

    device.instance()
    return version("iree-base-runtime")


def _cpu() -> str:
    from turbine.compiler import host

    found = host.resolve(targets.parse("cpu"))
    return f"{found.chip} ({found.architecture}) with {', '.join(found.enabled)}"


def _drivers() -> str:
    """The CPU's drivers must work; the others may be absent."""
    from turbine.runtime import device

    absent = []
    for driver in (driver for kind in targets.KINDS.values() for driver in kind.drivers):
        try:
            device.device(driver)
        except errors.ArtifactTargetError:
            if driver in targets.KINDS["cpu"].drivers:
                raise
            absent.append(driver)
    present = [d for kind in targets.KINDS.values() for d in kind.drivers if d not in absent]
    return ", ".join(present) + (f"; no device for {', '.join(absent)}" if absent else "")


def _cache() -> str:
    from turbine.compiler import cache

    folder = config.current().cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    return f"{folder} is writable, {_describe_entries(cache.listings())}{_seed()}"


def _seed() -> str:
    from turbine.compiler import cache

    folder = config.current().cache_seed_dir
    if folder is None:
        return ""
    problem = permissions.problem(folder.stat()) if folder.is_dir() else "is not a folder"
    if problem is not None:
        raise errors.ConfigError(
            f"cache_seed_dir is not read: {folder} {problem}",
            hint="name a folder that only you or root may write (chmod -R go-w), or leave it out",
        )
    return f"; seed {folder} is read, {_describe_entries(cache.listings(folder))}"


def _describe_entries(listings: Sequence[Listing]) -> str:
    return f"{len(listings)} kept, {bytes_text(sum(item.size for item in listings))}"


def _end_to_end() -> str:
    """Export, compile in a worker process, run, and compare with PyTorch."""
    import torch

    from turbine import aot

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval()
    exported = aot.export(model, args=(x,))
    started = time.perf_counter()
    artifact = exported.compile(target="cpu", in_process=False, cache=False)
    compiled = time.perf_counter()
    result = artifact(x)
    ran = time.perf_counter()
    if not torch.allclose(result, model(x), atol=1e-5):
        raise errors.RunError(
            "a small model gives other numbers than in PyTorch",
            hint="report this with what `turbine doctor` prints",
        )
    return (
        f"compiled a small model in {compiled - started:.2f} s, "
        f"ran it in {(ran - compiled) * 1e3:.2f} ms, equal to PyTorch"
    )


def _library_calls() -> str:
    """The times of calls compiled over those in PyTorch's library, as torch.compile uses them."""
    from turbine.dynamo import calibration

    ratios = [f"{kind} {s.compiled / s.library:.2f}" for kind, s in calibration.read_all().items()]
    if not ratios:
        return (
            "nothing measured on this machine: torch.compile times a kind of call when a graph "
            "first has one, `turbine doctor --calibrate` times the usual kinds"
        )
    return f"compiled time over PyTorch's: {', '.join(sorted(ratios))}"


def _calibrate() -> str:
    """Time the usual calls that are not in the cache."""
    from turbine.dynamo import calibration, library

    if not config.current().cache:
        raise errors.ConfigError("--calibrate keeps times in the cache, which is off")
    calls = library.usual_calls()
    failed = [
        call.kind
        for call in calls
        if not calibration.measure_once(call.kind, call.example).is_complete
    ]
    if failed:
        raise errors.RunError(f"cannot time {', '.join(failed)}")
    return _library_calls()


CHECKS: dict[str, Callable[[], str]] = {
    "python": _python,
    "turbine": _turbine,
    "torch": _torch,
    "iree compiler": _compiler,
    "iree runtime": _runtime,
    "cpu": _cpu,
    "drivers": _drivers,
    "cache": _cache,
    "library calls": _library_calls,
    "end to end": _end_to_end,
}
RUNTIME_CHECKS = ("python", "turbine", "iree runtime", "drivers")  # where the runtime is alone
