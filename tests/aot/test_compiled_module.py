"""CompiledModule: entry points, subclasses and artifacts match PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.odd_models.catalog import ODD
from turbine import aot, errors
from turbine.aot import (
    IREE,
    AbstractF32,
    AbstractIndex,
    AbstractTensor,
    CompiledModule,
    export_global,
    jittable,
)
from turbine.cli.main import main

torch.manual_seed(0)


LINEAR = nn.Linear(8, 8)


HEAD = nn.Linear(8, 3)


BATCH = torch.export.Dim("batch", min=1, max=64)


EXPORTED = torch.export.export(HEAD, (torch.ones(2, 8),), dynamic_shapes=({0: BATCH},))


class Decoder(CompiledModule, export_name="decoder"):
    """The module of most tests: parameters, state, procedures, jittables and programs."""

    params = aot.export_parameters(LINEAR)
    cache = export_global(torch.zeros(4, 8), name="cache", mutable=True)
    count = export_global(AbstractIndex, mutable=True)
    tree = aot.export_global_tree({"a": torch.ones(2), "b": [torch.zeros(3)]}, mutable=True)

    def step(self, x=AbstractTensor(None, 8), *, scale=AbstractF32):
        y = self.compute(x, self.cache, self.params, scale)
        first = IREE.tensor_slice(x, 0)
        self.cache = IREE.tensor_update(self.cache, first, self._next(), 0)
        self.count = self.count + 1
        self.tree["b"][0] = self.plus(self.tree["b"][0], 1)
        return {"y": y, "n": self.count}

    def run(self, x=AbstractTensor(None, 8)):
        return self.step(x, scale=2.0)["y"], self.step(x, scale=self.two())["n"]

    def two(self):
        return self.one().to(AbstractF32) * 2

    def one(self):
        return IREE.tensor_dim(torch.ones(1, 2), 0, dtype=torch.int32)

    def head(self, x=AbstractTensor("n", 8)):
        return self._program(x), self.program(x)

    def _next(self):
        return self.count % 4

    @jittable
    def compute(x, cache, params, scale):
        y = torch.func.functional_call(LINEAR, params, (x,))
        return torch.relu(y @ cache.T) + scale

    @jittable
    def plus(x, number):
        return x + number

    program = EXPORTED
    _program = EXPORTED


class Reference:
    """What Decoder does, in PyTorch."""

    def __init__(self) -> None:
        self.cache, self.count, self.b = torch.zeros(4, 8), 0, torch.zeros(3)

    def step(self, x: Tensor, scale: float) -> Tensor:
        y = torch.relu(LINEAR(x) @ self.cache.T) + scale
        self.cache[self.count % 4] = x[0]
        self.count += 1
        self.b += 1
        return y.detach()


@pytest.fixture(scope="module")
def decoder_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("module") / "decoder.turbine"
    aot.export(Decoder).compile(path)
    return path


@pytest.fixture
def decoder(decoder_file: Path) -> turbine.Artifact:
    return turbine.load(decoder_file)


def test_procedures_match_pytorch_for_every_size(decoder: turbine.Artifact) -> None:
    reference = Reference()
    for size in (3, 1, 5, 2, 1):
        x = torch.randn(size, 8)
        found = decoder.step(x, scale=0.5)
        torch.testing.assert_close(found["y"], reference.step(x, 0.5))
        assert found["n"] == reference.count


def test_state_is_kept_read_set_and_reset(decoder: turbine.Artifact) -> None:
    reference, x = Reference(), torch.randn(3, 8)
    decoder.step(x, scale=1.0)
    reference.step(x, 1.0)
    torch.testing.assert_close(decoder.state["cache"], reference.cache)
    torch.testing.assert_close(decoder.state["tree.b.0"], reference.b)
    assert decoder.state["count"] == 1
    decoder.state["count"] = 40
    assert decoder.step(x, scale=1.0)["n"] == 41
    decoder.reset()
    assert decoder.state["count"] == 0
    assert not decoder.state["cache"].any()
    assert set(decoder.state) == {"cache", "count", "tree.a", "tree.b.0"}


def test_two_loads_of_one_file_share_no_state(decoder_file: Path) -> None:
    first, second = turbine.load(decoder_file), turbine.load(decoder_file)
    x = torch.ones(1, 8)
    counts = [a.step(x, scale=0)["n"] for a in (first, first, second, first)]
    assert counts == [1, 2, 1, 3]


def test_invalid_numbers_are_rejected(decoder: turbine.Artifact) -> None:
    for wrong in (1.5, "1", True, 2**63, torch.ones(1)):
        with pytest.raises(errors.ArgumentError, match="count"):
            decoder.state["count"] = wrong
    with pytest.raises(errors.ArgumentError, match="'scale' is a str, expected a float"):
        decoder.step(torch.ones(1, 8), scale="2")
    with pytest.raises(errors.ArgumentError, match=r"'scale' is 1e.300, expected a float of 32"):
        decoder.step(torch.ones(1, 8), scale=1e300)


def test_a_procedure_calls_procedures(decoder: turbine.Artifact) -> None:
    reference, x = Reference(), torch.randn(2, 8)
    y, count = decoder.run(x)
    torch.testing.assert_close(y, reference.step(x, 2.0))
    assert (count, decoder.two()) == (2, 2.0)


def test_calls_take_numpy_arrays_and_keywords(decoder: turbine.Artifact) -> None:
    x = numpy.ones((2, 8), "float32")
    found = decoder.step(scale=3, x=x)["y"]
    assert isinstance(found, numpy.ndarray)
    assert (found == 3).all()


def test_programs_are_entry_points_or_private(decoder: turbine.Artifact) -> None:
    x = torch.randn(5, 8)
    torch.testing.assert_close(decoder.program(x), HEAD(x).detach())
    for found in decoder.head(x):
        torch.testing.assert_close(found, HEAD(x).detach())
    assert sorted(decoder.functions) == ["head", "one", "program", "run", "step", "two"]


def test_ranges_of_a_program_are_checked_in_procedures(decoder: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match="is over 64"):
        decoder.head(torch.ones(65, 8))


def test_weights_are_stored_once(decoder: turbine.Artifact) -> None:
    assert len(decoder.weight_names) == len(set(decoder.weight_names))
    assert {"params.weight", "params.bias", "weight", "bias"} <= set(decoder.weight_names)


def test_signatures_print_as_declared(decoder: turbine.Artifact) -> None:
    text = decoder.step.signature.text()
    assert text == "(x: float32[x_0, 8], scale: float32) -> {'y': float32[x_0, 4], 'n': index}"


def test_ir_is_built_with_an_instance(tmp_path: Path) -> None:
    instance = Decoder()
    CompiledModule.save_mlir(instance, tmp_path / "decoder.mlir")
    text = (tmp_path / "decoder.mlir").read_text()
    assert str(CompiledModule.get_mlir_module(instance)).startswith("module @decoder {")
    # Two calls of one jittable with equal types share a function.
    assert text.count("func.func private @plus") == 1
    assert CompiledModule.get_class_info(Decoder).export_name == "decoder"
    CompiledModule.run_import(instance)
    assert "torch.aten" in str(CompiledModule.get_mlir_module(instance))
    CompiledModule.run_import(instance, "full")
    assert "torch.aten" not in str(CompiledModule.get_mlir_module(instance))


def test_procedures_are_not_captured_programs() -> None:
    output = aot.export(Decoder)
    assert "step" in output.entry_points
    with pytest.raises(errors.ExportError, match=r"step.*of decoder: no program was captured"):
        _ = output.programs


class Scaler(CompiledModule):
    """A module of one procedure."""

    count = export_global(AbstractIndex, mutable=True)

    def scale(self, x=AbstractTensor(None), *, by=AbstractF32):
        self.count = self.count + 1
        return {"y": self.times(x, by), "n": self.count}

    times = jittable(lambda x, by: x * by)


def test_the_command_line_runs_a_procedure_and_shows_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "scaler.turbine")
    aot.export(Scaler).compile(path)
    assert main(["run", path, "--input", "2xf32=3", "--input", "f32=2.5", "--json"]) == 0
    assert "[7.5, 7.5]" in capsys.readouterr().out
    assert main(["run", path, "--size", "x_0=2"]) == 0
    assert main(["inspect", path]) == 0
    assert "count: index\n" in capsys.readouterr().out


def test_programs_and_procedures_share_the_state_of_a_model() -> None:
    example = ODD["counter"]()
    exported = torch.export.export(example.model, example.args)

    def again(self: Any, x: Any = example.args[0]) -> Any:
        return self._add(x)

    members = {"add": exported, "_add": exported, "again": again}
    artifact = aot.export(CompiledModule.create_from_dict("Shared", members)).compile()
    zeros = torch.zeros_like(example.args[0])
    calls = (artifact.add, artifact.again, artifact.add)
    assert [int(call(zeros)[0, 0]) for call in calls] == [1, 2, 3]
    assert artifact.state["count"] == 3


# Classes.


def test_subclasses_inherit_and_override_procedures() -> None:
    class Base(CompiledModule):
        total = export_global(torch.zeros(2), mutable=True)

        def add(self, x=AbstractTensor(2)):
            self.total = self.plus(self.total, x)
            return self.total

        def twice(self, x=AbstractTensor(2)):
            self.add(x)
            return self.add(x)

        @jittable
        def plus(x, y):
            return x + y

    class Derived(Base):
        def add(self, x=AbstractTensor(2)):
            return self.plus(super().add(x), x)

    artifact = aot.export(Derived).compile()
    assert artifact.twice(torch.ones(2)).tolist() == [3, 3]
    assert artifact.state["total"].tolist() == [2, 2]
    assert sorted(artifact.functions) == ["add", "twice"]


def test_a_class_is_made_from_a_dict() -> None:
    def double(self: Any, x: Any = AbstractTensor(2)) -> Any:
        return self.twice(x)

    members = {"double": double, "twice": jittable(lambda x: x * 2)}
    made = CompiledModule.create_from_dict("Doubler", members, export_name="made")
    output = aot.export(made)
    assert output.module_name == "made"
    assert output.signature.text() == "(x: float32[2]) -> float32[2]"
    assert output.compile()(torch.ones(2)).tolist() == [2, 2]
