"""Tensors for IREE's command line tools: a tensor in, a raw file and its `--input` value out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from os import PathLike
from pathlib import Path

import numpy
import torch

from turbine import dtypes, errors

FilePath = str | PathLike[str]


def iree_tool_format_cli_input_arg(arg: torch.Tensor, file_path: FilePath) -> str:
    """The value of `--input` for a tensor whose bytes are in a file; unsigned ints are `ui8`.

    >>> import torch
    >>> from turbine.compat.tools import iree_tool_format_cli_input_arg
    >>> iree_tool_format_cli_input_arg(torch.ones(1, 2), "x.bin")
    '1x2xf32=@x.bin'
    """
    row = dtypes.of_torch(arg.dtype)
    # IREE's tools read i8 as signed, and know unsigned integers by name.
    name = row.torch_mlir if row.kind == "uint" else row.mlir
    return f"{'x'.join([*map(str, arg.shape), name])}=@{file_path}"


def iree_tool_prepare_input_args(
    args: Collection[torch.Tensor],
    /,
    *,
    file_paths: Iterable[FilePath] | None = None,
    file_path_prefix: FilePath | None = None,
) -> list[str]:
    """Write tensors to files, and return the value of `--input` for each.

    The files are `file_paths`, or `file_path_prefix` followed by 0.bin, 1.bin and so on.
    """
    if (file_paths is None) == (file_path_prefix is None):
        raise errors.ArgumentError(
            "give one of file_paths and file_path_prefix", hint='write file_path_prefix="input"'
        )
    numbered = [f"{file_path_prefix}{index}.bin" for index in range(len(args))]
    paths = numbered if file_paths is None else list(file_paths)
    if len(paths) != len(args):
        raise errors.ArgumentError(
            f"{len(args)} tensors and {len(paths)} file_paths", hint="give a path for each tensor"
        )
    for tensor, path in zip(args, paths, strict=True):
        write_raw_tensor(tensor, path)
    return [
        iree_tool_format_cli_input_arg(tensor, path)
        for tensor, path in zip(args, paths, strict=True)
    ]


def write_raw_tensor(tensor: torch.Tensor, file_path: FilePath) -> None:
    """Write the elements of a tensor in row-major order, without a header."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    Path(file_path).write_bytes(flat.view(torch.uint8).numpy().tobytes())


def read_raw_tensor(description: str, /) -> torch.Tensor:
    """Read the tensor that "1x2xf32=@x.bin" describes; `i8` is signed, `ui8` is not."""
    match = _DESCRIPTION.fullmatch(description)
    if match is None:
        raise errors.ArgumentError(
            f"invalid description of a tensor: {description!r}", hint="write 1x2xf32=@path"
        )
    shape = [int(size) for size in match["sizes"].split("x") if size]
    tensor = torch.empty(shape, dtype=dtypes.from_spelling(match["dtype"]).torch)
    data = numpy.fromfile(match["path"], dtype=numpy.uint8)
    if data.size != tensor.nbytes:
        raise errors.ArgumentError(
            f"{match['path']} has {data.size} bytes, but {description!r} is {tensor.nbytes}",
            hint="write the shape and dtype that the file was written with",
        )
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = data
    return tensor


# "complex" holds an x, so sizes are digits that an x follows.
_DESCRIPTION = re.compile(r"(?P<sizes>(\d+x)*)(?P<dtype>[^=]+)=@(?P<path>.+)")
