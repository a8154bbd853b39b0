"""Parameters outside the code: mark them on a module, and write and read archives of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from turbine import dtypes, errors
from turbine.capture.traits import ExternalTensorTrait
from turbine.lower.weights import raw_bytes
from turbine.runtime import parameters
from turbine.runtime.archive import READERS, open_archive
from turbine.runtime.conversion import convert
from turbine.runtime.entries import Entry


def externalize_module_parameters(
    module: torch.nn.Module, *, external_scope: str = "", prefix: str = ""
) -> None:
    """Make an export find a module's parameters and persistent buffers by name in an archive.

    Their names are those of the state dict, after the prefix and a dot if there is a prefix. The
    marks are on the tensors, whatever module or export they end up in. An empty scope is exported
    as "model".

    >>> import torch, turbine
    >>> model = torch.nn.Linear(4, 2)
    >>> turbine.aot.externalize_module_parameters(model, external_scope="model", prefix="head")
    >>> turbine.aot.ExternalTensorTrait.get(model.bias)
    ExternalTensorTrait(external_scope='model', external_name='head.bias')
    """
    for name, tensor in _state(module, prefix):
        ExternalTensorTrait(external_scope, name).set(tensor)


def save_module_parameters(
    file_path: str | Path, module: torch.nn.Module, *, prefix: str = ""
) -> None:
    """Write a module's parameters and persistent buffers to an .irpa archive.

    Args:
        file_path: the file; ".irpa" is its suffix.
        module: the module.
        prefix: precedes each name, with a dot.

    >>> import tempfile, torch
    >>> from turbine import aot
    >>> path = f"{tempfile.mkdtemp()}/linear.irpa"
    >>> aot.save_module_parameters(path, torch.nn.Linear(4, 2))
    >>> sorted(name for name, _ in aot.ParameterArchive(path).items())
    ['bias', 'weight']
    """
    builder = ParameterArchiveBuilder()
    builder.add_module(module, prefix=prefix)
    builder.save(file_path)


class ParameterArchiveEntry:
    """A parameter of an archive. `raw` has its bytes and metadata."""

    def __init__(self, raw: Entry) -> None:
        self.raw = raw

    @property
    def key(self) -> str:
        """The name of the parameter."""
        return self.raw.key

    def as_flat_tensor(self) -> torch.Tensor:
        """The bytes of the file, not copied."""
        return torch.from_numpy(numpy.asarray(self.raw.data))

    def as_tensor(self) -> torch.Tensor:
        """The tensor, not copied where the file has its elements as they are.

        Quantized blocks become float32.
        """
        if self.raw.shape is None:
            raise errors.ParameterError(
                f"the archive does not say of which dtype and shape {self.key} is",
                hint="as_flat_tensor gives its bytes",
            )
        name = self.raw.dtype or "float32"
        data = convert(self.raw, name) if self.raw.blocks else self.raw.data
        return _tensor(numpy.asarray(data), dtypes.from_torch_name(name), self.raw.shape)

    def __repr__(self) -> str:
        return f"ParameterArchiveEntry({self.key!r}, {self.raw.text})"


class ParameterArchive:
    """The parameters of .irpa, .safetensors and .gguf files, by name.

    Files are mapped: memory is taken by what is read. Writing to a tensor does not reach the
    file, unless the archive was opened as `writable`.

    >>> import turbine
    >>> archive = turbine.aot.ParameterArchive("model.safetensors")  # doctest: +SKIP
    >>> {key: entry.as_tensor() for key, entry in archive.items()}  # doctest: +SKIP
    """

    def __init__(
        self,
        file_path: str | Path | None = None,
        *,
        mmap: bool = True,
        readable: bool = True,
        writable: bool = False,
    ) -> None:
        self._entries: dict[str, Entry] = {}
        if file_path is not None:
            self.load(file_path, mmap=mmap, readable=readable, writable=writable)

    def load(
        self,
        file_path: str | Path,
        *,
        mmap: bool = True,
        readable: bool = True,
        writable: bool = False,
    ) -> None:
        """Add the parameters of another file."""
        if not readable or (writable and not mmap):
            raise errors.ConfigError(
                f"cannot open an archive with {readable=} {mmap=} {writable=}",
                hint="an archive is always read, and written through a map of its file",
            )
        found = open_archive(Path(file_path), mapped=mmap, writable=writable).entries
        _check_new(found, self._entries)
        self._entries.update(found)

    @property
    def index(self) -> Any:
        """The parameters as an `iree.runtime.ParameterIndex`."""
        return parameters.index(self._entries.values())

    def items(self) -> list[tuple[str, ParameterArchiveEntry]]:
        """Each name with its parameter, in the order of the file."""
        return [(key, ParameterArchiveEntry(entry)) for key, entry in self._entries.items()]

    def __repr__(self) -> str:
        return f"ParameterArchive({len(self._entries)} parameters)"


class ParameterArchiveBuilder:
    """Collects tensors under names and writes them as an .irpa archive.

    Tensors are not copied before they are written where their elements lie in order.

    >>> import torch, turbine
    >>> builder = turbine.aot.ParameterArchiveBuilder()
    >>> builder.add_tensor("scale", torch.tensor(2.0))
    >>> builder.save("scale.irpa")  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @property
    def index(self) -> Any:
        """The parameters added so far, as an `iree.runtime.ParameterIndex`."""
        return parameters.index(self._entries.values())

    def add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor of any supported dtype."""
        if not isinstance(tensor, torch.Tensor):
            raise errors.ParameterError(
                f"{name} is a {type(tensor).__name__}, expected a tensor",
                hint="write torch.as_tensor(value); add_blob takes bytes",
            )
        row = dtypes.of_torch(tensor.dtype)
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise errors.ParameterError(
                f"{name} cannot be saved: {tensor.layout=} {tensor.device=}",
                hint="an archive holds strided tensors that have values",
            )
        self._add(Entry(name, raw_bytes(tensor).data, row.name, tuple(tensor.shape)))

    def add_module(self, module: torch.nn.Module, *, prefix: str = "") -> None:
        """Add the parameters and persistent buffers of a module; tied ones under each name."""
        for name, tensor in _state(module, prefix):
            self.add_tensor(name, tensor)

    def add_blob(self, key: str, blob: Any) -> None:
        """Add the bytes of a buffer, without dtype and shape."""
        try:
            data = memoryview(blob)
        except TypeError as error:
            raise errors.ParameterError(
                f"{key} is a {type(blob).__name__}, expected bytes or another buffer",
                hint="add_tensor takes tensors",
            ) from error
        self._add(Entry(key, data.cast("B") if data.nbytes else memoryview(b"")))

    def save(self, file_path: str | Path) -> None:
        """Write the archive; a name that ends otherwise gets the suffix .irpa.

        An old file of that name stays whole until the end.
        """
        path = Path(file_path)
        if path.suffix not in READERS:
            path = path.with_name(path.name + parameters.WRITTEN_SUFFIX)
        parameters.save_archive(path, list(self._entries.values()))

    def _add(self, entry: Entry) -> None:
        _check_new([entry.key], self._entries)
        self._entries[entry.key] = entry


def _state(module: torch.nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers under every name they have."""
    if not isinstance(module, torch.nn.Module):
        raise errors.ParameterError(
            f"a {type(module).__name__} is not an nn.Module",
            hint="add single tensors with ParameterArchiveBuilder.add_tensor(name, tensor)",
        )
    stem = f"{prefix}." if prefix else ""
    for name, value in module.state_dict(keep_vars=True).items():
        if torch.nn.parameter.is_lazy(value):
            raise errors.ParameterError(f"{name} has no value yet", hint="call the module once")
        if isinstance(value, torch.Tensor):
            yield stem + name, value


def _check_new(keys: Iterable[str], known: dict[str, Entry]) -> None:
    keys = list(keys)
    wrong = [key for key in keys if not isinstance(key, str)]
    if wrong:
        raise errors.ParameterError(
            f"{wrong[0]!r} is not a name, expected a string", hint="pass the name first, as a str"
        )
    twice = sorted(set(keys) & set(known))
    if twice:
        raise errors.ParameterError(
            f"added twice: {', '.join(twice)}",
            hint="choose other names, or another prefix= for add_module",
        )


def _tensor(data: Any, row: dtypes.Dtype, shape: tuple[int, ...]) -> torch.Tensor:
    # Elements in a file may be misaligned.
    aligned = data if data.ctypes.data % row.itemsize == 0 else data.copy()
    return torch.from_numpy(aligned).view(row.torch).reshape(shape)
