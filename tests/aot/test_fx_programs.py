"""FxProgramsBuilder: entry points share weights and state, and can be saved and moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from turbine import errors
from turbine.aot import FxPrograms, FxProgramsBuilder
from turbine.cli.main import main

programs = pytest.mark.sweep(1, "programs")


class Reader(nn.Module):
    """Accumulates its inputs, and has tied weights."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("total", torch.zeros(8))

    def feed(self, tokens: Tensor) -> Tensor:
        self.total.add_(self.embed(tokens).sum(0))
        return self.total * torch.tensor([2.0] * 8)

    def answer(self, scale: Tensor) -> Tensor:
        logits: Tensor = self.head(self.total) * scale + torch.tensor([3.0] * 16)
        return logits


def built(model: nn.Module) -> FxProgramsBuilder:
    builder = FxProgramsBuilder(model)
    length = {0: Dim("length", min=2)}

    @builder.export_program(args=(torch.arange(3),), dynamic_shapes={"tokens": length})
    def feed(module: Reader, tokens: Tensor) -> Tensor:
        return module.feed(tokens)

    @builder.export_program(args=(), kwargs={"scale": torch.ones(())}, name="answer")
    def given_another_name(module: Reader, scale: Tensor) -> Tensor:
        return module.answer(scale)

    return builder


@pytest.fixture
def model() -> Reader:
    torch.manual_seed(0)
    return Reader().requires_grad_(False)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "reader.turbine"
    torch.manual_seed(0)
    turbine.aot.export(built(Reader())).compile(path)
    return path


def agrees(artifact: turbine.Artifact, model: Reader) -> None:
    """Check that entry points called in sequence match the module."""
    for tokens in (torch.tensor([1, 2]), torch.arange(16)):
        torch.testing.assert_close(artifact.feed(tokens), model.feed(tokens))
        scale = torch.tensor(2.0)
        torch.testing.assert_close(artifact.answer(scale=scale), model.answer(scale))
    torch.testing.assert_close(artifact.state["total"], model.total)


def test_entry_points_are_called_by_name_and_share_state(file: Path, model: Reader) -> None:
    agrees(turbine.load(file), model)


def test_exporting_does_not_change_the_module(model: Reader) -> None:
    built(model)
    assert model.total.sum() == 0
    assert "forward" not in vars(model)


def test_shared_tensors_are_stored_once(file: Path) -> None:
    artifact = turbine.load(file)
    sizes = [weight["length"] for weight in artifact.manifest["weights"]]
    assert sizes.count(16 * 8 * 4) == 1  # tied, and used by both


def test_constants_of_one_name_are_distinguished(file: Path, model: Reader) -> None:
    """PyTorch calls the lifted constant of either program the same."""
    artifact = turbine.load(file)
    assert torch.equal(artifact.answer(scale=torch.zeros(())), torch.full((16,), 3.0))


def test_loads_do_not_share_state(file: Path) -> None:
    first, second = turbine.load(file), turbine.load(file)
    first.feed(torch.tensor([1, 2]))
    assert second.state["total"].sum() == 0
    first.reset()
    assert first.state["total"].sum() == 0


def test_an_entry_point_must_be_named(file: Path) -> None:
    artifact = turbine.load(file)
    with pytest.raises(errors.ArgumentError, match="2 entry points"):
        artifact(torch.arange(3))
    with pytest.raises(AttributeError, match="unknown entry point 'anwser'; valid: answer"):
        artifact.anwser(torch.arange(3))
    assert "answer" in dir(artifact)


@programs
def test_saved_programs_may_move(model: Reader, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    assert built(model).save(here / "reader.json") >= 2
    here.rename(there)
    loaded = FxPrograms.load(there / "reader.json")
    assert list(loaded.programs) == ["feed", "answer"]
    output = turbine.aot.export(loaded)
    assert len(output.lowered.external) == len(turbine.aot.export(built(model)).lowered.external)
    agrees(output.compile(), model)


def test_saving_writes_each_tensor_once(tmp_path: Path) -> None:
    big = nn.Linear(512, 512)
    builder = FxProgramsBuilder(big)
    for name in ("one", "two", "three"):
        builder.export_program(lambda module, x: module(x), args=(torch.ones(1, 512),), name=name)
    assert builder.save(tmp_path / "big.json") == 4
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total < 1.5 * big.weight.nbytes
    assert big.weight.sum() != 0  # saving took nothing away


@programs
def test_quantized_entry_points_share_packed_weights(model: Reader) -> None:
    small = turbine.aot.quantize(turbine.aot.export(built(model)), bits=8)
    names = [weight.name for weight in small.lowered.external]
    assert names.count("embed.weight.packed") == 1
    artifact = small.compile()
    tokens = torch.tensor([1, 2])
    torch.testing.assert_close(artifact.feed(tokens), model.feed(tokens), rtol=0.02, atol=0.02)
    scale = torch.ones(())
    torch.testing.assert_close(
        artifact.answer(scale=scale), model.answer(scale), rtol=0.05, atol=0.05
    )


# Bad input.


def test_duplicate_program_names_are_rejected(model: Reader) -> None:
    builder = built(model)
    with pytest.raises(errors.ExportError, match="there is a program 'feed' already"):
        builder.export_program(lambda module, x: x, args=(torch.ones(2),), name="feed")


def test_export_errors_name_the_function(model: Reader) -> None:
    def doubtful(module: Reader, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(errors.ExportError, match="could not export doubtful"):
        FxProgramsBuilder(model).export_program(doubtful, args=(torch.ones(2),))


def test_an_empty_builder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(errors.ExportError, match="no program to export"):
        turbine.aot.export(FxPrograms())
    with pytest.raises(errors.ExportError, match="no program to save"):
        FxPrograms().save(tmp_path / "none.json")
    assert not list(tmp_path.iterdir())


def test_damaged_and_missing_files_are_named(model: Reader, tmp_path: Path) -> None:
    built(model).save(tmp_path / "reader.json")
    (tmp_path / "reader.tensors.pt").write_bytes(b"damaged")
    with pytest.raises(errors.ExportError, match="cannot read programs"):
        FxPrograms.load(tmp_path / "reader.json")
    with pytest.raises(errors.ExportError, match="cannot read programs"):
        FxPrograms.load(tmp_path / "other.json")
    with pytest.raises(errors.ExportError, match=r"ends in \.json"):
        FxPrograms.load(tmp_path / "reader")


def test_the_command_line_runs_one_entry_point(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(file), "--function", "feed", "--input", "3xi64=2"]) == 0
    assert "float32" in capsys.readouterr().out
    assert main(["bench", str(file), "-f", "answer", "--seconds", "0"]) == 0
    assert main(["run", str(file)]) == 1
    assert "answer" in capsys.readouterr().err


@programs
def test_ir_may_be_imported_before_it_is_compiled(model: Reader) -> None:
    output = turbine.aot.export(built(model))
    output.import_to("import")
    assert "torch.aten" in output.text()
    output.import_to(turbine.aot.ImportPhase.FULL)
    assert "torch.aten" not in output.text()
    agrees(output.compile(), model)
    with pytest.raises(errors.ConfigError, match="unknown phase of the import 'imprt'"):
        output.import_to("imprt")


@pytest.mark.parametrize("name", ["reset", "state", "a b", "1x", "_a b", ""])
def test_invalid_program_names_are_rejected(model: Reader, name: str) -> None:
    with pytest.raises(errors.ExportError, match=r"name|hidden"):
        FxProgramsBuilder(model).export_program(lambda m, x: x, args=(torch.ones(1),), name=name)
