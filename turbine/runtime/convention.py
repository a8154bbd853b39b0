"""The calling convention of a compiled function: a VM function in, kinds of values out.

IREE does not convert arguments: an int for a float arrives as 0. So the kinds are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turbine import errors
from turbine.dtypes import TABLE, Dtype

REF, FLOATS = "r", "fF"
BITS_OF_INT = {"i": 32, "I": 64}
_KINDS = {REF: "tensor", "i": "i32", "I": "i64", "f": "f32", "F": "f64"}
ASYNC = "$async"
FENCES = 2  # the last two arguments: one to wait for, one to signal


@dataclass(frozen=True)
class TensorType:
    """The declared type of a tensor argument."""

    element: str  # as MLIR writes it
    shape: tuple[int | None, ...]

    @property
    def text(self) -> str:
        """The type as text, "f32[2, ?]"."""
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.element}[{sizes}]"

    def problem(self, row: Dtype, shape: Sequence[int]) -> str | None:
        """Why a tensor does not have this type; None if it does."""
        if row.mlir != self.element:
            names = " or ".join(known.name for known in TABLE if known.mlir == self.element)
            return f"has dtype {row.name}, expected {names or self.element}"
        if len(shape) != len(self.shape):
            return f"has {len(shape)} dims {tuple(shape)}, expected {len(self.shape)}"
        for axis, (size, wanted) in enumerate(zip(shape, self.shape, strict=True)):
            if wanted is not None and size != wanted:
                return f"has size {size} along axis {axis}, expected {wanted}"
        return None


@dataclass(frozen=True)
class Convention:
    """A letter for each argument and result: r is a tensor, i and I ints, f and F floats."""

    name: str
    arguments: str  # without fences
    results: str
    types: dict[int, TensorType]  # of arguments with a declared type
    storage: dict[int, int]  # argument that stores a result -> result
    fenced: bool

    @staticmethod
    def of(function: Any) -> Convention:
        """The convention of a function of a VM module."""
        # IREE has the letters only in this text.
        letters = _LETTERS.search(repr(function))
        assert letters is not None, function
        reflection: dict[str, str] = function.reflection
        fenced = function.name.endswith(ASYNC) or reflection.get(_MODEL) == _FENCED
        arguments = letters["arguments"].removeprefix("v")
        declared = dict(_INPUT.findall(reflection.get(_DECLARATION, "")))
        storage = {int(n): _STORAGE.search(text) for n, text in declared.items()}
        return Convention(
            function.name,
            arguments[:-FENCES] if fenced else arguments,
            letters["results"].removeprefix("v"),
            {int(n): t for n, text in declared.items() if (t := _tensor_type(text)) is not None},
            {n: int(found[1]) for n, found in storage.items() if found is not None},
            fenced,
        )

    def places_of(self, args: Sequence[Any], outputs: Sequence[Any]) -> dict[int, int]:
        """{argument: output} for outputs passed as storage; empty if results are copied to them."""
        given, taken, tensors = len(args), len(self.arguments), self.results.count(REF)
        places = {}
        if outputs and given != taken:
            places = self.storage or {given + n: n for n in range(len(outputs))}
        if given + len(places) != taken:
            raise errors.ArgumentError(
                f"{self.name} takes {taken} arguments, this call has {given + len(places)}",
                hint=f"they are ({', '.join(map(self._type_text, range(taken)))})",
            )
        if outputs and len(outputs) != tensors and (tensors or not places):
            raise errors.ArgumentError(
                f"{self.name} returns {tensors} tensors, this call has {len(outputs)} outputs",
                hint="give one output for each tensor, in order, or none",
            )
        return places

    def _type_text(self, position: int) -> str:
        known = self.types.get(position)
        return _KINDS[self.arguments[position]] if known is None else known.text


_LETTERS = re.compile(r"\(0(?P<arguments>\w+)_(?P<results>\w+)\)")
_DECLARATION, _MODEL, _FENCED = "iree.abi.declaration", "iree.abi.model", "coarse-fences"
_INPUT = re.compile(r"%input(\d+): ([^%]*)")
_STORAGE = re.compile(r"iree\.abi\.output = (\d+)")
_TENSOR = re.compile(r"tensor<(?P<sizes>(?:(?:\d+|\?)x)*)(?P<element>\w+(?:<\w+>)?)>")


def _tensor_type(text: str) -> TensorType | None:
    found = _TENSOR.match(text)
    if found is None:
        return None
    sizes = found["sizes"].split("x")[:-1]
    return TensorType(found["element"], tuple(None if s == "?" else int(s) for s in sizes))
