"""Truncated, corrupted and foreign files: an error, no crash and no wrong result.

Every test of random damage takes its number from `amount`, 1,000 of each kind under `--soak`.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

import turbine
from turbine import errors
from turbine.compiler import cache
from turbine.runtime import container, parameters
from turbine.runtime.archive import READERS, open_archive
from turbine.runtime.entries import Entry

ONES = torch.ones(2, 4)
Amount = Callable[[int, int], int]


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
    """The outcome of loading and calling a file: "right", "wrong", or the error's name."""
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


def test_truncated_artifacts_are_rejected(
    folder: Path, expected: Tensor, tmp_path: Path, amount: Amount
) -> None:
    whole = (folder / "one.turbine").read_bytes()
    path = tmp_path / "cut.turbine"
    step = max(len(whole) // amount(100, 1000), 1)
    lengths = [*range(64), *range(64, len(whole), step), len(whole) - 1]
    outcomes = set()
    for length in lengths:
        path.write_bytes(whole[:length])
        outcomes.add(outcome(path, expected))
    assert outcomes == {"ArtifactError"}
    path.write_bytes(whole)
    assert outcome(path, expected) == "right"


def test_trailing_bytes_are_ignored(folder: Path, expected: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "long.turbine"
    path.write_bytes((folder / "one.turbine").read_bytes() + b"rubbish")
    assert outcome(path, expected) == "right"


# Changed.


def regions(path: Path) -> dict[str, range]:
    """The ranges of the parts of an artifact in its file."""
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


def test_the_parts_cover_the_whole_file(folder: Path) -> None:
    assert list(regions(folder / "one.turbine")) == PARTS


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_bit_is_detected(
    part: str, folder: Path, expected: Tensor, tmp_path: Path, amount: Amount
) -> None:
    whole = (folder / "one.turbine").read_bytes()
    bits = [8 * byte + bit for byte in regions(folder / "one.turbine")[part] for bit in range(8)]
    path = tmp_path / "changed.turbine"
    outcomes = set()
    for bit in random.Random(part).sample(bits, min(amount(60, 1000), len(bits))):
        path.write_bytes(flipped(whole, bit))
        outcomes.add(outcome(path, expected))
    assert outcomes <= {"ArtifactError", "ArtifactVersionError"}


def test_a_flipped_bit_in_padding_is_harmless(
    folder: Path, expected: Tensor, tmp_path: Path
) -> None:
    whole = (folder / "one.turbine").read_bytes()
    taken = {byte for part in regions(folder / "one.turbine").values() for byte in part}
    gaps = [byte for byte in range(len(whole)) if byte not in taken]
    path = tmp_path / "changed.turbine"
    for byte in random.Random(0).sample(gaps, 20):
        path.write_bytes(flipped(whole, 8 * byte))
        assert outcome(path, expected) == "right"


def test_checksums_can_be_skipped(folder: Path, tmp_path: Path, expected: Tensor) -> None:
    whole = (folder / "one.turbine").read_bytes()
    first = regions(folder / "one.turbine")["weight:bias"].start
    path = tmp_path / "changed.turbine"
    path.write_bytes(flipped(whole, 8 * first + 30))
    with turbine.config.override(verify_weights=False):
        assert outcome(path, expected) == "wrong"
    assert outcome(path, expected) == "ArtifactError"


def test_every_call_reports_corruption(folder: Path, tmp_path: Path) -> None:
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
def test_another_format_version_is_rejected(version: int, folder: Path, tmp_path: Path) -> None:
    whole = (folder / "one.turbine").read_bytes()
    path = tmp_path / "future.turbine"
    path.write_bytes(whole[:8] + struct.pack("<I", version) + whole[12:])
    with pytest.raises(errors.ArtifactVersionError, match=f"has format {version}, this turbine"):
        turbine.load(path)


# Archives.


def test_truncated_archives_are_rejected(
    folder: Path, expected: Tensor, tmp_path: Path, amount: Amount
) -> None:
    whole = (folder / "two.irpa").read_bytes()
    (tmp_path / "two.turbine").write_bytes((folder / "two.turbine").read_bytes())
    end = len(whole.rstrip(b"\0"))
    outcomes = set()
    for length in [*range(0, end, max(end // amount(50, 1000), 1)), end - 1]:
        (tmp_path / "two.irpa").write_bytes(whole[:length])
        outcomes.add(outcome(tmp_path / "two.turbine", expected))
    assert outcomes == {"ParameterError"}
    (tmp_path / "two.irpa").write_bytes(whole)
    assert outcome(tmp_path / "two.turbine", expected) == "right"


def test_a_flipped_bit_of_an_archive_never_changes_results(
    folder: Path, expected: Tensor, tmp_path: Path, amount: Amount
) -> None:
    whole = (folder / "two.irpa").read_bytes()
    (tmp_path / "two.turbine").write_bytes((folder / "two.turbine").read_bytes())
    used = [8 * byte + bit for byte in range(len(whole)) if whole[byte] for bit in range(8)]
    outcomes = set()
    for bit in random.Random(1).choices(used, k=amount(300, 1000)):
        (tmp_path / "two.irpa").write_bytes(flipped(whole, bit))
        outcomes.add(outcome(tmp_path / "two.turbine", expected))
    assert "ParameterError" in outcomes
    assert outcomes <= {"ParameterError", "right"}


def test_a_truncated_archive_passed_to_load_is_rejected(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "two.irpa").read_bytes().rstrip(b"\0")
    for length in range(0, len(whole), 20):
        (tmp_path / "cut.irpa").write_bytes(whole[:length])
        with pytest.raises(errors.ParameterError):
            turbine.load(folder / "one.turbine", weights=tmp_path / "cut.irpa")


def test_files_that_are_not_archives_are_rejected(folder: Path, tmp_path: Path) -> None:
    for suffix in READERS:
        path = tmp_path / f"text{suffix}"
        for text in ("", "not an archive", "not an archive" * 1000, "\0" * 5000):
            path.write_text(text)
            with pytest.raises(errors.ParameterError):
                turbine.load(folder / "one.turbine", weights=path)


# Archives of every format that a user gives: they have no checksum for the weights.

VALUES = {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.arange(3.0)}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights in each format, and the artifact that reads them."""
    folder = tmp_path_factory.mktemp("archives")
    files = {suffix: folder / f"weights{suffix}" for suffix in READERS}
    safetensors.save_file(VALUES, files[".safetensors"])
    entries = [
        Entry(key, t.numpy().data.cast("B"), "float32", tuple(t.shape)) for key, t in VALUES.items()
    ]
    parameters.save_archive(files[".irpa"], entries)
    writer = gguf.GGUFWriter(str(files[".gguf"]), "test")
    for key, tensor in VALUES.items():
        writer.add_tensor(key, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return files


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """A flipped bit, a cut, or a run of bytes that are something else."""
    kind = chance.randrange(4)
    if kind == 0:
        return whole[: chance.randrange(len(whole))]
    if kind == 1:
        at, run = chance.randrange(len(whole)), chance.randbytes(chance.randrange(1, 9))
        return whole[:at] + run + whole[at + len(run) :]
    head = len(whole) if kind == 2 else min(200, len(whole))
    return flipped(whole, chance.randrange(8 * head))


def read_values(path: Path) -> dict[str, bytes] | None:
    """The bytes of each parameter, or None where the archive is refused."""
    try:
        entries = open_archive(path).entries
        return {key: bytes(entry.data) for key, entry in entries.items()}
    except errors.ParameterError:
        return None


@pytest.mark.parametrize("suffix", READERS)
def test_corrupted_archives_are_rejected_or_read_in_bounds(
    suffix: str, archives: dict[str, Path], tmp_path: Path, amount: Amount
) -> None:
    whole = archives[suffix].read_bytes()
    assert set(read_values(archives[suffix]) or ()) >= set(VALUES)
    path = tmp_path / f"damaged{suffix}"
    chance = random.Random(suffix)
    refused = 0
    few = 60 if suffix == ".gguf" else 300  # whose package takes a tenth of a second for each
    for _ in range(amount(few, 3000)):
        data = damaged(whole, chance)
        path.write_bytes(data)
        found = read_values(path)
        refused += found is None
        assert found is None or all(value in data or is_splat(value) for value in found.values())
    assert refused > 0


def is_splat(value: bytes) -> bool:
    """Whether the bytes repeat, as those that an .irpa stands for by their pattern."""
    return any(value == value[:width] * (len(value) // width) for width in (1, 2, 4, 8, 16))


# Entries of the compile cache.


def test_a_corrupted_cache_entry_is_recompiled(tmp_path: Path, amount: Amount) -> None:
    key, chance = cache.key_of(["a"]), random.Random(0)
    entry = cache.Entry(chance.randbytes(5000), {"strategy": "plain", "seconds": 0.5})
    with turbine.config.override(cache_dir=tmp_path / "cache"):
        cache.write(key, entry)
        [path] = (tmp_path / "cache").glob("*/*")
        whole = path.read_bytes()
        for _ in range(amount(200, 1000)):
            data = damaged(whole, chance)
            path.write_bytes(data)
            assert cache.read(key) == (entry if data == whole else None)


def test_a_misnamed_cache_entry_is_ignored(tmp_path: Path) -> None:
    with turbine.config.override(cache_dir=tmp_path / "cache"):
        for name in "ab":
            cache.write(cache.key_of([name]), cache.Entry(name.encode(), {}))
        first, second = (cache.path_of(cache.key_of([name]), tmp_path / "cache") for name in "ab")
        first.replace(second)
        assert cache.read(cache.key_of(["b"])) is None


# Not artifacts.


def test_files_that_are_not_artifacts_are_rejected(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "other"
    for data in (b"", b"short", b"not an artifact " * 1000, b"\0" * 10_000, b"\x7fELF" * 4096):
        path.write_bytes(data)
        with pytest.raises(errors.ArtifactError, match="not a turbine artifact") as caught:
            turbine.load(path)
        assert caught.value.where == str(path)


def test_a_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match=r"cannot open .*: Is a directory"):
        turbine.load(tmp_path)


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match=r"cannot open .*: No such file"):
        turbine.load(tmp_path / "no.turbine")


def test_a_huge_manifest_length_is_rejected(folder: Path, tmp_path: Path) -> None:
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
    "lengths of text": [{**SECTION, "length": "0"}],
    "offsets that are not whole": [{**SECTION, "offset": 0.5}],
    "checksums of text": [{**SECTION, "crc32": "0"}],
    "names that are numbers": [{**SECTION, "name": 1}],
}


@pytest.mark.parametrize("name", SENSELESS)
def test_invalid_sections_are_rejected(name: str, folder: Path, tmp_path: Path) -> None:
    manifest = container.open_file(folder / "one.turbine").manifest
    path = tmp_path / "odd.turbine"
    write_manifest(path, {**manifest, "sections": SENSELESS[name]})
    with pytest.raises(errors.ArtifactError):
        turbine.load(path)


@pytest.mark.parametrize("manifest", [None, 3, "text", [], {}], ids=repr)
def test_a_manifest_of_another_type_is_rejected(manifest: object, tmp_path: Path) -> None:
    path = tmp_path / "odd.turbine"
    write_manifest(path, manifest)
    with pytest.raises(errors.ArtifactError):
        turbine.load(path)


def write_manifest(path: Path, manifest: object) -> None:
    """Write a file with a valid header and this manifest, and nothing else."""
    text = json.dumps(manifest).encode()
    header = container._HEADER.pack(
        container.MAGIC, container.FORMAT, len(text), hashlib.sha256(text).digest()
    )
    path.write_bytes(header + text + b"\0" * 10_000)
