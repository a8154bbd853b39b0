"""The signature of a compiled program: names, dtypes, sizes, ranges and nesting, as data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from turbine import dims, errors, pytree
from turbine.dims import Dim
from turbine.dtypes import Dtype
from turbine.pytree import Tree


@dataclass(frozen=True)
class Input:
    """One leaf of the arguments: a tensor, a number, a size, or a value fixed at export."""

    name: str
    kind: str  # "tensor", "scalar", "int" (which binds a symbol) or "constant"
    dtype: str = ""
    shape: tuple[Dim, ...] = ()
    value: Any = None  # a constant's value, or the symbol an int binds
    mutated: bool = False  # the program writes to this tensor


@dataclass(frozen=True)
class Output:
    """One leaf of the results: a tensor, a size made of input sizes, a scalar or a constant."""

    kind: str  # "tensor", "size", "scalar" or "constant"
    dtype: str = ""
    shape: tuple[Dim, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class Range:
    """The range of a symbol; a `maximum` of None means unbounded."""

    minimum: int
    maximum: int | None

    def holds(self, size: int) -> bool:
        """Whether a size lies in the range."""
        return self.minimum <= size and (self.maximum is None or size <= self.maximum)


@dataclass(frozen=True)
class Signature:
    """How one function is called. `in_tree` nests (args, kwargs) around the inputs' leaves."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    in_tree: Tree
    out_tree: Tree
    symbols: Mapping[str, Range]
    parameters: tuple[str, ...]  # names by which positional arguments are known, in order
    conditions: tuple[str, ...] = ()  # what the trace took for granted of sizes: "Eq(Mod(n, 2), 0)"

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` turns back into this signature."""
        return {
            "inputs": [asdict(item) for item in self.inputs],
            "outputs": [asdict(item) for item in self.outputs],
            "in_tree": self.in_tree.to_json(),
            "out_tree": self.out_tree.to_json(),
            "symbols": {name: asdict(item) for name, item in self.symbols.items()},
            "parameters": list(self.parameters),
            "conditions": list(self.conditions),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Signature:
        """The signature that `to_json` described."""
        return Signature(
            inputs=tuple(Input(**{**i, "shape": tuple(i["shape"])}) for i in data["inputs"]),
            outputs=tuple(Output(**{**o, "shape": tuple(o["shape"])}) for o in data["outputs"]),
            in_tree=Tree.from_json(data["in_tree"]),
            out_tree=Tree.from_json(data["out_tree"]),
            symbols={name: Range(**item) for name, item in data["symbols"].items()},
            parameters=tuple(data["parameters"]),
            conditions=tuple(data["conditions"]),
        )

    def text(self) -> str:
        """One line a person can read: (x: float32[batch, 4], k: fixed at 2) -> float32[batch]."""
        inputs = ", ".join(f"{i.name}: {_input_text(i)}" for i in self.inputs)
        outputs = pytree.to_text(self.out_tree, [_leaf_text(o) for o in self.outputs])
        return f"({inputs}) -> {outputs}"

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The argument leaves in order, whether passed by position or by name."""
        positional, keywords = self.in_tree.children
        args, kwargs = self._rearrange(args, kwargs)
        leaves: list[Any] = []
        for tree, name, value in zip(positional.children, self.parameters, args, strict=False):
            leaves += pytree.flatten(tree, value, name)
        for tree, key in zip(keywords.children, keywords.keys, strict=True):
            leaves += pytree.flatten(tree, kwargs[str(key)], str(key))
        return leaves

    def result_leaves(self, returned: Iterable[Any], sizes: Mapping[str, Any]) -> list[Any]:
        """The leaves of the results: returned values, and those computed from sizes."""
        values = iter(returned)
        return [
            next(values)
            if output.kind in ("tensor", "scalar")
            else output.value
            if output.kind == "constant"
            else dims.evaluate(output.value, sizes)
            for output in self.outputs
        ]

    def _rearrange(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Move arguments to the places (position or keyword) they had at export."""
        positional, keywords = self.in_tree.children
        count, keys = len(positional.children), [str(key) for key in keywords.keys]
        given = dict(zip(self.parameters, args, strict=False))
        twice = sorted(set(given) & set(kwargs))
        named = {**given, **kwargs}
        wanted = [*self.parameters[:count], *keys]
        missing = [name for name in wanted if name not in named]
        extra = sorted(set(named) - set(wanted))
        if len(args) > len(given):
            extra.append(f"{len(args) - len(given)} positional")
        if twice or missing or extra:
            raise errors.ArgumentError(
                f"wrong arguments: missing={missing} extra={extra} given twice={twice}",
                hint=f"the signature is {self.text()}",
            )
        return tuple(named[name] for name in wanted[:count]), {key: named[key] for key in keys}


@dataclass(frozen=True)
class Slot:
    """A tensor of a flat call: its dtype, the order of its axes, and whether it stays in place."""

    dtype: Dtype | None  # None: an int
    order: tuple[int, ...] | None = None
    fixed: bool = False


def state_functions(index: int) -> tuple[str, str]:
    """The functions of a program that read and set the value it keeps at an index."""
    return f"__get_state_{index}", f"__set_state_{index}"


# The functions of a program with state that return and set what its contexts share, and the module
# and function of the VM in whose presence a context computes nothing when it is created.
SHARED_FUNCTIONS = ("__get_shared", "__set_shared")
GIVEN, IS_GIVEN = "turbine_shared", "is_given"


@dataclass(frozen=True)
class StoredResult:
    """A result whose memory the caller passes, as an extra argument at the end."""

    index: int
    dtype: str
    shape: tuple[int, ...]


# The text of a function, in its reflection, that lists such results.
STORED_RESULTS = "turbine.stored_results"


def stored_results_text(results: Iterable[StoredResult]) -> str:
    """The results as text."""
    return json.dumps([asdict(result) for result in results])


def read_stored_results(text: str) -> list[StoredResult]:
    """The results that `stored_results_text` wrote."""
    return [StoredResult(**{**row, "shape": tuple(row["shape"])}) for row in json.loads(text)]


def _input_text(leaf: Input) -> str:
    # A value that the program was exported with, and takes no other.
    return f"fixed at {leaf.value!r}" if leaf.kind == "constant" else _leaf_text(leaf)


def _leaf_text(leaf: Input | Output) -> str:
    if leaf.kind == "tensor":
        return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
    if leaf.kind == "constant":
        return repr(leaf.value)
    if leaf.kind == "scalar":
        return leaf.dtype
    return f"{leaf.kind} {leaf.value}" if leaf.value is not None else leaf.kind
