"""Inputs from the command line: texts in, arguments of a compiled program out."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbine import dims, dtypes, errors, pytree
from turbine.cli.options import Assignment
from turbine.dtypes import Dtype
from turbine.signature import Input, Range, Signature

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Array = NDArray[Any]

SEED = 0
_TENSOR = re.compile(r"(?P<shape>(?:\d+x)*)(?P<dtype>[A-Za-z][\w<>]*)(?:=(?P<value>.*))?")
_INTEGER = re.compile(r"[+-]?\d+")
_HOW = "an input is a .npy file, 4x3xf32 (random), 4x3xf32=2.5 (filled) or an integer"
_SAVED = "give a file of numbers that numpy.save or numpy.savez wrote"


def arguments(
    signature: Signature, texts: Sequence[str], sizes: Sequence[Assignment]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The (args, kwargs) of a call: parsed from the texts, or generated if there are none."""
    wanted = [spec for spec in signature.inputs if spec.kind != "constant"]
    if texts and sizes:
        raise errors.ArgumentError(
            "--size and --input together",
            hint="--size is for generated inputs; leave one of them out",
        )
    given = iter(
        _parse_inputs(wanted, texts, signature) if texts else _make_random(wanted, signature, sizes)
    )
    leaves = [i.value if i.kind == "constant" else next(given) for i in signature.inputs]
    args, kwargs = pytree.unflatten(signature.in_tree, leaves)
    return args, kwargs


def read(text: str, random: Generator) -> Array | int:
    """Parse an array or integer: "x.npy", "4x3xf32", "4x3xf32=2.5", "i64=7" or "7"."""
    import numpy

    if text.endswith(".npy"):
        array: Array = load_file(text)
        return array
    if _INTEGER.fullmatch(text):
        return int(text)
    found = _TENSOR.fullmatch(text)
    if found is None:
        raise errors.ArgumentError(f"cannot read input {text!r}", hint=_HOW)
    shape = tuple(int(size) for size in found["shape"].split("x")[:-1])
    try:
        dtype = dtypes.from_spelling(found["dtype"])
    except errors.UnsupportedDtype as error:
        raise errors.ArgumentError(f"input {text!r}: {error.fact}", hint=_HOW) from error
    if found["value"] is None:
        return _random(shape, dtype, random)
    try:
        return numpy.full(shape, _VALUE[dtype.kind](found["value"]), dtype.numpy)
    except (ValueError, OverflowError) as error:
        raise errors.ArgumentError(
            f"input {text!r}: the value is not a valid {dtype.name}",
            hint=f"write a value of that type, such as {text.partition('=')[0]}=1",
        ) from error


def generator() -> Generator:
    """The generator of random values, the same in every run."""
    import numpy

    return numpy.random.default_rng(SEED)


def _parse_inputs(wanted: Sequence[Input], texts: Sequence[str], signature: Signature) -> list[Any]:
    random, values = generator(), []
    for text in texts:
        if text.endswith(".npz"):
            values += _load_many(text, [spec.name for spec in wanted])
        else:
            values.append(read(text, random))
    if len(values) != len(wanted):
        raise errors.ArgumentError(
            f"{len(values)} inputs given, the program takes {len(wanted)}",
            hint=f"the signature is {signature.text()}",
        )
    return [_restore_dtype(value, spec) for value, spec in zip(values, wanted, strict=True)]


def _restore_dtype(value: Any, spec: Input) -> Any:
    """Numpy stores bfloat16 and fp8 as raw bytes; the signature has their dtype.

    A number may be given as an array of one, "f32=2.5" or "i1=1".
    """
    if spec.kind == "scalar" and not isinstance(value, int) and value.ndim == 0:
        return value.item()
    if spec.kind != "tensor" or isinstance(value, int) or value.dtype.kind != "V":
        return value
    dtype = dtypes.from_torch_name(spec.dtype).numpy
    return value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value


def _make_random(
    wanted: Sequence[Input], signature: Signature, sizes: Sequence[Assignment]
) -> list[Any]:
    symbols, random = _symbols(wanted, signature.symbols, sizes), generator()
    values: list[Any] = []
    for spec in wanted:
        if spec.kind == "int":
            values.append(dims.evaluate(spec.value, symbols))
            continue
        if spec.kind == "scalar":
            values.append(dtypes.SCALARS[spec.dtype].python())
            continue
        shape = [dims.evaluate(dim, symbols) for dim in spec.shape]
        known = tuple(size for size in shape if size is not None)
        assert len(known) == len(shape)
        values.append(_random(known, dtypes.from_torch_name(spec.dtype), random))
    return values


def _symbols(
    wanted: Sequence[Input], ranges: Mapping[str, Range], sizes: Sequence[Assignment]
) -> dict[str, int]:
    """A value for each dynamic size: the given one, else the least allowed, but not 0."""
    used = [name for spec in wanted for dim in _dims(spec) for name in dims.names(dim)]
    unbounded = Range(1, None)
    symbols = {name: max(ranges.get(name, unbounded).minimum, 1) for name in used}
    for size in sizes:
        if size.name not in symbols:
            raise _no_such_size(size.name, symbols)
        if not size.value.isdecimal():
            raise errors.ArgumentError(
                f"size {size.name}={size.value!r} is not a whole number",
                hint=f"write --size {size.name}=8",
            )
        symbols[size.name] = int(size.value)
    return symbols


def _no_such_size(name: str, symbols: Iterable[str]) -> errors.ArgumentError:
    known = list(symbols)
    if known:
        return errors.ArgumentError(errors.unknown("size", name, known))
    return errors.ArgumentError(
        "no size is dynamic", hint="leave --size out, or export with dynamic_shapes"
    )


def _dims(spec: Input) -> tuple[dims.Dim, ...]:
    return (spec.value,) if spec.kind == "int" else spec.shape


def _random(shape: tuple[int, ...], dtype: Dtype, random: Generator) -> Array:
    """Normally distributed floats, or zeros of other dtypes."""
    import numpy

    if dtype.kind not in ("float", "complex"):
        return numpy.zeros(shape, dtype.numpy)
    values = numpy.asarray(random.standard_normal(shape))
    if dtype.kind == "complex":
        values = values + 1j * random.standard_normal(shape)
    return values.astype(dtype.numpy)


def load_file(path: str) -> Any:
    """Read an .npy or .npz file."""
    import numpy

    try:
        return numpy.load(Path(path).expanduser(), allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise errors.ArgumentError(f"cannot read {path}: {error}", hint=_SAVED) from error


def _load_many(path: str, names: Sequence[str]) -> list[Any]:
    """The arrays of an .npz: by input name, or in order if they were saved without names."""
    with load_file(path) as archive:
        ordered = [f"arr_{index}" for index in range(len(archive.files))]
        wanted = ordered if sorted(archive.files) == sorted(ordered) else names
        if sorted(archive.files) != sorted(wanted):
            raise errors.ArgumentError(
                f"{path} holds {', '.join(archive.files)}; the inputs are {', '.join(names)}",
                hint="save them under those names, numpy.savez(path, x=x), or without names",
            )
        try:
            return [archive[name] for name in wanted]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise errors.ArgumentError(f"cannot read {path}: {error}", hint=_SAVED) from error


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError(f"{text!r} is not a truth value")
    return _TRUTH[text.lower()]


def _whole(text: str) -> int:
    return int(text, 0)


_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_VALUE: dict[str, Callable[[str], Any]] = {
    "bool": _truth,
    "int": _whole,
    "uint": _whole,
    "float": float,
    "complex": complex,
}
