"""Procedural modules: artifacts compute what PyTorch does, and mistakes are named."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import aot, errors
from turbine.aot import (
    IREE,
    AbstractBool,
    AbstractF32,
    AbstractF64,
    AbstractI32,
    AbstractI64,
    AbstractIndex,
    AbstractTensor,
    CompiledModule,
    export_global,
    jittable,
)
from turbine.cli.main import main
from turbine.zoo.odd import ODD

# Batch norms here update their statistics, as in training.
pytestmark = pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning")

torch.manual_seed(0)
LINEAR = nn.Linear(8, 8)
HEAD = nn.Linear(8, 3)
EXAMPLE = torch.ones(2, 3)
BATCH = torch.export.Dim("batch", min=1, max=64)
EXPORTED = torch.export.export(HEAD, (torch.ones(2, 8),), dynamic_shapes=({0: BATCH},))
Pair = namedtuple("Pair", "first second")


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


def test_a_procedure_computes_what_pytorch_does_for_every_size(decoder: turbine.Artifact) -> None:
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


def test_a_number_that_is_no_such_number_is_refused(decoder: turbine.Artifact) -> None:
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


def test_a_call_takes_numpy_arrays_and_keywords(decoder: turbine.Artifact) -> None:
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


def test_the_range_of_a_program_holds_in_a_procedure(decoder: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match="is over 64"):
        decoder.head(torch.ones(65, 8))


def test_weights_are_in_the_file_once(decoder: turbine.Artifact) -> None:
    assert len(decoder.weight_names) == len(set(decoder.weight_names))
    assert {"params.weight", "params.bias", "weight", "bias"} <= set(decoder.weight_names)


def test_a_signature_reads_as_it_was_written(decoder: turbine.Artifact) -> None:
    text = decoder.step.signature.text()
    assert text == "(x: float32[x_0, 8], scale: float32) -> (float32[x_0, 4], index)"


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
    with pytest.raises(errors.ExportError, match=r"step.*of decoder: no captured program"):
        _ = output.programs


class Numbers(CompiledModule):
    """Arithmetic, comparisons and state of numbers."""

    f = export_global(1.5, mutable=True)
    flag = export_global(True, mutable=True)
    i = export_global(AbstractI32, mutable=True)
    constant = export_global(7)

    def ints(self, a=AbstractI64, b=AbstractI64):
        return a + b, a - b, a * b, a // b, a % b, a / b, -a, 7 // a, 7 - a, a + 1.5

    def floats(self, a=AbstractF64, b=AbstractF64):
        return a + b, a - b, a * b, a // b, a % b, a / b, -a, 7 // a, 7 - a, a + 1

    def orders(self, a=AbstractI64, b=AbstractI64):
        return a == b, a != b, a < b, a <= b, a > b, a >= b, (a < 3) & (b < 3), (a < 3) | (b < 3)

    def kinds(self, i=AbstractI32, n=AbstractIndex, f=AbstractF32, t=AbstractBool):
        return i + 1, n * 2, f / 2, t, i + n, n * f, t & (n > 1), f.to(AbstractI64)

    def keep(self):
        self.f = self.f + 1
        self.i.set(self.i + 2)
        self.flag = self.flag == False  # noqa: E712
        return self.f, self.i, self.flag, self.constant

    def examples(self, n=3, x=2.5, t=EXAMPLE):
        return self.total(t, n, x)

    @jittable
    def total(t, n, x):
        return t * n + x


@pytest.fixture(scope="module")
def numbers() -> turbine.Artifact:
    return aot.export(Numbers).compile()


@pytest.mark.parametrize("pair", [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3)])
def test_numbers_compute_as_pythons_do(pair: tuple[int, int], numbers: turbine.Artifact) -> None:
    a, b = pair
    expected = a + b, a - b, a * b, a // b, a % b, a / b, -a, 7 // a, 7 - a, a + 1.5
    assert numbers.ints(a, b) == expected
    x, y = a + 0.25, float(b)
    assert numbers.floats(x, y) == (
        *(x + y, x - y, x * y, x // y, x % y, x / y, -x),
        *(7 // x, 7 - x, x + 1),
    )
    logic = ((a < 3) and (b < 3), (a < 3) or (b < 3))
    assert numbers.orders(a, b) == (a == b, a != b, a < b, a <= b, a > b, a >= b, *logic)


def test_a_division_by_zero_fails_with_the_line(numbers: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match=r"division by zero at .*test_compiled_module.py"):
        numbers.ints(1, 0)


def test_numbers_of_every_kind_pass(numbers: turbine.Artifact) -> None:
    found = numbers.kinds(-5, 3, 2.5, True)
    assert found == (-4, 6, 1.25, True, -2, 7.5, True, 2)
    assert [type(value) for value in found[:4]] == [int, int, float, bool]


def test_numbers_are_state(numbers: turbine.Artifact) -> None:
    numbers.reset()
    assert [numbers.keep(), numbers.keep()] == [(2.5, 2, False, 7), (3.5, 4, True, 7)]
    assert dict(numbers.state) == {"f": 3.5, "flag": True, "i": 4}
    numbers.state["f"] = 1
    assert numbers.state["f"] == 1.0


def test_example_values_stand_for_their_types(numbers: turbine.Artifact) -> None:
    found = numbers.examples(5, 0.5, torch.full((2, 3), 2.0))
    torch.testing.assert_close(found, torch.full((2, 3), 10.5))


BUFFERED = nn.BatchNorm1d(8)
TENSOR = torch.arange(8.0)
# Alike in print, where numpy leaves out the middle.
ZEROS, ONE = numpy.zeros(5000), numpy.eye(1, 5000, 2500)[0]


class Tensors(CompiledModule):
    """Builtins, pytrees, dynamic sizes, closures and tensors that are written."""

    cache = export_global(torch.zeros(4, 8), mutable=True)
    blank = export_global(AbstractTensor(2), mutable=True, uninitialized=True)
    buffers = aot.export_buffers(BUFFERED, mutable=True)
    given = aot.export_parameters(HEAD, external=True, external_scope="head", name_mapper=str.upper)

    def update(
        self,
        x=AbstractTensor(None, None),
        part=AbstractTensor(None, None),
        i=AbstractIndex,
        j=AbstractIndex,
    ):
        return IREE.tensor_update(x, part, i, j)

    def builtins(self, x=AbstractTensor(None, None, 4), n=AbstractIndex):
        flat = IREE.tensor_reshape(x, x.dim(0) * IREE.tensor_dim(x, 1), 4)
        part = IREE.tensor_slice(flat, (1, n), 2)
        IREE.tensor_trace("part", part)
        half = IREE.tensor_splat(n, 3, value=n, dtype=torch.float16)
        full = IREE.tensor_splat(2, value=True, dtype=torch.bool)
        return flat, part, self.one_more(part), half, full, IREE.tensor_empty(n, 4)

    def keep(self, x=AbstractTensor(4, 8)):
        old = self.cache
        self.cache = x
        return old, self.cache, x

    def put(self, x=AbstractTensor(None)):
        self.blank = x

    def put_through(self, x=AbstractTensor("rows")):
        self.put(x)

    def row(self, i=AbstractIndex):
        self.cache = IREE.tensor_update(self.cache, IREE.tensor_splat(1, 8, value=i), i, 0)
        return self.cache

    def sum(self, x=AbstractTensor(None, 8), y=AbstractTensor(None, 8)):
        return self.add(x, y)

    def same(self, x=AbstractTensor("n", 8), y=AbstractTensor("n", 8)):
        return self.add(x, y)

    def nested(self, batch={"a": AbstractTensor(2), "b": (AbstractTensor(2), AbstractI64)}):  # noqa: B006
        a, (b, n) = batch["a"], batch["b"]
        return [{"sum": self.add(a, b)}, (n + 1, None, "text"), Pair(a, b)]

    def normal(self, x=AbstractTensor(None, 8)):
        return self.normalize(x)

    def closed(self, x=AbstractTensor(None, 8)):
        return self.head(x), self.sized(x)

    def in_place(self):
        self.fill(self.cache)

    def whole(self, x=AbstractTensor(2, 3)):
        part = IREE.tensor_reshape(IREE.tensor_slice(x, (0, 2)), 3, 2)
        return IREE.tensor_update(part, IREE.tensor_splat(1, 2, value=7), 0, 0)

    def changed(self):
        weight = self.given["weight"]
        return IREE.tensor_update(weight, IREE.tensor_splat(3, 1, value=7), 0, 0), weight

    def constants(self, x=AbstractTensor(2)):
        return self.plus_sum(x, ZEROS), self.plus_sum(x, ONE), self.plus_sum(x, ZEROS)

    @jittable
    def plus_sum(x, array):
        return x + float(array.sum())

    @jittable
    def one_more(x):
        return x + 1

    @jittable(function_name="sum_of_two")
    def add(x, y):
        return x + y

    @jittable
    def normalize(x):
        return BUFFERED(x)

    @jittable
    def head(x):
        return HEAD(x + TENSOR)

    @jittable
    def sized(x):
        return x.shape[0] * 2, 5

    @jittable
    def fill(x):
        x.fill_(3)


@pytest.fixture(scope="module")
def tensors() -> turbine.Artifact:
    return aot.export(Tensors).compile()


def test_an_update_leaves_its_argument_alone(tensors: turbine.Artifact) -> None:
    x, part = torch.zeros(3, 5), torch.ones(2, 2)
    found = tensors.update(x, part, 1, 2)
    assert not x.any()
    x[1:3, 2:4] = 1
    assert torch.equal(found, x)


def test_a_part_that_is_the_whole_argument_is_not_written(tensors: turbine.Artifact) -> None:
    x = torch.zeros(2, 3)
    assert tensors.whole(x).flatten().tolist() == [7, 7, 0, 0, 0, 0]
    assert not x.any()


def test_an_update_of_a_weight_leaves_the_weight_alone(tensors: turbine.Artifact) -> None:
    for _ in range(2):
        changed, weight = tensors.changed()
        assert torch.equal(weight, HEAD.weight.detach())
        assert (changed[:, 0] == 7).all()
        assert torch.equal(changed[:, 1:], weight[:, 1:])


def test_constants_of_a_jittable_are_told_apart(tensors: turbine.Artifact) -> None:
    found = tensors.constants(torch.zeros(2))
    assert [float(value[0]) for value in found] == [0, 1, 0]


@pytest.mark.parametrize("start", [(3, 0), (0, 4), (-1, 0)])
def test_an_update_out_of_range_fails(start: tuple[int, int], tensors: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match="out of range along axis"):
        tensors.update(torch.zeros(3, 5), torch.ones(1, 2), *start)


def test_builtins_do_what_pytorch_does(
    tensors: turbine.Artifact, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    flat, part, more, half, full, empty = tensors.builtins(x, 2)
    assert torch.equal(flat, x.reshape(6, 4))
    assert torch.equal(part, flat[1:3, 2:3])
    assert torch.equal(more, part + 1)
    assert torch.equal(half, torch.full((2, 3), 2.0, dtype=torch.float16))
    assert torch.equal(full, torch.tensor([True, True]))
    assert empty.shape == (2, 4)
    assert "=== part ===" in capfd.readouterr().err


def test_state_shares_no_memory_with_arguments_and_results(tensors: turbine.Artifact) -> None:
    tensors.reset()
    x = torch.ones(4, 8)
    for mine in (*tensors.keep(x), x):
        mine.fill_(9)
    assert (tensors.state["cache"] == 1).all()
    first = tensors.row(2)
    tensors.row(3)
    assert first[:, 0].tolist() == [1, 1, 2, 1]


def test_unknown_sizes_that_have_to_agree_are_checked(tensors: turbine.Artifact) -> None:
    x = torch.randn(1, 8)
    torch.testing.assert_close(tensors.sum(x, x), x + x)
    torch.testing.assert_close(tensors.same(x, x), x + x)
    with pytest.raises(errors.RunError, match="another size along axis 0"):
        tensors.sum(torch.ones(3, 8), torch.ones(2, 8))
    with pytest.raises(errors.ArgumentError, match="'y' has size 2 along axis 0"):
        tensors.same(torch.ones(3, 8), torch.ones(2, 8))


def test_arguments_and_results_are_nested(tensors: turbine.Artifact) -> None:
    a, b = torch.ones(2), torch.arange(2.0)
    first, second, pair = tensors.nested({"a": a, "b": (b, 4)})
    torch.testing.assert_close(first["sum"], a + b)
    assert second == (5, None, "text")
    assert isinstance(pair, Pair)
    assert torch.equal(pair.second, b)


def test_buffers_that_a_jittable_writes_are_state(tensors: turbine.Artifact) -> None:
    tensors.reset()
    model = nn.BatchNorm1d(8)
    for _ in range(2):
        x = torch.randn(6, 8)
        torch.testing.assert_close(tensors.normal(x), model(x).detach())
    torch.testing.assert_close(tensors.state["buffers.running_mean"], model.running_mean)


def test_a_jittable_may_close_over_modules_and_tensors(tensors: turbine.Artifact) -> None:
    x = torch.randn(3, 8)
    found, sizes = tensors.closed(x)
    torch.testing.assert_close(found, HEAD(x + TENSOR).detach())
    assert sizes == (6, 5)


def test_a_tensor_that_a_jittable_writes_is_written(tensors: turbine.Artifact) -> None:
    assert tensors.in_place() is None
    assert (tensors.state["cache"] == 3).all()


def test_a_value_of_another_size_is_refused_before_the_call(tensors: turbine.Artifact) -> None:
    for entry in (tensors.put, tensors.put_through):
        with pytest.raises(errors.ArgumentError, match=r"'x' has size 4 along axis 0.* == 2"):
            entry(torch.ones(4))
        entry(torch.full((2,), 5.0))
        assert tensors.state["blank"].tolist() == [5, 5]


def test_uninitialized_state_is_set(tensors: turbine.Artifact) -> None:
    tensors.state["blank"] = torch.ones(2)
    assert torch.equal(tensors.state["blank"], torch.ones(2))


def test_external_globals_have_scopes_and_mapped_names(tensors: turbine.Artifact) -> None:
    rows = {row["key"]: row["scope"] for row in tensors.manifest["weights"]}
    assert rows["GIVEN.WEIGHT"] == rows["GIVEN.BIAS"] == "head"


def test_outside_of_a_procedure_a_jittable_is_pytorch() -> None:
    assert torch.equal(Tensors.add(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


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


def test_a_subclass_inherits_replaces_and_calls_what_it_replaces() -> None:
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


class Growing(CompiledModule):
    """Globals whose sizes vary."""

    rows = export_global(AbstractTensor(None, 4), mutable=True)
    flags = export_global(AbstractTensor(None, dtype=torch.bool), mutable=True, uninitialized=True)

    def put(self, x=AbstractTensor(None, 4)):
        old = self.rows
        self.rows = x
        return old

    def append(self, x=AbstractTensor(None, 4)):
        self.rows = self.join(self.rows, x)
        return self.rows, self.rows.get_dim_value(0)

    def write(self):
        self.rows = IREE.tensor_update(self.rows, IREE.tensor_splat(1, 4, value=7.0), 0, 0)

    def flag(self, x=AbstractTensor(None, dtype=torch.bool)):
        self.flags = x

    @jittable
    def join(a, b):
        return torch.cat([a, b])


@pytest.fixture(scope="module")
def growing() -> turbine.Artifact:
    return aot.export(Growing).compile()


def test_a_global_may_get_another_size_with_each_value(growing: turbine.Artifact) -> None:
    growing.reset()
    assert growing.state["rows"].shape == (0, 4)
    total = torch.empty(0, 4)
    for count in (1, 3, 0, 2):
        more = torch.randn(count, 4)
        total = torch.cat([total, more])
        rows, size = growing.append(more)
        assert torch.equal(rows, total)
        assert size == len(total)
    assert torch.equal(growing.state["rows"], total)
    growing.state["rows"] = torch.ones(5, 4)
    assert growing.put(torch.zeros(2, 4)).shape == (5, 4)
    growing.flag(torch.tensor([True, False]))
    assert growing.state["flags"].tolist() == [True, False]
    with pytest.raises(errors.ArgumentError, match="'rows' has size 5 along axis 1, expected 4"):
        growing.state["rows"] = torch.ones(3, 5)
    growing.reset()
    assert growing.state["rows"].shape == (0, 4)


def test_a_global_of_any_size_shares_no_memory_with_a_caller(growing: turbine.Artifact) -> None:
    x = torch.ones(64, 4)
    growing.put(x)
    growing.write()
    assert torch.equal(x, torch.ones(64, 4))
    x.fill_(3)
    growing.put(torch.zeros(1, 4))[:] = 9
    assert growing.state["rows"].tolist() == [[0] * 4]


BATCH_OF_JITTABLE = torch.export.Dim("batch", min=3, max=6)


class Ranged(CompiledModule):
    """A jittable that says more of its sizes than its calls do."""

    def run(self, x=AbstractTensor(None, 2), y=AbstractTensor(None, 2)):
        return self.add(x, other={"y": y})

    @jittable(
        dynamic_shapes={"x": {0: BATCH_OF_JITTABLE}, "other": {"y": (BATCH_OF_JITTABLE, None)}},
        passes=["functorch_functionalize"],
    )
    def add(x, other):
        return x + 1, other["y"] * 2


def test_dynamic_shapes_of_a_jittable_are_checked() -> None:
    artifact = aot.export(Ranged).compile()
    for rows in (3, 6):
        found = artifact.run(torch.ones(rows, 2), torch.ones(rows, 2))
        assert [len(part) for part in found] == [rows, rows]
    with pytest.raises(errors.ArgumentError, match=r"needs x.shape\[0\] >= 3"):
        artifact.run(torch.ones(2, 2), torch.ones(2, 2))
    for sizes, match in {(7, 7): "is over 6", (4, 5): "another size"}.items():
        with pytest.raises(errors.RunError, match=match):
            artifact.run(*(torch.ones(size, 2) for size in sizes))


# Mistakes.


def refused(*, match: str, **members: Any) -> errors.ProcedureError:
    """The error that a class of these members ends in."""
    with pytest.raises(errors.ProcedureError, match=match) as caught:
        CompiledModule.create_from_dict("Wrong", members)()
    return caught.value


def procedure(body: Any) -> Any:
    def run(self: Any, x: Any = AbstractTensor(2), n: Any = AbstractIndex) -> Any:
        return body(self, x, n)

    return run


MISTAKES: dict[str, tuple[Any, str]] = {
    "an undefined global": (
        lambda self, x, n: setattr(self, "stete", x),
        "unknown global 'stete'; valid: state, fixed, number",
    ),
    "an undefined global that is read": (
        lambda self, x, n: self.stete,
        "unknown global or procedure 'stete'; valid: state, other",
    ),
    "an immutable global": (
        lambda self, x, n: setattr(self, "fixed", x),
        "the global 'fixed' is not mutable",
    ),
    "another shape": (
        lambda self, x, n: setattr(self, "state", IREE.tensor_splat(3, value=1)),
        r"the global 'state' is a float32\[3\], expected a float32\[2\]",
    ),
    "another dtype": (
        lambda self, x, n: setattr(self, "state", torch.ones(2, dtype=torch.int64)),
        r"the global 'state' is a int64\[2\], expected a float32\[2\]",
    ),
    "no tensor": (
        lambda self, x, n: setattr(self, "state", 3),
        r"the global 'state' is a int, expected a float32\[2\]",
    ),
    "another kind of number": (
        lambda self, x, n: setattr(self, "number", n),
        "the global 'number' is a index, expected a float64",
    ),
    "no value": (lambda self, x, n: object(), "'run' returns a object, an unsupported type"),
    "a branch": (lambda self, x, n: 1 if n > 2 else 2, "a bool known only at run time cannot dec"),
    "a range": (lambda self, x, n: list(range(n)), "a index known only at run time cannot become"),
    "an exception": (
        lambda self, x, n: vars(torch)["key"],
        "'run' failed: KeyError: 'key'",
    ),
    "itself": (lambda self, x, n: self.run(x, n), "infinite recursion of procedures: run -> run"),
    "arguments": (lambda self, x, n: self.other(n), r"argument 'x' is a IrScalar, expected a floa"),
    "too many": (lambda self, x, n: self.other(x, n), "a call of 'other': wrong arguments"),
    "a part": (lambda self, x, n: IREE.tensor_slice(x, (1, 2)), "out of range along axis=0"),
    "a count": (lambda self, x, n: IREE.tensor_reshape(x, 3), "has 2 elements, the new shape has"),
    "an axis": (lambda self, x, n: IREE.tensor_dim(x, 1), "axis out of range: axis=1 rank=1"),
    "an unknown parameter": (
        lambda self, x, n: jittable(lambda y: y + 1, dynamic_shapes={"x": {0: None}})(x),
        "unknown parameter in dynamic_shapes 'x'; valid: y",
    ),
    "a size that is known": (
        lambda self, x, n: jittable(lambda y: y + 1, dynamic_shapes={"y": {0: BATCH_OF_JITTABLE}})(
            x
        ),
        r"dynamic_shapes\['y'\] has axis 0 from 3 to 6, and in this call it has size 2",
    ),
    "no Dim": (
        lambda self, x, n: jittable(lambda y: y + 1, dynamic_shapes={"y": {1: 4}})(x),
        r"dynamic_shapes\['y'\] says 4 of axis 1: rank=1",
    ),
    "an unknown pass": (
        lambda self, x, n: jittable(lambda y: y + 1, passes=["fold"])(x),
        "unknown pass of a jittable 'fold'; valid: functorch_functionalize",
    ),
    "pytorch": (lambda self, x, n: jittable(lambda x: x @ x.T @ torch.ones(3))(x), "jittable"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_line(name: str) -> None:
    body, match = MISTAKES[name]
    error = refused(
        match=match,
        state=export_global(torch.zeros(2), mutable=True),
        fixed=export_global(torch.zeros(2)),
        number=export_global(1.0, mutable=True),
        other=lambda self, x=AbstractTensor(2): x,
        run=procedure(body),
    )
    assert "test_compiled_module.py:" in (error.where or "")


def test_name_collisions_list_both() -> None:
    one, two = export_global(torch.ones(2), name="x"), export_global(1, name="x")
    refused(match="wrong.a and the global wrong.b are both named 'x'", a=one, b=two)
    clash = export_global(torch.ones(2), name="run")
    refused(match="global wrong.a and the procedure Wrong.run", a=clash, run=procedure(None))


def test_a_name_that_the_artifact_has_is_refused() -> None:
    refused(
        match="in wrong, 'reset' would be hidden by `reset` of the artifact", reset=procedure(None)
    )


def test_a_parameter_of_which_nothing_is_known_is_named() -> None:
    refused(match="of the parameter 'x' of procedure 'run'", run=lambda self, x: x)


def test_attributes_of_globals_that_clash_are_refused() -> None:
    with pytest.raises(errors.ProcedureError, match="both external and uninitialized"):
        export_global(AbstractTensor(2), mutable=True, external=True, uninitialized=True)
    with pytest.raises(errors.ProcedureError, match="has to be mutable"):
        export_global(AbstractTensor(2), uninitialized=True)
    refused(match="the global 'x' cannot be a str", x=export_global("text"))
    refused(match="'x' has sizes that are not known", x=export_global(AbstractTensor(None)))
    named = export_global(AbstractTensor("n"), mutable=True)
    refused(match="'x' has sizes that are not known", x=named)


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(errors.ProcedureError, match=r"Wrong is given options=3"):
        CompiledModule.create_from_dict("Wrong", {}, options=3)  # type: ignore[arg-type]


def test_values_of_the_program_are_not_at_hand_outside() -> None:
    instance = CompiledModule.create_from_dict("Small", {"x": export_global(1)})()
    with pytest.raises(errors.ProcedureError, match="the global 'x' was used outside"):
        _ = instance.x
    with pytest.raises(errors.ExportError, match="small has no entry points"):
        aot.export(instance).compile()
