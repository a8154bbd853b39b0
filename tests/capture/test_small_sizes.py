"""Sizes 0 and 1, which PyTorch excludes from traces, are accepted if eager behaves the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import turbine
from tests.models import Fn, compiled
from turbine import aot, errors
from turbine.aot import AbstractTensor, CompiledModule, jittable
from turbine.capture import small_sizes
from turbine.capture.model import capture

pytestmark = pytest.mark.sweep(2)

sizes = pytest.mark.sweep(1, "sizes")

Shapes = list[tuple[int, ...]]
X: Shapes = [(6, 4)]
XY: Shapes = [(6, 4), (3, 4)]
PLANES: Shapes = [(3, 4, 8)]


# Each with the shapes of an example, of which the first sizes vary, and the least it takes.
PROGRAMS: dict[str, tuple[Callable[..., Tensor], Shapes, int]] = {
    "every second row": (lambda x: x[::2], X, 1),
    "every fourth row": (lambda x: x[::4] + 1, X, 1),
    "neighbours": (lambda x: x[1:] + x[:-1], X, 1),
    "rows twice": (lambda x: torch.cat([x, x[1:]]), X, 1),
    "halves": (lambda x: x[: x.shape[0] // 2] + x[x.shape[0] - x.shape[0] // 2 :], X, 1),
    "all pairs": (lambda x: x[None] + x[:, None], X, 1),
    "all pairs of every second": (
        lambda x: x[::2][None] * x[::2][:, None] + torch.ones(1, 4),
        X,
        1,
    ),
    "the first to all": (lambda x: x[:1].expand(x.shape[0], 4) + x, X, 1),
    "a column to all": (lambda x: x[::2] + x[::2].mean(0, keepdim=True), X, 1),
    "linear": (lambda x: nn.functional.linear(x[::2], torch.ones(3, 4)), X, 1),
    "norm": (lambda x: nn.functional.layer_norm(x[::2], (4,)), X, 1),
    "softmax over rows": (lambda x: torch.softmax(x[::2], 0), X, 1),
    "two sizes": (lambda x, y: x[:, None] * y[None], XY, 1),
    "sizes that agree": (lambda x, y: x[::2] + y, XY, 1),
    "pooling": (lambda x: nn.functional.avg_pool1d(x, 2), PLANES, 1),
    "a branch on a size": (lambda x: x * 2 if x.shape[0] != 1 else x, X, 2),
    "a branch on a computed size": (lambda x: x[::2] * 2 if x[::2].shape[0] != 1 else x, X, 3),
    "squeeze": (lambda x: x[::2].squeeze(), X, 3),
    "a branch on a sum": (lambda x, y: x[:1] + y[:1] if x.shape[0] + y.shape[0] > 2 else x, XY, 2),
}


def exported(name: str) -> tuple[Fn, turbine.aot.ExportOutput]:
    function, shapes, _ = PROGRAMS[name]
    model = Fn(function)
    sizes = tuple({0: Dim.AUTO} for _ in shapes)
    example = tuple(torch.randn(shape) for shape in shapes)
    return model, aot.export(model, args=example, dynamic_shapes=(sizes,))


@sizes
@pytest.mark.run
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_sizes_match_eager_or_are_rejected(name: str) -> None:
    _, shapes, least = PROGRAMS[name]
    model, output = exported(name)
    artifact = output.compile()
    taken = set()
    for sizes in itertools.product(range(6), repeat=len(shapes)):
        args = [torch.randn(size, *shape[1:]) for size, shape in zip(sizes, shapes, strict=True)]
        try:
            found = artifact(*args)
        except errors.ArgumentError:
            continue
        torch.testing.assert_close(found, model(*args))
        taken.add(min(sizes))
    assert min(taken) == least


# Under a Dim of a user's, which allows 0 and 1, and the least that is right.
NAMED: dict[str, tuple[Callable[..., Tensor], int]] = {
    "elementwise": (lambda x: x + 1, 0),
    "squeeze of the axis": (lambda x: x.squeeze(0), 2),
    "a branch": (lambda x: x * 2 if x.shape[0] != 1 else x, 2),
    "largest": (lambda x: x.amax(0), 1),
    "deviation": (lambda x: x.std(0), 0),
}


@sizes
@pytest.mark.run
@pytest.mark.filterwarnings("ignore:std():UserWarning")
@pytest.mark.parametrize("name", NAMED)
def test_small_sizes_of_a_named_dim_are_correct_or_rejected(name: str) -> None:
    function, least = NAMED[name]
    artifact = compiled(function, torch.randn(3, 4), dynamic_shapes=(({0: Dim("rows")},),))
    for size in range(4):
        x = torch.randn(size, 4)
        if size < least:
            with pytest.raises(errors.ArgumentError, match=f"size {size} along axis 0"):
                artifact(x)
        else:
            torch.testing.assert_close(artifact(x), function(x), equal_nan=True)


ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)

# Of [batch, length, 8], and the least that is right of both sizes.
OF_TWO: dict[str, tuple[Callable[..., Tensor], int]] = {
    "an encoder": (ENCODER, 1),
    "products": (lambda x: (x @ x.transpose(1, 2)).softmax(-1).transpose(0, 1).reshape(-1) + 1, 0),
    "a branch on both": (lambda x: x * 7 if x.shape[0] * x.shape[1] == 1 else x, 2),
}


@sizes
@pytest.mark.run
@pytest.mark.parametrize("name", OF_TWO)
def test_small_sizes_of_two_named_dims_are_correct_or_rejected(name: str) -> None:
    function, least = OF_TWO[name]
    sizes = ({0: Dim("batch"), 1: Dim("length")},)
    artifact = compiled(function, torch.randn(3, 4, 8), dynamic_shapes=(sizes,))
    for batch, length in itertools.product(range(4), repeat=2):
        x = torch.randn(batch, length, 8)
        if min(batch, length) >= least:
            torch.testing.assert_close(artifact(x), function(x))
        elif least > 1:
            with pytest.raises(errors.ArgumentError, match="out of range"):
                artifact(x)


def test_rejected_sizes_are_named_by_argument_and_axis() -> None:
    _, output = exported("squeeze")
    artifact = output.compile()
    with pytest.raises(errors.ArgumentError, match="'arg0' has size 1 along axis 0, which is out"):
        artifact(torch.ones(1, 4))
    needed = r"'arg0' has size 2 along axis 0; the program needs \(arg0.shape\[0\] \+ 1\) // 2 != 1"
    with pytest.raises(errors.ArgumentError, match=needed):
        artifact(torch.ones(2, 4))


def test_user_ranges_are_kept() -> None:
    rows = Dim("rows", min=3, max=9)
    program = capture(Fn(lambda x: x[::2]), (torch.ones(6, 4),), dynamic_shapes=(({0: rows},),))
    (limits,) = program.signature.symbols.values()
    assert (limits.minimum, limits.maximum) == (3, 9)


def test_jittables_accept_small_sizes() -> None:
    class Halves(CompiledModule):
        def run(self, x=AbstractTensor(None, 4)):
            return self.half(x)

        @jittable
        def half(x):
            return x[::2] + 1

    artifact = aot.export(Halves).compile()
    for rows in range(1, 6):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(artifact.run(x), x[::2] + 1)


@sizes
@pytest.mark.run
@pytest.mark.filterwarnings("ignore:std():UserWarning")
@pytest.mark.parametrize("name", NAMED)
def test_small_sizes_in_a_jittable_are_correct_or_rejected(name: str) -> None:
    function, least = NAMED[name]
    compute = jittable(function, function_name="compute")

    class Stated(CompiledModule):
        rows = aot.export_global(AbstractTensor(None, 4), mutable=True)

        def given(self, x=AbstractTensor(None, 4)):
            return compute(x)

        def held(self):
            return compute(self.rows)

    artifact = aot.export(Stated).compile()
    for size in range(4):
        x = torch.randn(size, 4)
        artifact.state["rows"] = x
        if size < least:
            with pytest.raises(errors.ArgumentError, match=f"size {size} along axis 0"):
                artifact.given(x)
            with pytest.raises(errors.RunError, match=f"along axis 0 is under {least}"):
                artifact.held()
        else:
            torch.testing.assert_close(artifact.given(x), function(x), equal_nan=True)
            torch.testing.assert_close(artifact.held(), function(x), equal_nan=True)


def test_saved_programs_accept_the_same_sizes(tmp_path: Path) -> None:
    root = nn.Linear(4, 3)
    builder = aot.FxProgramsBuilder(root)

    @builder.export_program(args=(torch.ones(5, 4),), dynamic_shapes={"x": {0: Dim("rows")}})
    def run(module: Any, x: Tensor) -> Tensor:
        return torch.relu(module(x)) + x.sum()

    builder.save(tmp_path / "programs.json")
    artifact = aot.export(aot.FxPrograms.load(tmp_path / "programs.json")).compile()
    for rows in range(5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(artifact.run(x), torch.relu(root(x)).detach() + x.sum())


@pytest.mark.parametrize(
    ("condition", "is_small"),
    [
        ("Ne(((n + 1)//2), 1)", True),
        ("Ne(n, 0)", True),
        ("1 < (((n + 1)//2))", True),
        ("3*n - 4 >= 2", True),
        ("n <= 500", False),
        ("Ne(n, 7)", False),
        ("Ne(100 - n, 1)", False),
        ("Eq(Mod(n, 2), 0)", False),
        ("Ne(Mod(n, 300), 1)", False),
        ("Ne(n - 300*((n//300)), 1)", False),
        ("Ne((n//300), 1)", False),
    ],
)
def test_only_guards_against_small_sizes_are_rechecked(condition: str, is_small: bool) -> None:
    assert small_sizes.is_about_small_sizes(condition, "n") == is_small


def test_small_sizes_are_checked_for_examples_of_zeros() -> None:
    function, _ = NAMED["a branch"]
    artifact = compiled(function, torch.zeros(3, 4), dynamic_shapes=(({0: Dim("rows")},),))
    with pytest.raises(errors.ArgumentError, match="size 1 along axis 0"):
        artifact(torch.randn(1, 4))


def test_programs_that_check_indices_are_compared_and_not_traced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(small_sizes, "is_same", None)
    table = nn.Embedding(5, 4).requires_grad_(False)

    def least(function: Callable[[Tensor], Tensor]) -> int | None:
        example, shapes = (torch.tensor([1, 4, 2]),), (({0: Dim("rows")},),)
        signature = capture(Fn(function), example, dynamic_shapes=shapes).signature
        (size,) = signature.symbols.values()
        return size.minimum

    assert least(lambda x: table(x) + 1) == 0
    assert least(lambda x: table(x) * 2 if x.shape[0] != 1 else table(x)) == 2
