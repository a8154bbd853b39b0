"""Truncated and corrupted archives are rejected or read in bounds."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.runtime.archives import WRITERS, save, save_gguf
from turbine import aot, errors
from turbine.aot import ParameterArchive
from turbine.runtime import irpa
from turbine.runtime.archive import READERS

# Damage.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small archive of each type."""
    folder = tmp_path_factory.mktemp("whole")
    state = {"one": torch.randn(4, 32), "two": torch.arange(3.0)}
    for suffix, write in WRITERS.items():
        write(folder / f"whole{suffix}", state)
    save_gguf(folder / "whole.gguf", state, {"one": "Q8_0"})
    return {suffix: (folder / f"whole{suffix}").read_bytes() for suffix in READERS}


# What Python's own modules say of a file that they cannot read.
OTHERS = re.compile("unpack|codec|delimiter|Expecting|buffer of|index out|is not a valid|KeyError")


def outcome(path: Path, data: bytes) -> str:
    """The outcome of reading a whole file: "read", or the error's name."""
    path.write_bytes(data)
    try:
        for _, entry in ParameterArchive(path).items():
            entry.as_flat_tensor().sum()
            entry.as_tensor().sum()
    except errors.ParameterError as error:
        return type(error).__name__ if not OTHERS.search(str(error)) else str(error)
    return "read"


@pytest.mark.parametrize("suffix", READERS)
def test_a_truncated_archive_is_rejected(
    suffix: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path, data = tmp_path / f"cut{suffix}", whole[suffix]
    end = len(data.rstrip(b"\0"))
    assert outcome(path, data) == "read"
    lengths = [*range(0, end, max(end // 150, 1)), end - 1]
    assert {outcome(path, data[:length]) for length in lengths} == {"ParameterError"}


@pytest.mark.parametrize("suffix", READERS)
def test_a_corrupted_byte_is_detected_or_harmless(
    suffix: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path, data, chance = tmp_path / f"changed{suffix}", whole[suffix], random.Random(0)
    outcomes = set()
    for _ in range(500):
        changed = bytearray(data)
        changed[chance.randrange(min(len(data), 600))] = chance.randrange(256)
        outcomes.add(outcome(path, bytes(changed)))
    assert "ParameterError" in outcomes
    assert outcomes <= {"ParameterError", "read"}


@pytest.mark.parametrize("suffix", READERS)
def test_absurd_header_numbers_are_rejected(
    suffix: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path, data = tmp_path / f"absurd{suffix}", whole[suffix]
    outcomes = set()
    for number in (2**64 - 1, 2**63, 2**62 + 7, 2**40, 2**32 - 1):
        for start in range(0, 320, 4):
            changed = bytearray(data)
            struct.pack_into("<Q", changed, start, number)
            outcomes.add(outcome(path, bytes(changed)))
    assert outcomes <= {"ParameterError", "read"}
    assert "ParameterError" in outcomes


HEADERS = {
    "no object": "[1, 2]",
    "a number": "7",
    "no JSON": "{",
    "an entry that is a list": '{"x": []}',
    "no offsets": '{"x": {"dtype": "F32", "shape": [1]}}',
    "offsets outside": '{"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}',
    "offsets before": '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [-9, -5]}}',
    "offsets turned round": '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
    "offsets that are fractions": '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0.5, 4]}}',
    "a shape of another size": '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
    "negative sizes": '{"x": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}',
    "a shape that is a word": '{"x": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}}',
    "a name twice": '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "x": {}}',
    "a dtype that is a list": '{"x": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}',
    "deep nesting": "[" * 100_000,
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_invalid_safetensors_header_is_rejected(name: str, tmp_path: Path) -> None:
    text = HEADERS[name].encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    with pytest.raises(errors.ParameterError, match="cannot read the archive") as caught:
        ParameterArchive(path)
    assert caught.value.where == str(path)


def test_a_failed_save_keeps_the_old_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "x.irpa", {"x": torch.zeros(3)})
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(irpa, "_places", fail)
    with pytest.raises(errors.ArtifactError, match="No space left on device"):
        save(path, {"x": torch.ones(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match="no folder"):
        aot.save_module_parameters(tmp_path / "none" / "x.irpa", nn.Linear(2, 2))


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ParameterError, match=r"no archive at .*none\.irpa"):
        ParameterArchive(tmp_path / "none.irpa")
