"""Scalars, tensors and state inside procedures."""

from __future__ import annotations

from collections import namedtuple

import numpy
import pytest
import torch
from torch import nn

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

# Batch norms here update their statistics, as in training.
pytestmark = pytest.mark.filterwarnings("ignore::turbine.errors.TrainingModeWarning")

torch.manual_seed(0)
HEAD = nn.Linear(8, 3)
EXAMPLE = torch.ones(2, 3)


Pair = namedtuple("Pair", "first second")


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
def test_numbers_match_python(pair: tuple[int, int], numbers: turbine.Artifact) -> None:
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


def test_a_division_by_zero_names_the_line(numbers: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match=r"division by zero at .*test_procedure_values.py"):
        numbers.ints(1, 0)


def test_numbers_of_every_kind_are_arguments_and_results(numbers: turbine.Artifact) -> None:
    found = numbers.kinds(-5, 3, 2.5, True)
    assert found == (-4, 6, 1.25, True, -2, 7.5, True, 2)
    assert [type(value) for value in found[:4]] == [int, int, float, bool]


def test_numbers_may_be_state(numbers: turbine.Artifact) -> None:
    numbers.reset()
    assert [numbers.keep(), numbers.keep()] == [(2.5, 2, False, 7), (3.5, 4, True, 7)]
    assert dict(numbers.state) == {"f": 3.5, "flag": True, "i": 4}
    numbers.state["f"] = 1
    assert numbers.state["f"] == 1.0


def test_example_values_declare_types(numbers: turbine.Artifact) -> None:
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


def test_updates_do_not_change_their_argument(tensors: turbine.Artifact) -> None:
    x, part = torch.zeros(3, 5), torch.ones(2, 2)
    found = tensors.update(x, part, 1, 2)
    assert not x.any()
    x[1:3, 2:4] = 1
    assert torch.equal(found, x)


def test_updates_of_a_whole_slice_do_not_change_their_argument(tensors: turbine.Artifact) -> None:
    x = torch.zeros(2, 3)
    assert tensors.whole(x).flatten().tolist() == [7, 7, 0, 0, 0, 0]
    assert not x.any()


def test_updates_of_a_weight_do_not_change_the_weight(tensors: turbine.Artifact) -> None:
    for _ in range(2):
        changed, weight = tensors.changed()
        assert torch.equal(weight, HEAD.weight.detach())
        assert (changed[:, 0] == 7).all()
        assert torch.equal(changed[:, 1:], weight[:, 1:])


def test_constants_of_jittables_are_distinguished(tensors: turbine.Artifact) -> None:
    found = tensors.constants(torch.zeros(2))
    assert [float(value[0]) for value in found] == [0, 1, 0]


@pytest.mark.parametrize("start", [(3, 0), (0, 4), (-1, 0)])
def test_an_update_out_of_range_fails(start: tuple[int, int], tensors: turbine.Artifact) -> None:
    with pytest.raises(errors.RunError, match="out of range along axis"):
        tensors.update(torch.zeros(3, 5), torch.ones(1, 2), *start)


def test_builtins_match_pytorch(
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


def test_dynamic_sizes_that_must_agree_are_checked(tensors: turbine.Artifact) -> None:
    x = torch.randn(1, 8)
    torch.testing.assert_close(tensors.sum(x, x), x + x)
    torch.testing.assert_close(tensors.same(x, x), x + x)
    with pytest.raises(errors.RunError, match="another size along axis 0"):
        tensors.sum(torch.ones(3, 8), torch.ones(2, 8))
    with pytest.raises(errors.ArgumentError, match="'y' has size 2 along axis 0"):
        tensors.same(torch.ones(3, 8), torch.ones(2, 8))


def test_arguments_and_results_may_be_nested(tensors: turbine.Artifact) -> None:
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


def test_mutations_in_a_jittable_update_the_tensor(tensors: turbine.Artifact) -> None:
    assert tensors.in_place() is None
    assert (tensors.state["cache"] == 3).all()


def test_values_of_the_wrong_size_are_rejected_before_the_call(tensors: turbine.Artifact) -> None:
    for entry in (tensors.put, tensors.put_through):
        with pytest.raises(errors.ArgumentError, match=r"'x' has size 4 along axis 0.* == 2"):
            entry(torch.ones(4))
        entry(torch.full((2,), 5.0))
        assert tensors.state["blank"].tolist() == [5, 5]


def test_uninitialized_state_can_be_set(tensors: turbine.Artifact) -> None:
    tensors.state["blank"] = torch.ones(2)
    assert torch.equal(tensors.state["blank"], torch.ones(2))


def test_external_globals_have_scopes_and_renamed_keys(tensors: turbine.Artifact) -> None:
    rows = {row["key"]: row["scope"] for row in tensors.manifest["weights"]}
    assert rows["GIVEN.WEIGHT"] == rows["GIVEN.BIAS"] == "head"


def test_jittables_run_in_pytorch_outside_of_procedures() -> None:
    assert torch.equal(Tensors.add(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


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


def test_globals_may_change_their_size(growing: turbine.Artifact) -> None:
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


def test_globals_of_dynamic_size_do_not_alias_callers(growing: turbine.Artifact) -> None:
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
