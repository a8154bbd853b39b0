"""Parameters outside the code: archives of three formats, scopes, swapping and damage."""

from __future__ import annotations

import json
import random
import re
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

import turbine
from tests.runtime.test_weights import bits, random_bits
from turbine import aot, dtypes, errors
from turbine.aot import ExternalTensorTrait, ParameterArchive, ParameterArchiveBuilder
from turbine.aot.output import ExportOutput
from turbine.compiler import pipeline
from turbine.runtime import irpa, safetensors_file
from turbine.runtime.archive import READERS, open_archive
from turbine.runtime.entries import Declared, Entry

ROWS = pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.name)
SHAPES = {"scalar": (), "empty": (0, 3), "one": (1,), "many": (5, 7)}
X = torch.linspace(-1, 1, 96).reshape(3, 32)


class Net(nn.Module):
    """Sizes are whole blocks of the quantized formats."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Linear(32, 64)
            self.second = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(x)))
        return found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that holds its weights."""
    path = tmp_path_factory.mktemp("compiled") / "net.turbine"
    aot.export(Net(), args=(X,)).compile(path)
    return path


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of half precision."""
    path = tmp_path_factory.mktemp("half") / "net.turbine"
    aot.export(Net().half(), args=(X.half(),)).compile(path)
    return path


@pytest.fixture(scope="module")
def scoped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose layers have a scope each, and names in common."""
    path = tmp_path_factory.mktemp("scoped") / "net.turbine"
    scoped_output().compile(path)
    return path


def scoped_output() -> ExportOutput:
    model = Net()
    aot.externalize_module_parameters(model.first, external_scope="a", prefix="part")
    aot.externalize_module_parameters(model.second, external_scope="b", prefix="part")
    return aot.export(model, args=(X,), weights="inline")


def tensors(path: Path) -> dict[str, Tensor]:
    return {key: entry.as_tensor() for key, entry in ParameterArchive(path).items()}


def save(path: Path, state: dict[str, Tensor]) -> Path:
    builder = ParameterArchiveBuilder()
    for name, tensor in state.items():
        builder.add_tensor(name, tensor)
    builder.save(path)
    return path


def save_gguf(path: Path, state: dict[str, Tensor], kinds: dict[str, str] | None = None) -> Path:
    """Write tensors as the gguf package does; those with a kind are quantized."""
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "long" * 10])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_name("Net")
    for name, tensor in state.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
def test_iree_reads_the_bytes_we_write(row: dtypes.Dtype, tmp_path: Path) -> None:
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


def test_metadata_are_those_of_other_tools(tmp_path: Path) -> None:
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
def test_metadata_describe_the_dtype_as_torch_does(row: dtypes.Dtype) -> None:
    text = irpa.metadata(Entry("x", memoryview(b""), row.name, (0,))).partition(":")[2]
    facts = json.loads(text)["dtype_desc"]
    assert facts == {
        "class_name": type(row.torch).__name__,
        "is_complex": row.torch.is_complex,
        "is_floating_point": row.torch.is_floating_point,
        "is_signed": row.torch.is_signed,
        "itemsize": row.torch.itemsize,
    }


def test_archives_that_iree_writes_are_read(tmp_path: Path) -> None:
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
def test_safetensors_are_read_as_the_package_writes_them(name: str, tmp_path: Path) -> None:
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


def test_brain_floats_of_gguf_are_read(tmp_path: Path) -> None:
    value = torch.randn(4, 32)
    found = tensors(save_gguf(tmp_path / "b.gguf", {"b": value}, {"b": "BF16"}))
    assert same_bits(found["b"], value.bfloat16())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_blocks_become_numbers_or_stay_blocks(kind: str, tmp_path: Path) -> None:
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


def test_a_module_is_saved_with_tied_and_without_fleeting_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
    model[1].weight = model[0].weight
    model.register_buffer("kept", torch.arange(3))
    model.register_buffer("fleeting", torch.arange(3), persistent=False)
    aot.save_module_parameters(tmp_path / "m.irpa", model, prefix="net")
    found = tensors(tmp_path / "m.irpa")
    assert sorted(found) == ["net.0.weight", "net.1.bias", "net.1.weight", "net.kept"]
    assert torch.equal(found["net.0.weight"], found["net.1.weight"])
    assert (tmp_path / "m.irpa").stat().st_size < 1.5 * 64 * 32 * 4


def test_a_name_without_a_suffix_gets_one(tmp_path: Path) -> None:
    aot.save_module_parameters(tmp_path / "model.v1", nn.Linear(2, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["model.v1.irpa"]
    with pytest.raises(errors.ParameterError, match=r"archive type to write '\.safetensors'"):
        aot.save_module_parameters(tmp_path / "m.safetensors", nn.Linear(2, 2))


def test_an_index_is_one_of_iree(tmp_path: Path) -> None:
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


def test_a_name_is_added_once(tmp_path: Path) -> None:
    builder = ParameterArchiveBuilder()
    builder.add_tensor("x", torch.ones(1))
    with pytest.raises(errors.ParameterError, match="added twice: x"):
        builder.add_tensor("x", torch.ones(1))
    with pytest.raises(errors.ParameterError, match="added twice: x"):
        builder.add_blob("x", b"bytes")
    archive = ParameterArchive(save(tmp_path / "x.irpa", {"x": torch.ones(1), "y": torch.ones(1)}))
    with pytest.raises(errors.ParameterError, match="added twice: x, y"):
        archive.load(tmp_path / "x.irpa")


def test_archives_add_up(tmp_path: Path) -> None:
    archive = ParameterArchive(save(tmp_path / "1.irpa", {"x": torch.zeros(1)}))
    archive.load(save(tmp_path / "2.irpa", {"y": torch.ones(1)}), mmap=False)
    assert {key: entry.as_tensor().item() for key, entry in archive.items()} == {"x": 0, "y": 1}


@pytest.mark.parametrize("writable", [False, True])
def test_only_a_writable_archive_writes_to_its_file(writable: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "x.irpa", {"x": torch.zeros(3)})
    found = dict(ParameterArchive(path, writable=writable).items())
    found["x"].as_tensor().fill_(1)
    assert tensors(path)["x"].tolist() == [float(writable)] * 3


def test_senseless_ways_to_open_are_refused(tmp_path: Path) -> None:
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


def test_weights_may_be_repeated_values(compiled: Path, tmp_path: Path) -> None:
    other = Net()
    index = iree.ParameterIndex()
    for name, tensor in other.state_dict().items():
        tensor.fill_(0.5)
        index.add_splat(name, numpy.array([0.5], numpy.float32), tensor.nbytes)
    index.create_archive_file(str(tmp_path / "halves.irpa"))
    found = turbine.load(compiled, weights=tmp_path / "halves.irpa")(X)
    torch.testing.assert_close(found, other(X).detach())


@pytest.mark.parametrize("name", UNSAVABLE)
def test_what_has_no_bytes_is_refused(name: str) -> None:
    with pytest.raises(errors.ParameterError, match="x cannot be saved"):
        ParameterArchiveBuilder().add_tensor("x", UNSAVABLE[name]())


def test_what_is_no_tensor_is_refused() -> None:
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


def test_a_parameter_without_a_value_is_refused() -> None:
    with pytest.raises(errors.ParameterError, match="weight has no value yet"):
        ParameterArchiveBuilder().add_module(nn.LazyLinear(3))


# Marks.


def test_marked_parameters_have_a_scope_and_a_prefix(scoped: Path) -> None:
    artifact = turbine.load(scoped)
    declared = [(w["name"], w["scope"], w["key"]) for w in artifact.manifest["weights"]]
    assert declared == [
        ("first.weight", "a", "part.weight"),
        ("first.bias", "a", "part.bias"),
        ("second.weight", "b", "part.weight"),
    ]
    torch.testing.assert_close(artifact(X), Net()(X).detach())


@pytest.mark.parametrize("strict", [False, True])
def test_marks_outlive_an_export(strict: bool) -> None:
    model = Net()
    aot.externalize_module_parameters(model, external_scope="s")
    exported = torch.export.export(model, (X,), strict=strict)
    text = aot.export(exported).text()
    assert '#flow.parameter.named<"s"::"first.weight">' in text


def test_a_mark_goes_with_its_tensor_and_not_with_copies() -> None:
    tensor = torch.ones(3)
    ExternalTensorTrait("s", "n").set(tensor)
    assert ExternalTensorTrait.get(tensor) == ExternalTensorTrait("s", "n")
    assert ExternalTensorTrait.get(tensor.clone()) is None


def test_two_weights_of_one_name_are_refused() -> None:
    model = Net()
    for layer in (model.first, model.second):
        aot.externalize_module_parameters(layer, external_scope="s")
    with pytest.raises(
        errors.ExportError, match=r"first\.weight and second\.weight are both external as 'weight'"
    ):
        aot.export(model, args=(X,))


class Cache(nn.Module):
    """Writes rows of a buffer, which compiled code does in place."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(512, 8))

    def forward(self, index: Tensor, row: Tensor) -> Tensor:
        self.rows.index_put_((index,), row)
        return self.rows.sum()


def test_marked_state_starts_from_the_archive_and_leaves_it_alone(tmp_path: Path) -> None:
    model, ones = Cache(), torch.ones(1, 8)
    aot.externalize_module_parameters(model, external_scope="s")
    output = aot.export(model, args=(torch.tensor([0]), ones))
    output.compile(tmp_path / "cache.turbine")
    path = save(tmp_path / "started.irpa", {"rows": torch.full((512, 8), 0.5)})
    for weights, first in ((None, 0), (path, 512 * 8 // 2)):
        artifact = turbine.load(tmp_path / "cache.turbine", weights=weights)
        for _ in range(2):
            sums = [artifact(torch.tensor([i]), ones * 1.5).item() for i in range(3)]
            step = 12 if weights is None else 8
            assert sums == [first + step * count for count in (1, 2, 3)]
            artifact.reset()


@pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning")
def test_unmarked_state_stays_in_the_code() -> None:
    artifact = aot.export(nn.BatchNorm1d(32), args=(X,)).compile()
    assert artifact.weight_names == ["weight", "bias"]


# Swapping.


WRITERS: dict[str, Callable[[Path, dict[str, Tensor]], object]] = {
    ".irpa": save,
    ".safetensors": lambda path, state: save_file(state, path),
    ".gguf": save_gguf,
}


@pytest.mark.parametrize("suffix", READERS)
def test_another_archive_changes_the_numbers_without_compiling(
    suffix: str, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pipeline, "compile_ir")
    other = Net(1)
    WRITERS[suffix](tmp_path / f"other{suffix}", other.state_dict())
    found = turbine.load(compiled, weights=tmp_path / f"other{suffix}")(X)
    torch.testing.assert_close(found, other(X).detach())
    assert not torch.allclose(found, Net()(X))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_gguf_becomes_what_the_program_declares(kind: str, compiled: Path, tmp_path: Path) -> None:
    other = Net(1)
    kinds = dict.fromkeys(["first.weight", "second.weight"], kind)
    path = save_gguf(tmp_path / "q.gguf", other.state_dict(), kinds)
    found = turbine.load(compiled, weights=path)(X)
    other.load_state_dict(tensors(path))
    torch.testing.assert_close(found, other(X).detach())


def test_a_half_precision_program_takes_blocks(half: Path, tmp_path: Path) -> None:
    kinds = dict.fromkeys(["first.weight", "second.weight"], "Q8_0")
    path = save_gguf(tmp_path / "q.gguf", Net(1).state_dict(), kinds)
    found = turbine.load(half, weights=path)(X.half())
    model = Net().half()
    model.load_state_dict(tensors(path))
    torch.testing.assert_close(found, model(X.half()).detach(), rtol=5e-3, atol=5e-3)


def test_numbers_that_do_not_fit_are_refused(half: Path, tmp_path: Path) -> None:
    state = {**Net().state_dict(), "first.bias": torch.full((64,), 1e6)}
    artifact = turbine.load(half, weights=save_gguf(tmp_path / "large.gguf", state))
    message = r"first\.bias \(float32\[64\]\) has numbers too large for float16"
    with pytest.raises(errors.ParameterError, match=message):
        artifact(X.half())


def test_scopes_are_swapped_one_by_one(scoped: Path, tmp_path: Path) -> None:
    model, other = Net(), Net(1)
    aot.save_module_parameters(tmp_path / "a.irpa", other.first, prefix="part")
    swapped = turbine.load(scoped, weights={"a": tmp_path / "a.irpa"})
    expected = model.second(torch.relu(other.first(X))).detach()
    torch.testing.assert_close(swapped(X), expected)
    swapped.save(tmp_path / "swapped.turbine")
    torch.testing.assert_close(turbine.load(tmp_path / "swapped.turbine")(X), expected)
    written = swapped.save_vmfb(tmp_path / "net.vmfb")
    assert [file.name for file in written] == ["net.vmfb", "net.a.irpa", "net.b.irpa"]


def test_one_archive_does_not_stand_for_two_weights_of_one_name(
    scoped: Path, tmp_path: Path
) -> None:
    with pytest.raises(errors.ParameterError, match=r"'a' and 'b' both have a 'part\.weight'"):
        scoped_output().compile(tmp_path / "net.turbine", archive=tmp_path / "net.irpa")
    assert list(tmp_path.iterdir()) == []
    aot.save_module_parameters(tmp_path / "a.irpa", Net().first, prefix="part")
    with pytest.raises(errors.ParameterError, match=r"'a' and 'b' both have a 'part\.weight'"):
        turbine.load(scoped, weights=tmp_path / "a.irpa")
    with pytest.raises(errors.ParameterError, match="unknown scope 'c'; valid: a, b"):
        turbine.load(scoped, weights={"c": tmp_path / "a.irpa"})


def test_one_archive_serves_scopes_whose_names_differ(tmp_path: Path) -> None:
    model = Net()
    aot.externalize_module_parameters(model.first, prefix="first")
    output = aot.export(model, args=(X,))
    output.compile(tmp_path / "net.turbine", archive=tmp_path / "net.irpa")
    torch.testing.assert_close(turbine.load(tmp_path / "net.turbine")(X), model(X).detach())
    other = Net(1)
    aot.save_module_parameters(tmp_path / "other.irpa", other)
    found = turbine.load(tmp_path / "net.turbine", weights=tmp_path / "other.irpa")(X)
    torch.testing.assert_close(found, other(X).detach())


# Archives that do not fit.


@pytest.mark.parametrize("suffix", READERS)
def test_every_missing_parameter_is_named(suffix: str, compiled: Path, tmp_path: Path) -> None:
    path = tmp_path / f"few{suffix}"
    WRITERS[suffix](path, {"first.bias": torch.zeros(64)})
    with pytest.raises(
        errors.ParameterError, match=r"lacks 2 parameters: first\.weight, second\.weight"
    ) as caught:
        turbine.load(compiled, weights=path)
    assert caught.value.where == str(path)


def test_missing_parameters_and_wrong_shapes_are_named_together(
    compiled: Path, tmp_path: Path
) -> None:
    save_file({"first.bias": torch.zeros(63)}, tmp_path / "few.safetensors")
    told = r"lacks 2 parameters: .*second\.weight; and it holds .*first\.bias \(float32\[63\]"
    with pytest.raises(errors.ParameterError, match=told):
        turbine.load(compiled, weights=tmp_path / "few.safetensors")


@pytest.mark.parametrize("suffix", READERS)
def test_a_wrong_shape_is_named(suffix: str, compiled: Path, tmp_path: Path) -> None:
    state = Net().state_dict()
    state["first.weight"] = state["first.weight"].T.contiguous()
    WRITERS[suffix](tmp_path / f"odd{suffix}", state)
    message = r"first\.weight \(float32\[32, 64\], expected float32\[64, 32\]\)"
    with pytest.raises(errors.ParameterError, match=message):
        turbine.load(compiled, weights=tmp_path / f"odd{suffix}")


WRONG_DTYPES = [(".irpa", "int32"), (".irpa", "float16"), (".safetensors", "float16")]


@pytest.mark.parametrize(("suffix", "dtype"), [*WRONG_DTYPES, (".gguf", "int32")])
def test_a_wrong_dtype_is_named(suffix: str, dtype: str, compiled: Path, tmp_path: Path) -> None:
    """Of the same size, too; only GGUF's floating point numbers are converted."""
    state = Net().state_dict()
    state["first.bias"] = state["first.bias"].to(dtypes.from_torch_name(dtype).torch)
    WRITERS[suffix](tmp_path / f"odd{suffix}", state)
    message = rf"first\.bias \({dtype}\[64\], expected float32\[64\]\)"
    with pytest.raises(errors.ParameterError, match=message):
        turbine.load(compiled, weights=tmp_path / f"odd{suffix}")


def test_a_program_of_integers_takes_no_blocks(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "q.gguf", {"x": torch.randn(4, 32)}, {"x": "Q8_0"})
    declared = Declared("x", "model", "x", "int32", (4, 32), 4 * 32 * 4)
    with pytest.raises(
        errors.ParameterError, match=r"x \(Q8_0\[4, 32\], expected int32\[4, 32\]\)"
    ):
        open_archive(path).check([declared])


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"q": torch.randn(4, 32)}
    plain, blocks = tmp_path / "plain.gguf", tmp_path / "blocks.gguf"
    save_gguf(plain, state)
    save_gguf(blocks, state, {"q": "Q8_0"})
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert torch.equal(tensors(plain)["q"], state["q"])
    with pytest.raises(errors.MissingExtra, match=r"pip install turbine\[gguf\]"):
        ParameterArchive(blocks)


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
    """What reading everything in a file gives: "read", or the error's name."""
    path.write_bytes(data)
    try:
        for _, entry in ParameterArchive(path).items():
            entry.as_flat_tensor().sum()
            entry.as_tensor().sum()
    except errors.ParameterError as error:
        return type(error).__name__ if not OTHERS.search(str(error)) else str(error)
    return "read"


@pytest.mark.parametrize("suffix", READERS)
def test_a_cut_archive_is_refused(suffix: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    path, data = tmp_path / f"cut{suffix}", whole[suffix]
    end = len(data.rstrip(b"\0"))
    assert outcome(path, data) == "read"
    lengths = [*range(0, end, max(end // 150, 1)), end - 1]
    assert {outcome(path, data[:length]) for length in lengths} == {"ParameterError"}


@pytest.mark.parametrize("suffix", READERS)
def test_a_changed_byte_does_no_harm(suffix: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    path, data, chance = tmp_path / f"changed{suffix}", whole[suffix], random.Random(0)
    outcomes = set()
    for _ in range(500):
        changed = bytearray(data)
        changed[chance.randrange(min(len(data), 600))] = chance.randrange(256)
        outcomes.add(outcome(path, bytes(changed)))
    assert "ParameterError" in outcomes
    assert outcomes <= {"ParameterError", "read"}


@pytest.mark.parametrize("suffix", READERS)
def test_absurd_numbers_are_refused(suffix: str, whole: dict[str, bytes], tmp_path: Path) -> None:
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
def test_a_senseless_safetensors_header_is_refused(name: str, tmp_path: Path) -> None:
    text = HEADERS[name].encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    with pytest.raises(errors.ParameterError, match="cannot read the archive") as caught:
        ParameterArchive(path)
    assert caught.value.where == str(path)


def test_a_failed_save_leaves_the_old_archive(
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


def test_an_archive_of_a_gibibyte_takes_little_memory(tmp_path: Path) -> None:
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


def test_entries_lie_in_the_mapped_file(tmp_path: Path) -> None:
    for suffix, write in WRITERS.items():
        path = tmp_path / f"x{suffix}"
        write(path, {"x": torch.ones(4, 32), "y": torch.ones(3)})
        archive = open_archive(path)
        owners = {id(entry.data.obj) for entry in archive.entries.values()}
        assert len(owners) == 1


def test_elements_at_odd_addresses_are_read(tmp_path: Path) -> None:
    text = b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    for padding in range(4):
        path = tmp_path / f"{padding}.safetensors"
        header = text + b" " * padding
        path.write_bytes(struct.pack("<Q", len(header)) + header + SMALL.numpy().tobytes())
        assert torch.equal(tensors(path)["x"], SMALL)
