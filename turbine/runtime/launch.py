"""Compiled programs without a signature: IR, bytes or a VM module in, a callable out."""

from __future__ import annotations

import io
import os
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

import iree.runtime as iree

from turbine import errors
from turbine.runtime import libraries, run_trace
from turbine.runtime.archive import open_archive
from turbine.runtime.code_folder import CodeFolder
from turbine.runtime.container import AGAIN
from turbine.runtime.convention import ASYNC, Convention
from turbine.runtime.device import Device, current_or_none, find
from turbine.runtime.executable import Executable, align_code, load_module
from turbine.runtime.parameters import index
from turbine.runtime.untyped_call import UntypedCall

DEFAULT_ENTRY = "main$async"
# Returns the entry point and the VM module for a device.
Loader = Callable[[Device], tuple[str, Any]]


@runtime_checkable
class HasIndex(Protocol):
    """An object with an IREE parameter index, such as `turbine.aot.ParameterArchive`."""

    @property
    def index(self) -> Any:
        """An `iree.runtime.ParameterIndex`."""


@dataclass(frozen=True)
class Loaded:
    """A program loaded on one device."""

    executable: Executable
    call: UntypedCall
    label: Path | None  # of its calls in a trace


class Launchable:
    """A program without a signature, called with tensors (or numpy arrays) and numbers.

    It runs on the device passed to a call, the current device, or the device of its tensors. Only
    the types that IREE keeps in compiled code are checked. `loader` returns the entry point and the
    VM module for a device; whether an entry point takes fences is read from the code, not from
    `is_async`. Calls from several threads are serialized, and share one state.

    >>> import torch
    >>> from turbine.runtime import Launchable
    >>> double = Launchable.jit_compile('''
    ... func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    ...   %y = arith.addf %x, %x : tensor<3xf32>
    ...   return %y : tensor<3xf32>
    ... }''')
    >>> double(torch.ones(3))
    tensor([2., 2., 2.])
    """

    def __init__(
        self,
        loader: Loader,
        parameter_providers: Any = (),
        is_async: bool = True,
        *,
        ir: Callable[[], str] | None = None,
    ) -> None:
        self._loader = loader
        self._providers = providers_of(parameter_providers)
        self._ir = ir
        self._loaded: dict[str, Loaded] = {}
        self._loading = threading.RLock()
        _alive.add(self)

    @staticmethod
    def jit_compile(
        source: str | bytes,
        *,
        parameter_providers: Any = (),
        entry_point: str = DEFAULT_ENTRY,
        file_cache_dir: str | Path | None = None,
    ) -> Launchable:
        """A program from MLIR, as text or bytecode, compiled for a device on first use.

        Code is kept in Turbine's cache and, if given, in the folder `file_cache_dir`, which
        `from_file_cache_only` reads where there is no compiler.
        """
        if not isinstance(source, str | bytes | bytearray | memoryview):
            raise errors.ArgumentError(
                f"the source is a {type(source).__name__}, expected MLIR as text or bytes",
                hint="pass str(module) for a module, Path(file).read_bytes() for a file",
            )
        ir = source.encode() if isinstance(source, str) else bytes(source)
        folder = None if file_cache_dir is None else CodeFolder(Path(file_cache_dir))
        return Launchable(
            _loader(entry_point, partial(_compile, ir, folder)),
            parameter_providers,
            ir=partial(_text, ir),
        )

    @staticmethod
    def from_file_cache_only(
        file_cache_dir: str | Path,
        *,
        parameter_providers: Any = (),
        entry_point: str = DEFAULT_ENTRY,
    ) -> Launchable:
        """A program from a folder that `jit_compile` filled; nothing is compiled."""
        folder = Path(file_cache_dir)
        if not folder.is_dir():
            raise errors.ArgumentError(
                f"no folder at {folder}",
                hint="jit_compile(source, file_cache_dir=...) makes and fills it at the first call",
            )
        return Launchable(_loader(entry_point, CodeFolder(folder).only), parameter_providers)

    @staticmethod
    def from_file(
        path: str | Path, *, parameter_providers: Any = (), entry_point: str = DEFAULT_ENTRY
    ) -> Launchable:
        """A program from a .vmfb file, for the devices it was compiled for."""
        try:
            code = Path(path).read_bytes()
        except OSError as error:
            raise errors.ArtifactError(
                f"cannot read the code: {error}", where=str(path), hint="give a .vmfb file"
            ) from error
        return Launchable.from_bytes(
            code, parameter_providers=parameter_providers, entry_point=entry_point
        )

    @staticmethod
    def from_bytes(
        code: bytes, *, parameter_providers: Any = (), entry_point: str = DEFAULT_ENTRY
    ) -> Launchable:
        """A program from the bytes of a .vmfb file."""
        module = _module(bytes(code))
        return Launchable.from_vm_module(
            lambda device: module, parameter_providers=parameter_providers, entry_point=entry_point
        )

    @staticmethod
    def from_vm_module(
        vm_module_callback: Callable[[Device], Any],
        *,
        parameter_providers: Any = (),
        entry_point: str = DEFAULT_ENTRY,
    ) -> Launchable:
        """A program from a function that returns an `iree.runtime.VmModule` for a device."""
        return Launchable(lambda d: (entry_point, vm_module_callback(d)), parameter_providers)

    def preload(self, device: Any) -> None:
        """Compile and load for a device before the first call."""
        self._on(find(device)).executable.device()

    def reset(self) -> None:
        """Reset the program's state to its initial values."""
        for loaded in list(self._loaded.values()):
            loaded.executable.reset()

    def __call__(self, *args: Any, device: Any = None, outputs: Sequence[Any] = ()) -> Any:
        """Call the program; returns its result, None without one, or a list of several.

        `device` is a URI, a torch device or a `Device`; the default is the current device, or the
        one of the tensors. `outputs` are tensors for the results: the program writes to them if it
        was compiled for that, otherwise results are copied.
        """
        loaded = self._on(_place(device, [*args, *outputs]))
        if loaded.label is None:
            results = loaded.call(args, outputs)
        else:
            started = time.perf_counter()
            results = loaded.call(args, outputs)
            elapsed = (time.perf_counter() - started) * 1e3
            run_trace.call(loaded.label, [*args, *outputs], elapsed)
        return results[0] if len(results) == 1 else results or None

    def leave_parent(self) -> None:
        """Replace the lock; see Note [After a fork]."""
        self._loading = threading.RLock()

    def _on(self, device: Device) -> Loaded:
        key = device.instance_cache_key
        loaded = self._loaded.get(key)
        if loaded is None:
            with self._loading:
                loaded = self._loaded.get(key) or self._load(device)
                self._loaded[key] = loaded
        return loaded

    def _load(self, device: Device) -> Loaded:
        device.check_shares_tensors()
        wanted, module = self._loader(device)
        if not isinstance(module, iree.VmModule):
            raise errors.ArgumentError(
                f"the loader returned a {type(module).__name__}, expected an iree.runtime.VmModule",
                hint="return iree.runtime.VmModule.copy_buffer(device.vm_instance, code)",
            )
        name = _entry_point(module, wanted)
        # It is unknown whether the program has state, so it is never dropped silently.
        executable = Executable(
            module,
            lambda: [device.hal_device],
            lambda: self._providers,
            state=None,
            is_on_host=device.is_on_host,
        )
        convention = Convention.of(module.lookup_function(name))
        call = UntypedCall(executable.entry(name), convention, keeps_weights=bool(self._providers))
        code = module.stashed_flatbuffer_blob
        label = run_trace.kernel(name.removesuffix(ASYNC), self._ir, b"" if code is None else code)
        return Loaded(executable, call, label)


def providers_of(given: Any) -> list[Any]:
    """Parameter providers for IREE, from one value, several, or a dict from scopes to values.

    A value is a provider or an index of IREE, a `ParameterArchive`, or a path to an archive.
    """
    if isinstance(given, Mapping):
        return [_provider(value, scope) for scope, value in given.items()]
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [_provider(value, "") for value in several]


def _provider(value: Any, scope: str) -> Any:
    if isinstance(value, iree.ParameterProvider):
        return value
    if isinstance(value, iree.ParameterIndex):
        return value.create_provider(scope=scope)
    if isinstance(value, str | Path):  # before the next: a str has an `index` too
        found = open_archive(Path(value)).entries.values()
        return index(found).create_provider(scope=scope)
    if isinstance(value, HasIndex):
        return value.index.create_provider(scope=scope)
    raise errors.ParameterError(
        f"a {type(value).__name__} holds no parameters",
        hint="give a ParameterArchive, a path to one, or an index or provider of iree.runtime",
    )


def _loader(entry_point: str, code: Callable[[Device], bytes]) -> Loader:
    return lambda device: (entry_point, _module(code(device)))


def _module(code: bytes) -> Any:
    if not code:
        raise errors.ArtifactError("the code is empty", hint=AGAIN)
    _check(code)
    return load_module(align_code(code))


def _check(code: bytes) -> None:
    """Raise if code is damaged. IREE checks only its structure; the zip around it has checksums."""
    if not code.startswith(_ZIP):
        return
    try:
        damaged = zipfile.ZipFile(io.BytesIO(code)).testzip()
    except _NO_ZIP as error:
        raise errors.ArtifactError(f"the code is damaged: {error}", hint=AGAIN) from error
    if damaged is not None:
        raise errors.ArtifactError(f"the code is damaged in {damaged!r}", hint=AGAIN)


_ZIP = b"PK\3\4"
_NO_ZIP = (
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
    EOFError,
    OSError,
    zlib.error,
    struct.error,
)


def _compile(source: bytes, folder: CodeFolder | None, device: Device) -> bytes:
    """Compile a source for a device; the only use of the compiler in this package."""
    known = None if folder is None else folder.read(device, source)
    if known is not None:
        return known
    if find_spec("iree.compiler") is None:
        raise errors.MissingExtra(
            "no compiler is installed",
            hint="pip install turbine, or use from_file_cache_only with a filled folder",
        )
    from turbine.compiler import pipeline

    code = pipeline.compile_ir(source, device.target).data
    if folder is not None:
        folder.write(device, source, code)
    return code


def _text(source: bytes) -> str:
    """The IR of a source as text."""
    try:
        return source.decode()
    except UnicodeDecodeError:  # bytecode
        from turbine.mlir import context

        return context.to_text(context.parse(source))


def _entry_point(module: Any, wanted: str) -> str:
    """The function for a name, with or without the suffix of functions that take fences."""
    names = [name for name in module.function_names if not name.startswith("__")]
    plain = wanted.removesuffix(ASYNC)
    for name in (plain, f"{plain}{ASYNC}"):
        if name in names:
            return name
    raise errors.ArgumentError(
        errors.unknown("entry point", wanted, names),
        hint="name it where the code is loaded: entry_point=...",
    )


def _place(device: Any, values: Sequence[Any]) -> Device:
    if device is not None:
        return find(device)
    current = current_or_none()
    if current is not None:
        return current
    libraried = ((libraries.of(value), value) for value in values)
    tensors = (library.place_of(value) for library, value in libraried if library is not None)
    return find(next(tensors, "cpu"))


_alive: WeakSet[Launchable] = WeakSet()


def _leave_parent() -> None:
    for launchable in list(_alive):
        launchable.leave_parent()


os.register_at_fork(after_in_child=_leave_parent)
