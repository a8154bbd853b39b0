"""External parameters: scopes, replaced archives, and mismatches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import iree.runtime as iree
import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import turbine
from tests.runtime.archives import WRITERS, Net, X, save, save_gguf, tensors
from turbine import aot, dtypes, errors
from turbine.aot import ExternalTensorTrait, ParameterArchive
from turbine.aot.output import ExportOutput
from turbine.compiler import pipeline
from turbine.runtime.archive import READERS, open_archive
from turbine.runtime.entries import Declared

save_shard = WRITERS[".safetensors"]


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


def test_splat_entries_are_accepted_as_weights(compiled: Path, tmp_path: Path) -> None:
    other = Net()
    index = iree.ParameterIndex()
    for name, tensor in other.state_dict().items():
        tensor.fill_(0.5)
        index.add_splat(name, numpy.array([0.5], numpy.float32), tensor.nbytes)
    index.create_archive_file(str(tmp_path / "halves.irpa"))
    found = turbine.load(compiled, weights=tmp_path / "halves.irpa")(X)
    torch.testing.assert_close(found, other(X).detach())


# Marks.


def test_externalized_parameters_have_a_scope_and_a_prefix(scoped: Path) -> None:
    artifact = turbine.load(scoped)
    declared = [(w["name"], w["scope"], w["key"]) for w in artifact.manifest["weights"]]
    assert declared == [
        ("first.weight", "a", "part.weight"),
        ("first.bias", "a", "part.bias"),
        ("second.weight", "b", "part.weight"),
    ]
    torch.testing.assert_close(artifact(X), Net()(X).detach())


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_externalization_marks(strict: bool) -> None:
    model = Net()
    aot.externalize_module_parameters(model, external_scope="s")
    exported = torch.export.export(model, (X,), strict=strict)
    text = aot.export(exported).text()
    assert '#flow.parameter.named<"s"::"first.weight">' in text


def test_marks_belong_to_the_tensor_and_not_to_copies() -> None:
    tensor = torch.ones(3)
    ExternalTensorTrait("s", "n").set(tensor)
    assert ExternalTensorTrait.get(tensor) == ExternalTensorTrait("s", "n")
    assert ExternalTensorTrait.get(tensor.clone()) is None


def test_two_weights_of_one_name_are_rejected() -> None:
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


def test_externalized_state_starts_from_the_archive_without_writing_it(tmp_path: Path) -> None:
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
def test_state_without_a_mark_is_embedded() -> None:
    artifact = aot.export(nn.BatchNorm1d(32), args=(X,)).compile()
    assert artifact.weight_names == ["weight", "bias"]


@pytest.mark.parametrize("suffix", READERS)
def test_archives_are_replaced_without_recompilation(
    suffix: str, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pipeline, "compile_ir")
    other = Net(1)
    WRITERS[suffix](tmp_path / f"other{suffix}", other.state_dict())
    found = turbine.load(compiled, weights=tmp_path / f"other{suffix}")(X)
    torch.testing.assert_close(found, other(X).detach())
    assert not torch.allclose(found, Net()(X))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_gguf_weights_are_converted_to_the_declared_dtype(
    kind: str, compiled: Path, tmp_path: Path
) -> None:
    other = Net(1)
    kinds = dict.fromkeys(["first.weight", "second.weight"], kind)
    path = save_gguf(tmp_path / "q.gguf", other.state_dict(), kinds)
    found = turbine.load(compiled, weights=path)(X)
    other.load_state_dict(tensors(path))
    torch.testing.assert_close(found, other(X).detach())


def test_gguf_blocks_are_dequantized_to_float16(half: Path, tmp_path: Path) -> None:
    kinds = dict.fromkeys(["first.weight", "second.weight"], "Q8_0")
    path = save_gguf(tmp_path / "q.gguf", Net(1).state_dict(), kinds)
    found = turbine.load(half, weights=path)(X.half())
    model = Net().half()
    model.load_state_dict(tensors(path))
    torch.testing.assert_close(found, model(X.half()).detach(), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("suffix", [".irpa", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_are_widened(
    suffix: str, dtype: torch.dtype, compiled: Path, tmp_path: Path
) -> None:
    other = Net(1).to(dtype)
    WRITERS[suffix](tmp_path / f"half{suffix}", other.state_dict())
    found = turbine.load(compiled, weights=tmp_path / f"half{suffix}")(X)
    torch.testing.assert_close(found, other.float()(X).detach())


def test_weights_that_would_be_rounded_are_rejected(half: Path, tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    save_shard(path, Net(1).state_dict())
    with pytest.raises(errors.ParameterError, match=r"float32\[64\], expected float16\[64\]"):
        turbine.load(half, weights=path)


def test_a_state_dict_replaces_the_weights(compiled: Path, tmp_path: Path) -> None:
    other = Net(1)
    loaded = turbine.load(compiled, weights=other.state_dict())
    arrays = {name: value.numpy() for name, value in Net(1).state_dict().items()}
    from_arrays = turbine.load(compiled, weights=arrays)
    halves = turbine.load(compiled, weights=Net(1).to(torch.bfloat16).state_dict())
    expected = other(X).detach()
    with torch.no_grad():
        other.first.weight.zero_()  # the artifact has copies
    torch.testing.assert_close(loaded(X), expected)
    torch.testing.assert_close(from_arrays(X), expected)
    torch.testing.assert_close(halves(X), Net(1).to(torch.bfloat16).float()(X).detach())
    loaded.save(tmp_path / "saved.turbine")
    torch.testing.assert_close(turbine.load(tmp_path / "saved.turbine")(X), expected)


class Positions(nn.Module):
    """Has what no state dict has: a buffer that is not persistent, tied or not, and a constant."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(8, 4)
        self.positions: Tensor
        self.register_buffer("positions", torch.arange(8), persistent=False)
        self.alias: Tensor
        self.register_buffer("alias", self.table.weight.data, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.table(self.positions)
        return self.alias + x * rows + torch.tensor([1.0, 2.0, 3.0, 4.0])


def positions_archives(folder: Path) -> list[object]:
    """The weights of another model, in each form that `load` takes."""
    state = Positions(1).state_dict()
    (folder / "shards").mkdir()
    save_shard(folder / "shards" / "model.safetensors", state)
    WRITERS[".irpa"](folder / "other.irpa", state)
    return [state, folder / "shards", folder / "other.irpa", {"model": folder / "other.irpa"}]


@pytest.mark.parametrize("archived", [False, True])
def test_what_state_dicts_lack_stays_in_the_artifact(archived: bool, tmp_path: Path) -> None:
    x, path = torch.full((8, 4), 2.0), tmp_path / "positions.turbine"
    archive = tmp_path / "own.irpa" if archived else None
    artifact = aot.export(Positions(0), args=(x,)).compile(path, archive=archive)
    assert torch.equal(artifact(x), Positions(0)(x))
    for given in positions_archives(tmp_path):
        loaded = turbine.load(path, weights=given)  # type: ignore[arg-type]
        assert torch.equal(loaded(x), Positions(1)(x)), given
        loaded.save(tmp_path / "saved.turbine")
        assert torch.equal(turbine.load(tmp_path / "saved.turbine")(x), Positions(1)(x)), given
    replaced = {**Positions(1).state_dict(), "positions": torch.arange(8).flip(0)}
    expected = Positions(1)
    expected.positions = replaced["positions"]
    assert torch.equal(turbine.load(path, weights=replaced)(x), expected(x))


def test_an_archive_that_exists_may_lack_what_state_dicts_lack(tmp_path: Path) -> None:
    x, archive = torch.full((8, 4), 2.0), tmp_path / "positions.safetensors"
    save_shard(archive, Positions(0).state_dict())
    path = tmp_path / "positions.turbine"
    aot.export(Positions(0), args=(x,)).compile(path, archive=archive)
    assert torch.equal(turbine.load(path)(x), Positions(0)(x))


def test_several_programs_keep_what_state_dicts_lack() -> None:
    x, root = torch.full((8, 4), 2.0), Positions(0)
    builder = aot.FxProgramsBuilder(root)

    @builder.export_program(args=(x,))
    def buffers(module: Positions, x: Tensor) -> Tensor:
        return module.alias + module.positions[:, None] * x

    @builder.export_program(args=(x,))
    def rows(module: Positions, x: Tensor) -> Tensor:
        return module.table.weight + x

    declared = aot.export(builder).compile().manifest["weights"]
    persistent = {weight["name"]: weight["persistent"] for weight in declared}
    assert persistent == {"table.weight": True, "positions": False}


def test_an_invalid_state_dict_is_explained(compiled: Path) -> None:
    state: dict[str, object] = {**Net(1).state_dict()}
    with pytest.raises(errors.ParameterError, match=r"first\.bias is a list, expected a tensor"):
        turbine.load(compiled, weights={**state, "first.bias": [1.0]})
    state.pop("first.bias")
    with pytest.raises(errors.ParameterError, match=r"lacks 1 parameters: first\.bias"):
        turbine.load(compiled, weights=state)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_folder_of_shards_replaces_the_weights(
    has_index: bool, compiled: Path, tmp_path: Path
) -> None:
    other, folder = Net(1), tmp_path / "shards"
    folder.mkdir()
    state = sorted(other.state_dict().items())
    shards = {"model-1-of-2.safetensors": state[:2], "model-2-of-2.safetensors": state[2:]}
    for name, rows in shards.items():
        save_shard(folder / name, dict(rows))
    if has_index:
        # Files that the index does not name are of something else.
        save_shard(folder / "consolidated.safetensors", dict(state))
        places = {key: name for name, rows in shards.items() for key, _ in rows}
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
    loaded = turbine.load(compiled, weights=folder)
    torch.testing.assert_close(loaded(X), other(X).detach())
    loaded.save(tmp_path / "saved.turbine")
    found = turbine.load(tmp_path / "saved.turbine")(X)
    torch.testing.assert_close(found, other(X).detach())


def test_an_invalid_folder_of_shards_is_explained(compiled: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ParameterError, match=r"no \.safetensors files in"):
        turbine.load(compiled, weights=tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": 3}')
    with pytest.raises(errors.ParameterError, match="its index is damaged"):
        turbine.load(compiled, weights=tmp_path)
    index.write_text('{"weight_map": {"first.bias": "absent.safetensors"}}')
    with pytest.raises(errors.ParameterError, match=r"no archive at .*absent\.safetensors"):
        turbine.load(compiled, weights=tmp_path)
    index.unlink()
    for name in ("a", "b"):
        save_shard(tmp_path / f"{name}.safetensors", Net(1).state_dict())
    with pytest.raises(errors.ParameterError, match=r"it holds 'first\.bias' twice"):
        turbine.load(compiled, weights=tmp_path)


def test_values_out_of_range_of_the_dtype_are_rejected(half: Path, tmp_path: Path) -> None:
    state = {**Net().state_dict(), "first.bias": torch.full((64,), 1e6)}
    artifact = turbine.load(half, weights=save_gguf(tmp_path / "large.gguf", state))
    message = r"first\.bias \(float32\[64\]\) has numbers too large for float16"
    with pytest.raises(errors.ParameterError, match=message):
        artifact(X.half())


def test_archives_are_replaced_per_scope(scoped: Path, tmp_path: Path) -> None:
    model, other = Net(), Net(1)
    aot.save_module_parameters(tmp_path / "a.irpa", other.first, prefix="part")
    swapped = turbine.load(scoped, weights={"a": tmp_path / "a.irpa"})
    expected = model.second(torch.relu(other.first(X))).detach()
    torch.testing.assert_close(swapped(X), expected)
    swapped.save(tmp_path / "swapped.turbine")
    torch.testing.assert_close(turbine.load(tmp_path / "swapped.turbine")(X), expected)
    written = swapped.save_vmfb(tmp_path / "net.vmfb")
    assert [file.name for file in written] == ["net.vmfb", "net.a.irpa", "net.b.irpa"]


def test_one_archive_is_ambiguous_for_two_weights_of_one_name(scoped: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ParameterError, match=r"'a' and 'b' both have a 'part\.weight'"):
        scoped_output().compile(tmp_path / "net.turbine", archive=tmp_path / "net.irpa")
    assert list(tmp_path.iterdir()) == []
    aot.save_module_parameters(tmp_path / "a.irpa", Net().first, prefix="part")
    with pytest.raises(errors.ParameterError, match=r"'a' and 'b' both have a 'part\.weight'"):
        turbine.load(scoped, weights=tmp_path / "a.irpa")
    with pytest.raises(errors.ParameterError, match="unknown scope 'c'; valid: a, b"):
        turbine.load(scoped, weights={"c": tmp_path / "a.irpa"})


def test_one_archive_serves_scopes_with_distinct_names(tmp_path: Path) -> None:
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


WRONG_DTYPES = [(".irpa", "int32"), (".irpa", "float64"), (".safetensors", "float64")]


@pytest.mark.parametrize(("suffix", "dtype"), [*WRONG_DTYPES, (".gguf", "int32")])
def test_a_wrong_dtype_is_named(suffix: str, dtype: str, compiled: Path, tmp_path: Path) -> None:
    """Of the same size, too; only GGUF's numbers are converted where they might be rounded."""
    state = Net().state_dict()
    state["first.bias"] = state["first.bias"].to(dtypes.from_torch_name(dtype).torch)
    WRITERS[suffix](tmp_path / f"odd{suffix}", state)
    message = rf"first\.bias \({dtype}\[64\], expected float32\[64\]\)"
    with pytest.raises(errors.ParameterError, match=message):
        turbine.load(compiled, weights=tmp_path / f"odd{suffix}")


def test_integer_programs_reject_gguf_blocks(tmp_path: Path) -> None:
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
