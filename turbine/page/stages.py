"""The stages of a compiled program as text, linked by the ops of its graph.

`Stages` is what an artifact keeps if it was compiled with `describe`. An op is known by its place
in `ops`; lines of text, dispatches and lines of the model refer to ops by these numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from turbine import errors
from turbine.page import decoding


@dataclass(frozen=True)
class Op:
    """An op of the captured graph, or a place that IR comes from where there is no graph."""

    name: str
    places: tuple[str, ...] = ()  # "file:line" of the model, innermost first
    module: str = ""  # "encoder.layer.0"
    operations: float = 0.0  # an estimate


@dataclass(frozen=True)
class Line:
    """A line of a stage's text, and the ops it belongs to."""

    text: str
    ops: tuple[int, ...] = ()


@dataclass(frozen=True)
class DispatchText:
    """A dispatch: the ops it computes, its IR and its code."""

    ops: tuple[int, ...] = ()
    ir: str = ""
    code: str = ""  # assembly


@dataclass(frozen=True)
class Stages:
    """The stages of a program."""

    ops: tuple[Op, ...] = ()
    graph: tuple[Line, ...] = ()
    ir: tuple[Line, ...] = ()  # in the torch dialect
    dispatches: dict[str, DispatchText] = field(default_factory=dict)
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # path -> line -> text

    def to_bytes(self) -> bytes:
        """A section of an artifact."""
        return zlib.compress(decoding.encode(self).encode(), 9)

    @staticmethod
    def from_bytes(data: bytes | memoryview, source: str) -> Stages:
        """The stages in a section of the artifact `source`."""
        unpack = zlib.decompressobj()
        try:
            text = unpack.decompress(bytes(data), _MOST_BYTES)
            if unpack.unconsumed_tail:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
            return decoding.decode(Stages, text.decode())
        except (ValueError, zlib.error) as error:
            raise errors.ArtifactError(
                f"the stages are damaged: {error}", where=source, hint="compile the model again"
            ) from error


SECTION = "stages"  # of an artifact; those of other variants have a number, as their code does
_MOST_BYTES = 1 << 30


def section_of(code: str) -> str:
    """The section with the stages of the code in another section."""
    _, separator, number = code.partition(":")
    return f"{SECTION}{separator}{number}"


def join(several: Sequence[Stages]) -> Stages:
    """The stages of several parts as those of one program; ops are numbered anew."""
    joined = Stages()
    for one in several:
        start = len(joined.ops)
        dispatches = {
            name: replace(dispatch, ops=_shift(dispatch.ops, start))
            for name, dispatch in one.dispatches.items()
        }
        joined = Stages(
            joined.ops + one.ops,
            joined.graph + tuple(replace(row, ops=_shift(row.ops, start)) for row in one.graph),
            joined.ir + tuple(replace(row, ops=_shift(row.ops, start)) for row in one.ir),
            joined.dispatches | dispatches,
            _merge(joined.files, one.files),
        )
    return joined


def _shift(ops: Sequence[int], start: int) -> tuple[int, ...]:
    return tuple(op + start for op in ops)


def _merge(
    files: dict[str, dict[str, str]], others: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    both = {path: files.get(path, {}) | others.get(path, {}) for path in {**files, **others}}
    return {path: dict(sorted(lines.items(), key=_by_number)) for path, lines in both.items()}


def _by_number(line: tuple[str, str]) -> int:
    return int(line[0])
