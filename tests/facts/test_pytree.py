"""Pytrees, signatures and size expressions."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import turbine
from tests.models import assert_alike
from turbine import dims, errors, pytree
from turbine.pytree import LEAF, Tree
from turbine.signature import Input, Output, Range, Signature


class Point(NamedTuple):
    x: Any
    y: Any


class Place(Point):
    """A named tuple with a class of its own."""


@dataclass
class Box:
    """The last field has a default other than None."""

    low: Any
    high: Any = None
    name: Any = "box"


POINT = Tree("record", (LEAF, LEAF), ("x", "y"), f"{__name__}:Point")
BOX = Tree("record", (LEAF,), ("low",), f"{__name__}:Box")
PAIR = Tree("tuple", (LEAF, LEAF))

VALUES: list[tuple[Tree, Any, list[Any]]] = [
    (LEAF, 1, [1]),
    (Tree("tuple"), (), []),
    (Tree("list"), [], []),
    (Tree("dict"), {}, []),
    (PAIR, (1, 2), [1, 2]),
    (Tree("list", (LEAF, PAIR)), [1, (2, 3)], [1, 2, 3]),
    (Tree("dict", (LEAF, LEAF), ("b", "a")), {"b": 1, "a": 2}, [1, 2]),
    (Tree("dict", (LEAF, LEAF), (3, "a")), {3: 1, "a": 2}, [1, 2]),
    (Tree("ordered_dict", (LEAF, LEAF), ("b", "a")), OrderedDict(b=1, a=2), [1, 2]),
    (POINT, Point(1, 2), [1, 2]),
    (replace(POINT, type_path=f"{__name__}:Place"), Place(1, 2), [1, 2]),
    (BOX, Box(1, None, None), [1]),
    (
        Tree("dict", (Tree("list", (POINT, BOX)),), ("k",)),
        {"k": [Point(1, 2), Box(3, None, None)]},
        [1, 2, 3],
    ),
]


@pytest.mark.parametrize(("tree", "value", "leaves"), VALUES, ids=[str(v[1]) for v in VALUES])
def test_flatten_and_unflatten_round_trip(tree: Tree, value: Any, leaves: list[Any]) -> None:
    assert pytree.flatten(tree, value) == leaves
    rebuilt = pytree.unflatten(tree, leaves)
    assert rebuilt == value
    assert type(rebuilt) is type(value)


@pytest.mark.parametrize("tree", [row[0] for row in VALUES], ids=[str(v[1]) for v in VALUES])
def test_trees_round_trip_through_json(tree: Tree) -> None:
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_dict_keys_keep_the_order_of_the_export() -> None:
    tree = Tree("dict", (LEAF, LEAF), ("b", "a"))
    assert pytree.flatten(tree, {"a": 1, "b": 2}) == [2, 1]
    assert list(pytree.unflatten(tree, [2, 1])) == ["b", "a"]


def test_keys_that_json_would_change_are_rejected() -> None:
    with pytest.raises(errors.ExportError, match=r"a dict with the keys \[\(1, 2\)\]"):
        Tree("dict", (LEAF,), ((1, 2),)).to_json()  # type: ignore[arg-type]


def test_paths_are_python_expressions() -> None:
    tree = Tree("dict", (Tree("list", (POINT, LEAF)), LEAF), ("ids", 3))
    assert pytree.paths(tree, "batch") == [
        "batch['ids'][0].x",
        "batch['ids'][0].y",
        "batch['ids'][1]",
        "batch[3]",
    ]


WRONG: list[tuple[Tree, Any, str]] = [
    (PAIR, 3, "v is a int, expected a tuple"),
    (PAIR, {}, "v is a dict, expected a tuple"),
    (PAIR, "ab", "v is a str, expected a tuple"),
    (PAIR, (1, 2, 3), "v has 3 items, expected 2"),
    (Tree("list", (PAIR,)), [(1,)], r"v\[0\] has 1 items, expected 2"),
    (Tree("dict", (LEAF,), ("a",)), [1], "v is a list, expected a dict"),
    (Tree("dict", (LEAF,), ("a",)), {"b": 1}, r"missing=\['a'\] extra=\['b'\]"),
    (Tree("dict", (LEAF,), ("a",)), {"a": 1, 2: 1}, r"missing=\[\] extra=\['2'\]"),
    (POINT, (1, 2), "v is a tuple, expected a .*:Point"),
    (POINT, 3, "v is a int, expected a .*:Point"),
    (POINT, {"x": 1}, r"v has the wrong keys: missing=\['y'\] extra=\[\]"),
    (POINT, {"x": 1, "y": 2, "z": 3}, r"extra=\['z'\]"),
    (BOX, Box(1, 2, None), r"v has the wrong keys: missing=\[\] extra=\['high'\]"),
]


@pytest.mark.parametrize(("tree", "value", "message"), WRONG, ids=[str(row[1]) for row in WRONG])
def test_a_structure_mismatch_names_the_path(tree: Tree, value: Any, message: str) -> None:
    with pytest.raises(errors.ArgumentError, match=message):
        pytree.flatten(tree, value, "v")


def test_a_dict_of_fields_is_accepted_for_a_dataclass() -> None:
    assert pytree.flatten(POINT, {"y": 2, "x": 1}) == [1, 2]
    assert pytree.flatten(BOX, {"low": 1, "high": None}) == [1]


@pytest.mark.parametrize(
    "type_path", ["no.such.module:Point", f"{__name__}:NoSuchClass", "os:path.no", "json:"]
)
def test_a_dataclass_without_its_class_is_a_dict(type_path: str) -> None:
    gone = replace(POINT, type_path=type_path)
    assert pytree.unflatten(gone, [1, 2]) == {"x": 1, "y": 2}
    assert pytree.flatten(gone, {"x": 1, "y": 2}) == [1, 2]
    assert pytree.flatten(gone, Point(1, 2)) == [1, 2]


# Signatures.

SIGNATURE = Signature(
    inputs=(
        Input("x", "tensor", "float32", ("n", 2), mutated=True),
        Input("pair[0]", "tensor", "int8", ("2*n",)),
        Input("pair[1]", "constant", value=None),
        Input("count", "int", value="n"),
        Input("mode", "constant", value="fast"),
    ),
    outputs=(
        Output("tensor", "uint8", (3,)),
        Output("size", value="n"),
        Output("constant", value=1.5),
        Output("scalar", "float64"),
    ),
    in_tree=Tree(
        "tuple",
        (
            Tree("tuple", (LEAF, PAIR)),
            Tree("dict", (LEAF, LEAF), ("count", "mode")),
        ),
    ),
    out_tree=Tree("list", (LEAF, LEAF, LEAF, LEAF)),
    symbols={"n": Range(1, None), "m": Range(0, 5)},
    parameters=("x", "pair", "count"),
    conditions=("Eq(Mod(n, 2), 0)",),
)


def test_signatures_round_trip_through_json() -> None:
    assert Signature.from_json(json.loads(json.dumps(SIGNATURE.to_json()))) == SIGNATURE


def test_signatures_print_as_one_line() -> None:
    assert SIGNATURE.text() == (
        "(x: float32[n, 2], pair[0]: int8[2*n], pair[1]: fixed at None, count: int n, "
        "mode: fixed at 'fast') -> [uint8[3], size n, 1.5, float64]"
    )


def test_signatures_print_the_structure_of_results() -> None:
    pair = Tree("record", (LEAF, Tree("tuple", (LEAF,))), ("low", "high"), "shapes.boxes:Box.Inner")
    signature = replace(SIGNATURE, out_tree=Tree("dict", (LEAF, LEAF, pair), ("loss", "n", 3)))
    assert signature.text().partition(" -> ")[2] == (
        "{'loss': uint8[3], 'n': size n, 3: Inner(low=1.5, high=(float64,))}"
    )


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("x", ("p", "q")), {"count": 1, "mode": "fast"}),
        (("x",), {"pair": ["p", "q"], "mode": "fast", "count": 1}),
        (("x", ("p", "q"), 1), {"mode": "fast"}),
        ((), {"mode": "fast", "count": 1, "pair": ("p", "q"), "x": "x"}),
    ],
)
def test_arguments_are_passed_by_position_or_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert SIGNATURE.leaves(args, kwargs) == ["x", "p", "q", 1, "fast"]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"missing=\['x', 'pair', 'count', 'mode'\] extra=\[\] given twice=\[\]"),
        (("x",), {"pair": 1, "count": 1, "mode": 1, "x": 2}, r"given twice=\['x'\]"),
        ((), {"x": 1, "pair": 1, "count": 1, "mode": 1, "z": 2}, r"extra=\['z'\]"),
        ((1, 2, 3, 4, 5), {"mode": 1}, r"extra=\['2 positional'\]"),
    ],
)
def test_missing_extra_and_repeated_arguments_are_listed(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ArgumentError, match=message):
        SIGNATURE.leaves(args, kwargs)


def test_ranges_include_both_ends() -> None:
    assert [Range(1, 3).holds(n) for n in range(5)] == [False, True, True, True, False]
    assert Range(1, None).holds(10**18)


# Sizes.


@pytest.mark.parametrize(
    ("dim", "size"),
    [
        (7, 7),
        ("a", 10),
        ("2*a + b", 23),
        ("a // b", 3),
        ("(a - 1) % 4", 1),
        ("-a + 12", 2),
        ("a**2", 100),
        ("Max(a, b, 5)", 10),
        ("Min(a, b)", 3),
        ("FloorDiv(a, b)", 3),
        ("CeilDiv(a, b)", 4),
        ("Mod(a, b)", 1),
        ("a + c", None),
    ],
)
def test_size_expressions_are_evaluated(dim: dims.Dim, size: int | None) -> None:
    assert dims.evaluate(dim, {"a": 10, "b": 3}) == size


@pytest.mark.parametrize(
    "text", ["a +", "f(a)", "a if b else c", "__import__('os')", "a.b", "1 < a < 3"]
)
def test_invalid_size_expressions_are_rejected(text: str) -> None:
    with pytest.raises(errors.ArtifactError, match="size expression"):
        dims.evaluate(text, {"a": 1})


@pytest.mark.parametrize(
    ("dim", "size", "expected", "bound"),
    [
        ("n", 5, 5, 5),
        ("2*n", 6, 6, 3),
        ("2*n", 7, None, None),
        ("2*n + 1", 7, 7, 3),
        ("10 - n", 4, 4, 6),
        ("n // 2", 4, 4, None),
        ("n*n", 9, 9, None),
        ("4*n // 2", 8, 8, 4),
        ("7 - (2*n + 3)", 0, 0, 2),
        ("n + 7 % n", 4, 4, None),
        ("Max(n, 2)", 9, 9, None),
        ("TruncToInt(1.5*ToFloat(n))", 3, 3, None),
        ("0*n + 3", 3, 3, None),
        ("n + m", 9, 9, None),
    ],
)
def test_size_expressions_are_solved_for_one_symbol(
    dim: str, size: int, expected: int | None, bound: int | None
) -> None:
    symbols: dict[str, int] = {}
    assert dims.match(dim, size, symbols) == expected
    assert symbols.get("n") == bound


def test_size_expressions_are_checked_against_known_symbols() -> None:
    symbols = {"n": 4}
    assert dims.match("2*n", 7, symbols) == 8
    assert dims.match("n + m", 9, symbols) == 9
    assert symbols == {"n": 4, "m": 5}


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        ("Eq(Mod(a, 2), 0)", True),
        ("Ne((a//5), 2)", False),
        ("((a//2)) >= 5", True),
        ("a <= 3*b", False),
        ("(a > 3) & (b < 3)", False),
        ("(a > 3) | (b < 3)", True),
        ("a == 10", True),
        ("a < c", True),
    ],
)
def test_conditions_on_sizes_are_evaluated(condition: str, held: bool) -> None:
    assert dims.holds(condition, {"a": 10, "b": 3}) is held


def test_function_names_are_not_symbols() -> None:
    assert dims.names("Max(a, 2*b)") == ["a", "b"]
    assert dims.names(3) == []


# The whole way: through a model, a file and back.


class Nest(nn.Module):
    def forward(self, box: Any, tree: dict[str, Any]) -> dict[Any, Any]:
        low, high = box.low, tree["pair"][1]
        return {
            "box": type(box)(low + 1, None, None),
            "list": [low * 2, (high, OrderedDict(z=low, a=high))],
            7: None,
        }


@pytest.fixture(scope="module")
def nest_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.export.register_dataclass(Box, serialized_type_name="tests.Box")
    path = tmp_path_factory.mktemp("nest") / "nest.turbine"
    turbine.aot.export(Nest(), args=nest_arguments()).compile(path)
    return path


def nest_arguments() -> tuple[Any, ...]:
    ones = torch.ones(2)
    return Box(ones, None, None), {"pair": [ones, 2 * ones], "unused": 3 * ones}


def test_nested_arguments_round_trip_through_a_file(nest_file: Path) -> None:
    expected = Nest()(*nest_arguments())
    found = turbine.load(nest_file)(*nest_arguments())
    assert type(found["box"]) is Box
    assert_alike(found, expected, 0)
    assert list(found["list"][1][1]) == ["z", "a"]


def test_a_field_exported_as_none_rejects_a_tensor(nest_file: Path) -> None:
    box, tree = nest_arguments()
    with pytest.raises(errors.ArgumentError, match=r"box has the wrong keys.*extra=\['high'\]"):
        turbine.load(nest_file)(replace(box, high=torch.ones(2)), tree)


def test_a_result_without_its_class_is_a_dict(
    nest_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules[__name__], "Box")
    tree = nest_arguments_without_classes()
    found = turbine.load(nest_file)(*tree)
    assert type(found["box"]) is pytree.Record
    assert torch.equal(found["box"]["low"], torch.full((2,), 2.0))


def nest_arguments_without_classes() -> tuple[Any, ...]:
    ones = torch.ones(2)
    return {"low": ones}, {"pair": (ones, 2 * ones), "unused": 3 * ones}


class Pairs(nn.Module):
    def forward(self, point: Point) -> Point:
        return Point(point.y + 1, point.x)


def test_namedtuples_are_arguments_and_results() -> None:
    point = Point(torch.zeros(2), torch.ones(2))
    found = turbine.aot.export(Pairs(), args=(point,)).compile()(point)
    assert type(found) is Point
    assert_alike(found, Pairs()(point), 0)
