"""Archives of three formats: round trips, other tools, and memory use."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import iree.runtime as iree
import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.runtime.archives import WRITERS, save, save_gguf, tensors
from tests.runtime.test_weights import bits, random_bits
from turbine import aot, dtypes, errors
from turbine.aot import ParameterArchive, ParameterArchiveBuilder
from turbine.runtime import irpa, safetensors_file
from turbine.runtime.archive import READERS, open_archive
from turbine.runtime.entries import Entry

ROWS = pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.name)


SHAPES = {"scalar": (), "empty": (0, 3), "one": (1,), "many": (5, 7)}


def same_bits(found: Tensor, expected: Tensor) -> bool:
    same_type = found.dtype == expected.dtype and found.shape == expected.shape
    return same_type and torch.equal(bits(found), bits(expected))


# Round trips.


@ROWS
def test_every_dtype_round_trips(row: dtypes.Dtype, tmp_path: Path) -> None:
    state = {name: random_bits(shape, row.torch) for name, shape in SHAPES.items()}
    state["turned"] = random_bits((5, 7), row.torch).T
    state["sliced"] = random_bits((5, 7), row.torch)[1::2, ::3]
    found = tensors(save(tmp_path / "all.irpa", state))
    assert list(found) == list(state)
    assert [name for name in state if not same_bits(found[name], state[name])] == []


@ROWS
def test_iree_reads_our_archives(row: dtypes.Dtype, tmp_path: Path) -> None:
    state = {name: random_bits(shape, row.torch) for name, shape in SHAPES.items()}
    index = iree.ParameterIndex()
    index.load(str(save(tmp_path / "all.irpa", state)))
    found = {key: bytes(entry.file_view) for key, entry in index.items()}
    assert found == {name: bytes(bits(value).numpy()) for name, value in state.items()}


def test_conjugate_and_negative_views_are_saved_by_value(tmp_path: Path) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    found = tensors(save(tmp_path / "z.irpa", {"conjugate": z.conj(), "negative": z.conj().imag}))
    assert found["conjugate"].tolist() == [1 - 2j, 3 + 4j]
    assert found["negative"].tolist() == [-2, 4]


def test_metadata_matches_other_tools(tmp_path: Path) -> None:
    path = save(tmp_path / "one.irpa", {"x": torch.zeros(2, 3, dtype=torch.bfloat16)})
    index = iree.ParameterIndex()
    index.load(str(path))
    metadata = index.items()[0][1].metadata.decode()
    prefix, _, text = metadata.partition(":")
    assert prefix == "PYTORCH"
    assert json.loads(text) == {
        "type": "Tensor",
        "dtype": "bfloat16",
        "shape": [2, 3],
        "dtype_desc": {
            "class_name": "dtype",
            "is_complex": False,
            "is_floating_point": True,
            "is_signed": True,
            "itemsize": 2,
        },
    }


@ROWS
def test_metadata_names_the_torch_dtype(row: dtypes.Dtype) -> None:
    text = irpa.metadata(Entry("x", memoryview(b""), row.name, (0,))).partition(":")[2]
    facts = json.loads(text)["dtype_desc"]
    assert facts == {
        "class_name": type(row.torch).__name__,
        "is_complex": row.torch.is_complex,
        "is_floating_point": row.torch.is_floating_point,
        "is_signed": row.torch.is_signed,
        "itemsize": row.torch.itemsize,
    }


def test_archives_written_by_iree_are_read(tmp_path: Path) -> None:
    """With its own writer, an entry of a dtype we do not know, and one without metadata."""
    index = iree.ParameterIndex()
    data = numpy.arange(6, dtype=numpy.float32)
    known = 'PYTORCH:{"type": "Tensor", "dtype": "float32", "shape": [2, 3]}'
    index.add_buffer("known", data, metadata=known)
    index.add_buffer("unknown", data, metadata=known.replace("float32", "unknown"))
    index.add_buffer("plain", data)
    index.create_archive_file(str(tmp_path / "theirs.irpa"))
    found = dict(ParameterArchive(tmp_path / "theirs.irpa").items())
    assert found["known"].as_tensor().tolist() == [[0, 1, 2], [3, 4, 5]]
    for name in ("unknown", "plain"):
        assert found[name].as_flat_tensor().tolist() == list(data.tobytes())
        with pytest.raises(errors.ParameterError, match=f"does not say .* {name} is"):
            found[name].as_tensor()


@pytest.mark.parametrize("name", safetensors_file.DTYPES.values())
def test_safetensors_files_are_read(name: str, tmp_path: Path) -> None:
    dtype = dtypes.from_torch_name(name).torch
    state = {key: random_bits(shape, dtype) for key, shape in SHAPES.items()}
    save_file(state, tmp_path / "all.safetensors", metadata={"format": "pt"})
    found = tensors(tmp_path / "all.safetensors")
    assert [key for key in state if not same_bits(found[key], state[key])] == []


@pytest.mark.parametrize("name", "float16 float32 float64 int8 int16 int32 int64".split())
def test_plain_gguf_tensors_are_read(name: str, tmp_path: Path) -> None:
    state = {"a.weight": random_bits((5, 7), dtypes.from_torch_name(name).torch)}
    found = tensors(save_gguf(tmp_path / "all.gguf", state))
    assert same_bits(found["a.weight"], state["a.weight"])


def test_gguf_bfloat16_is_read(tmp_path: Path) -> None:
    value = torch.randn(4, 32)
    found = tensors(save_gguf(tmp_path / "b.gguf", {"b": value}, {"b": "BF16"}))
    assert same_bits(found["b"], value.bfloat16())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_gguf_blocks_are_dequantized_or_kept(kind: str, tmp_path: Path) -> None:
    value = torch.randn(3, 2, 64)
    blocks = gguf.quantize(value.numpy(), gguf.GGMLQuantizationType[kind])
    entry = dict(
        ParameterArchive(save_gguf(tmp_path / "q.gguf", {"q": value}, {"q": kind})).items()
    )
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert entry["q"].as_tensor().numpy().tolist() == expected.tolist()
    assert entry["q"].as_flat_tensor().tolist() == blocks.reshape(-1).tolist()
    assert repr(entry["q"]) == f"ParameterArchiveEntry('q', {kind}[3, 2, 64])"


# Building and reading.


def test_save_keeps_tied_and_skips_nonpersistent_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
    model[1].weight = model[0].weight
    model.register_buffer("kept", torch.arange(3))
    model.register_buffer("fleeting", torch.arange(3), persistent=False)
    aot.save_module_parameters(tmp_path / "m.irpa", model, prefix="net")
    found = tensors(tmp_path / "m.irpa")
    assert sorted(found) == ["net.0.weight", "net.1.bias", "net.1.weight", "net.kept"]
    assert torch.equal(found["net.0.weight"], found["net.1.weight"])
    assert (tmp_path / "m.irpa").stat().st_size < 1.5 * 64 * 32 * 4


def test_the_suffix_is_added_to_file_names(tmp_path: Path) -> None:
    aot.save_module_parameters(tmp_path / "model.v1", nn.Linear(2, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["model.v1.irpa"]
    with pytest.raises(errors.ParameterError, match=r"archive type to write '\.safetensors'"):
        aot.save_module_parameters(tmp_path / "m.safetensors", nn.Linear(2, 2))


def test_an_index_is_an_iree_parameter_index(tmp_path: Path) -> None:
    builder = ParameterArchiveBuilder()
    builder.add_tensor("x", torch.arange(3, dtype=torch.int16))
    builder.add_blob("y", b"bytes")
    builder.save(tmp_path / "a.irpa")
    for index in (builder.index, ParameterArchive(tmp_path / "a.irpa").index):
        assert isinstance(index, iree.ParameterIndex)
        assert {k: bytes(e.file_view) for k, e in index.items()} == {
            "x": b"\0\0\1\0\2\0",
            "y": b"bytes",
        }


def test_duplicate_names_are_rejected(tmp_path: Path) -> None:
    builder = ParameterArchiveBuilder()
    builder.add_tensor("x", torch.ones(1))
    with pytest.raises(errors.ParameterError, match="added twice: x"):
        builder.add_tensor("x", torch.ones(1))
    with pytest.raises(errors.ParameterError, match="added twice: x"):
        builder.add_blob("x", b"bytes")
    archive = ParameterArchive(save(tmp_path / "x.irpa", {"x": torch.ones(1), "y": torch.ones(1)}))
    with pytest.raises(errors.ParameterError, match="added twice: x, y"):
        archive.load(tmp_path / "x.irpa")


def test_archives_can_be_concatenated(tmp_path: Path) -> None:
    archive = ParameterArchive(save(tmp_path / "1.irpa", {"x": torch.zeros(1)}))
    archive.load(save(tmp_path / "2.irpa", {"y": torch.ones(1)}), mmap=False)
    assert {key: entry.as_tensor().item() for key, entry in archive.items()} == {"x": 0, "y": 1}


@pytest.mark.parametrize("writable", [False, True])
def test_only_writable_archives_change_their_file(writable: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "x.irpa", {"x": torch.zeros(3)})
    found = dict(ParameterArchive(path, writable=writable).items())
    found["x"].as_tensor().fill_(1)
    assert tensors(path)["x"].tolist() == [float(writable)] * 3


def test_invalid_open_modes_are_rejected(tmp_path: Path) -> None:
    path = save(tmp_path / "x.irpa", {"x": torch.zeros(3)})
    for options in ({"readable": False}, {"mmap": False, "writable": True}):
        with pytest.raises(errors.ConfigError, match="cannot open an archive with"):
            ParameterArchive(path, **options)


UNSAVABLE: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.ones(3, device="meta"),
}


def test_a_repeated_value_is_read_as_a_tensor(tmp_path: Path) -> None:
    """With IREE's own writer: patterns of every width, nothing but zeros, and no elements."""
    index = iree.ParameterIndex()
    for row in (
        dtypes.from_torch_name(name) for name in ("int8", "bfloat16", "float32", "complex64")
    ):
        value = torch.tensor([3], dtype=row.torch)
        facts = f'PYTORCH:{{"type": "Tensor", "dtype": "{row.name}", "shape": [5, 2]}}'
        index.add_splat(row.name, value.view(torch.uint8).numpy(), 10 * row.itemsize, facts)
    index.add_splat("zeros", numpy.zeros(1, numpy.float64), 80)
    index.add_splat("empty", numpy.ones(1, numpy.float32), 0)
    index.add_buffer("beside", numpy.arange(3, dtype=numpy.uint8))
    index.create_archive_file(str(tmp_path / "splats.irpa"))
    found = dict(ParameterArchive(tmp_path / "splats.irpa").items())
    for name in ("int8", "bfloat16", "float32", "complex64"):
        expected = torch.full((5, 2), 3, dtype=dtypes.from_torch_name(name).torch)
        torch.testing.assert_close(found[name].as_tensor(), expected, rtol=0, atol=0)
    assert found["zeros"].as_flat_tensor().tolist() == [0] * 80
    assert found["empty"].as_flat_tensor().tolist() == []
    assert found["beside"].as_flat_tensor().tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", UNSAVABLE)
def test_unsavable_tensors_are_rejected(name: str) -> None:
    with pytest.raises(errors.ParameterError, match="x cannot be saved"):
        ParameterArchiveBuilder().add_tensor("x", UNSAVABLE[name]())


def test_invalid_arguments_are_rejected() -> None:
    builder: Any = ParameterArchiveBuilder()
    mistakes: dict[str, Callable[[], Any]] = {
        "q is a list, expected a tensor": lambda: builder.add_tensor("q", [1, 2]),
        "q is a list, expected bytes": lambda: builder.add_blob("q", [1, 2]),
        "a dict is not an nn.Module": lambda: builder.add_module({"q": 1}),
        "3 is not a name": lambda: builder.add_tensor(3, torch.ones(2)),
    }
    for match, add in mistakes.items():
        with pytest.raises(errors.ParameterError, match=match):
            add()


def test_uninitialized_parameters_are_rejected() -> None:
    with pytest.raises(errors.ParameterError, match="weight has no value yet"):
        ParameterArchiveBuilder().add_module(nn.LazyLinear(3))


# Memory.


GIB = 1 << 30


SMALL = torch.arange(4.0)


def sparse_irpa(path: Path) -> None:
    builder = ParameterArchiveBuilder()
    builder.add_tensor("small", SMALL)
    builder.add_blob("large", b"last")
    builder.save(path)
    data = bytearray(path.read_bytes())
    header = list(irpa._HEADER.unpack_from(data))
    second = header[7] + 80 + irpa._ENTRY.size
    start, _ = irpa._DATA.unpack_from(data, second)
    header[-1] = start + GIB
    irpa._HEADER.pack_into(data, 0, *header)
    irpa._DATA.pack_into(data, second, start, GIB)
    extend(path, data)


def sparse_safetensors(path: Path) -> None:
    large = {"dtype": "U8", "shape": [GIB], "data_offsets": [16, GIB + 16]}
    small = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    text = json.dumps({"small": small, "large": large}).encode()
    text += b" " * (-len(text) % 8)
    extend(path, struct.pack("<Q", len(text)) + text + SMALL.numpy().tobytes())


def sparse_gguf(path: Path) -> None:
    save_gguf(path, {"small": SMALL, "large": torch.zeros(8)})
    data = bytearray(path.read_bytes())
    place = data.index(b"large") + len("large") + 4
    struct.pack_into("<Q", data, place, GIB // 4)
    extend(path, data)


def extend(path: Path, data: bytes | bytearray) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + GIB)


READ = """
import sys, torch
from turbine.aot import ParameterArchive
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
for path in sys.argv[1:]:
    ParameterArchive(path)
    before = resident()
    archive = ParameterArchive(path)
    opened = resident()
    entries = dict(archive.items())
    assert entries["large"].as_flat_tensor().numel() == 2**30
    assert entries["small"].as_tensor().sum() == 6
    print(opened - before, resident() - before)
"""


def test_large_archives_are_written_and_read_in_little_memory(tmp_path: Path) -> None:
    sparse = {".irpa": sparse_irpa, ".safetensors": sparse_safetensors, ".gguf": sparse_gguf}
    for suffix, write in sparse.items():
        write(tmp_path / f"large{suffix}")
    paths = [str(tmp_path / f"large{suffix}") for suffix in READERS]
    command = [sys.executable, "-c", READ, *paths]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    grown = [float(number) for number in ended.stdout.split()]
    assert len(grown) == 2 * len(READERS)
    assert max(grown) < 50


def test_entries_are_memory_mapped(tmp_path: Path) -> None:
    for suffix, write in WRITERS.items():
        path = tmp_path / f"x{suffix}"
        write(path, {"x": torch.ones(4, 32), "y": torch.ones(3)})
        archive = open_archive(path)
        owners = {id(entry.data.obj) for entry in archive.entries.values()}
        assert len(owners) == 1


def test_unaligned_tensors_are_read(tmp_path: Path) -> None:
    text = b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    for padding in range(4):
        path = tmp_path / f"{padding}.safetensors"
        header = text + b" " * padding
        path.write_bytes(struct.pack("<Q", len(header)) + header + SMALL.numpy().tobytes())
        assert torch.equal(tensors(path)["x"], SMALL)
