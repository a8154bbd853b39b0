"""Files that are cut, changed or something else: an error, no crash and no wrong number."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import errors
from turbine.runtime import container
from turbine.runtime.archive import READERS

ONES = torch.ones(2, 4)
FLIPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that holds its weights, and one that names an archive."""
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    output = turbine.aot.export(nn.Linear(4, 3), args=(ONES,))
    output.compile(folder / "one.turbine")
    output.compile(folder / "two.turbine", archive=folder / "two.irpa")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Tensor:
    result: Tensor = turbine.load(folder / "one.turbine")(ONES)
    return result


def outcome(path: Path, expected: Tensor) -> str:
    """What loading and calling a file gives: "right", "wrong", or the error's name."""
    try:
        found = turbine.load(path)(ONES)
    except (errors.ArtifactError, errors.ParameterError) as error:
        return type(error).__name__
    return "right" if torch.equal(found, expected) else "wrong"


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# Cut off.


def test_a_file_cut_anywhere_is_refused(folder: Path, expected: Tensor, tmp_path: Path) -> None:
    whole = (folder / "one.turbine").read_bytes()
    path = tmp_path / "cut.turbine"
    lengths = [*range(64), *range(64, len(whole), max(len(whole) // 100, 1)), len(whole) - 1]
    outcomes = set()
    for length in lengths:
        path.write_bytes(whole[:length])
        outcomes.add(outcome(path, expected))
    assert outcomes == {"ArtifactError"}
    path.write_bytes(whole)
    assert outcome(path, expected) == "right"


def test_bytes_after_the_end_do_no_harm(folder: Path, expected: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "long.turbine"
    path.write_bytes((folder / "one.turbine").read_bytes() + b"rubbish")
    assert outcome(path, expected) == "right"


# Changed.


def regions(path: Path) -> dict[str, range]:
    """Where the parts of an artifact lie in its file."""
    contents = container.open_file(path)
    _, _, length, _ = container._HEADER.unpack_from(contents.data)
    start = container._HEADER.size
    return {
        "header": range(start),
        "manifest": range(start, start + length),
        **{
            section.name: range(section.offset, section.offset + section.length)
            for section in contents.sections.values()
        },
    }


PARTS = ["header", "manifest", "code", "weight:weight", "weight:bias"]


def test_the_parts_are_all_there_is(folder: Path) -> None:
    assert list(regions(folder / "one.turbine")) == PARTS


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_bit_is_noticed(
    part: str, folder: Path, expected: Tensor, tmp_path: Path
) -> None:
    whole = (folder / "one.turbine").read_bytes()
    bits = [8 * byte + bit for byte in regions(folder / "one.turbine")[part] for bit in range(8)]
    path = tmp_path / "changed.turbine"
    outcomes = set()
    for bit in random.Random(part).sample(bits, min(FLIPS, len(bits))):
        path.write_bytes(flipped(whole, bit))
        outcomes.add(outcome(path, expected))
    assert outcomes <= {"ArtifactError", "ArtifactVersionError"}


def test_a_changed_bit_between_the_parts_does_no_harm(
    folder: Path, expected: Tensor, tmp_path: Path
) -> None:
    whole = (folder / "one.turbine").read_bytes()
    taken = {byte for part in regions(folder / "one.turbine").values() for byte in part}
    gaps = [byte for byte in range(len(whole)) if byte not in taken]
    path = tmp_path / "changed.turbine"
    for byte in random.Random(0).sample(gaps, 20):
        path.write_bytes(flipped(whole, 8 * byte))
        assert outcome(path, expected) == "right"


def test_damaged_weights_are_not_noticed_by_those_who_do_not_want_to_know(
    folder: Path, tmp_path: Path, expected: Tensor
) -> None:
    whole = (folder / "one.turbine").read_bytes()
    first = regions(folder / "one.turbine")["weight:bias"].start
    path = tmp_path / "changed.turbine"
    path.write_bytes(flipped(whole, 8 * first + 30))
    with turbine.config.override(verify_weights=False):
        assert outcome(path, expected) == "wrong"
    assert outcome(path, expected) == "ArtifactError"


def test_after_damage_is_reported_every_call_reports_it(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "one.turbine").read_bytes()
    first = regions(folder / "one.turbine")["weight:bias"].start
    path = tmp_path / "changed.turbine"
    path.write_bytes(flipped(whole, 8 * first))
    artifact = turbine.load(path)
    for _ in range(2):
        with pytest.raises(errors.ArtifactError, match="weight:bias is damaged") as caught:
            artifact(ONES)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("version", [0, 1, 3, 2**32 - 1])
def test_another_format_version_is_refused(version: int, folder: Path, tmp_path: Path) -> None:
    whole = (folder / "one.turbine").read_bytes()
    path = tmp_path / "future.turbine"
    path.write_bytes(whole[:8] + struct.pack("<I", version) + whole[12:])
    with pytest.raises(errors.ArtifactVersionError, match=f"has format {version}, this turbine"):
        turbine.load(path)


# Archives.


def test_an_archive_cut_anywhere_is_refused(folder: Path, expected: Tensor, tmp_path: Path) -> None:
    whole = (folder / "two.irpa").read_bytes()
    (tmp_path / "two.turbine").write_bytes((folder / "two.turbine").read_bytes())
    end = len(whole.rstrip(b"\0"))
    outcomes = set()
    for length in [*range(0, end, max(end // 50, 1)), end - 1]:
        (tmp_path / "two.irpa").write_bytes(whole[:length])
        outcomes.add(outcome(tmp_path / "two.turbine", expected))
    assert outcomes == {"ParameterError"}
    (tmp_path / "two.irpa").write_bytes(whole)
    assert outcome(tmp_path / "two.turbine", expected) == "right"


def test_a_changed_bit_of_an_archive_never_changes_the_numbers(
    folder: Path, expected: Tensor, tmp_path: Path
) -> None:
    whole = (folder / "two.irpa").read_bytes()
    (tmp_path / "two.turbine").write_bytes((folder / "two.turbine").read_bytes())
    used = [8 * byte + bit for byte in range(len(whole)) if whole[byte] for bit in range(8)]
    outcomes = set()
    for bit in random.Random(1).sample(used, 8 * FLIPS):
        (tmp_path / "two.irpa").write_bytes(flipped(whole, bit))
        outcomes.add(outcome(tmp_path / "two.turbine", expected))
    assert "ParameterError" in outcomes
    assert outcomes <= {"ParameterError", "right"}


def test_a_cut_archive_given_at_load_is_refused(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "two.irpa").read_bytes().rstrip(b"\0")
    for length in range(0, len(whole), 20):
        (tmp_path / "cut.irpa").write_bytes(whole[:length])
        with pytest.raises(errors.ParameterError):
            turbine.load(folder / "one.turbine", weights=tmp_path / "cut.irpa")


def test_what_is_no_archive_is_refused(folder: Path, tmp_path: Path) -> None:
    for suffix in READERS:
        path = tmp_path / f"text{suffix}"
        for text in ("", "not an archive", "not an archive" * 1000, "\0" * 5000):
            path.write_text(text)
            with pytest.raises(errors.ParameterError):
                turbine.load(folder / "one.turbine", weights=path)


# Not artifacts.


def test_what_is_no_artifact_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "other"
    for data in (b"", b"short", b"not an artifact " * 1000, b"\0" * 10_000, b"\x7fELF" * 4096):
        path.write_bytes(data)
        with pytest.raises(errors.ArtifactError, match="not a turbine artifact") as caught:
            turbine.load(path)
        assert caught.value.where == str(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match=r"cannot open .*: Is a directory"):
        turbine.load(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match=r"cannot open .*: No such file"):
        turbine.load(tmp_path / "no.turbine")


def test_a_huge_manifest_length_is_refused(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "one.turbine").read_bytes()
    path = tmp_path / "huge.turbine"
    path.write_bytes(whole[:12] + struct.pack("<Q", 2**64 - 1) + whole[20:])
    with pytest.raises(errors.ArtifactError, match="the manifest is damaged"):
        turbine.load(path)


SECTION = {"name": "code", "offset": 0, "length": 10, "crc32": 0}
SENSELESS = {
    "a section before the file": [{**SECTION, "offset": -(10**9)}],
    "a section of negative length": [{**SECTION, "length": -5}],
    "a section after the file": [{**SECTION, "offset": 10**12}],
    "no section": [],
    "a section without a name": [{"offset": 0}],
    "sections that are a number": 3,
    "sections of text": ["code"],
    "offsets of text": [{**SECTION, "offset": "0"}],
}


@pytest.mark.parametrize("name", SENSELESS)
def test_a_senseless_manifest_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    manifest = container.open_file(folder / "one.turbine").manifest
    path = tmp_path / "odd.turbine"
    write_manifest(path, {**manifest, "sections": SENSELESS[name]})
    with pytest.raises(errors.ArtifactError):
        turbine.load(path)


@pytest.mark.parametrize("manifest", [None, 3, "text", [], {}], ids=repr)
def test_a_manifest_that_is_no_manifest_is_refused(manifest: object, tmp_path: Path) -> None:
    path = tmp_path / "odd.turbine"
    write_manifest(path, manifest)
    with pytest.raises(errors.ArtifactError):
        turbine.load(path)


def write_manifest(path: Path, manifest: object) -> None:
    """A file with a header that fits its manifest, and nothing behind it."""
    text = json.dumps(manifest).encode()
    header = container._HEADER.pack(
        container.MAGIC, container.FORMAT, len(text), hashlib.sha256(text).digest()
    )
    path.write_bytes(header + text + b"\0" * 10_000)
