"""Random kernels: a seed in, a program in TK that the interpreter runs out.

A program reads tiles of two matrices and two vectors, computes with them, and stores the results
in outputs that start with a number, so that lanes that are masked off can be compared too.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from turbine.fuzz.case import KERNEL, Case
from turbine.fuzz.program import Input, RandomProgram, Step
from turbine.fuzz.scope import NoChoice

Shape = tuple[int, ...]

_BLOCKS = ((4, 8), (3, 5), (8, 4), (1, 16), (4, 4), (2, 6), (16, 1))
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
_IMPORTS = """import torch
import turbine.kernel as tk
import turbine.kernel.lang as tkl

M, N, P, Q = tkl.symbols("M N P Q")"""
_HEAD = """@tk.gen.kernel(P, Q)
def f(
    x0: tkl.InputBuffer[M, N, tkl.f32],
    x1: tkl.InputBuffer[M, N, tkl.f32],
    x2: tkl.InputBuffer[N, tkl.f32],
    x3: tkl.InputBuffer[M, tkl.i64],
    x4: tkl.InputBuffer[P, Q, tkl.i64],
{}):
    p, q = tkl.program_id(0), tkl.program_id(1)
    i, j = p * {}, q * {}"""
# The element type of an output, and what it holds where no lane was stored.
_ELEMENTS = {"float": ("f32", "-7.0"), "int": ("i64", "-7"), "bool": ("bool", "True")}
_ATTEMPTS = 10
_MOST_LANES = 256


@dataclass(frozen=True)
class Tile:
    """The static shape of a tile, and the kind of its elements."""

    shape: Shape
    kind: str = "float"


@dataclass
class Tiles:
    """The tiles a random kernel has so far, with the source of choices."""

    choose: random.Random
    rows: int
    columns: int
    known: dict[str, Tile] = field(default_factory=dict)

    def pick(self, accept: Callable[[Tile], bool] = lambda _: True) -> str:
        """The name of a tile that is accepted, later ones more often."""
        names = [name for name, tile in self.known.items() if accept(tile)]
        if not names:
            raise NoChoice
        return self.choose.choices(names, range(1, len(names) + 1))[0]

    def pick_float(self, rank: int = 0) -> str:
        """A float tile with at least so many axes."""
        return self.pick(lambda tile: tile.kind == "float" and len(tile.shape) >= rank)


def random_kernel(seed: int) -> Case:
    """A case that the interpreter runs."""
    choose = random.Random(seed)
    while True:
        case = _attempt(choose, seed)
        if case is not None:
            return case


def _attempt(choose: random.Random, seed: int) -> Case | None:
    rows, columns = choose.choice(_BLOCKS)
    sizes = choose.choice(_SIZES), choose.choice(_SIZES)
    tiles = Tiles(choose, rows, columns)
    steps: list[Step] = []
    for step, tile in _loads(tiles):
        steps.append(step)
        tiles.known[step.result] = tile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(choose.choice((1, 2, 3, 4, 5, 6, 8))):
            found = _step(tiles, seed, sizes, steps)
            if found is None:
                break
            steps.append(found[0])
            tiles.known[found[0].result] = found[1]
    names = [step.result for step in steps if step.result.startswith("v")]
    if not names:
        return None
    results = tuple(dict.fromkeys([*choose.sample(names, min(len(names), 2)), names[-1]]))
    return Case(_program(tiles, seed, sizes, steps, results), KERNEL)


def _loads(tiles: Tiles) -> Iterator[tuple[Step, Tile]]:
    rows, columns = tiles.rows, tiles.columns
    both, other = (rows, columns), tiles.choose.choice(("", ", other=0", ", other=-2"))
    yield Step("a0", f"a0 = tkl.load(x0, (i, j), {both}{other})", ("x0",)), Tile(both)
    yield Step("a1", f"a1 = tkl.load(x1, (i, j), {both})", ("x1",)), Tile(both)
    yield Step("a2", f"a2 = tkl.load(x2, (j,), ({columns},))", ("x2",)), Tile((columns,))
    yield (
        Step("a3", f"a3 = tkl.load(x3, (i,), ({rows},))", ("x3",)),
        Tile((rows,), "int"),
    )


def _program(
    tiles: Tiles, seed: int, sizes: tuple[int, int], steps: list[Step], results: tuple[str, ...]
) -> RandomProgram:
    m, n = sizes
    inputs = (
        Input((m, n)),
        Input((m, n), layout="transposed"),
        Input((n,)),
        Input((m,), "int64", f"0:{m}"),
        Input((-(-m // tiles.rows), -(-n // tiles.columns)), "int64"),
    )
    frame = _Kernel(tiles.rows, tiles.columns, tuple(tiles.known.items()))
    return RandomProgram(seed, inputs, tuple(steps), results, frame).without_dead_steps()


@dataclass(frozen=True)
class _Kernel:
    """A kernel with an output for each result, shaped as its tile, for each program."""

    rows: int
    columns: int
    tiles: tuple[tuple[str, Tile], ...]
    imports: str = _IMPORTS

    def head(self, arguments: Sequence[str], results: Sequence[str]) -> str:
        """The decorator, the signature and where the blocks start."""
        outputs = [self._output(k, name) for k, name in enumerate(results)]
        return _HEAD.format("".join(outputs), self.rows, self.columns)

    def _output(self, index: int, name: str) -> str:
        tile = dict(self.tiles)[name]
        sizes = ", ".join(map(str, ("P", "Q", *tile.shape)))
        element, fill = _ELEMENTS[tile.kind]
        return f"    y{index}: tkl.OutputBuffer[{sizes}, tkl.{element}].filled({fill}),\n"

    def tail(self, results: Sequence[str]) -> Sequence[str]:
        """A store of each result."""
        return [self._store(k, name) for k, name in enumerate(results)]

    def _store(self, index: int, name: str) -> str:
        shape = dict(self.tiles)[name].shape
        start = ", ".join(("p", "q", *["0"] * len(shape)))
        return f"tkl.store(y{index}, ({start}), tkl.reshape({name}, {(1, 1, *shape)}))"


def _step(
    tiles: Tiles, seed: int, sizes: tuple[int, int], steps: list[Step]
) -> tuple[Step, Tile] | None:
    """A step that the interpreter runs, with the tile it makes."""
    name = f"v{len(steps)}"
    for _ in range(_ATTEMPTS):
        family = tiles.choose.choices(list(FAMILIES), list(FAMILIES.values()))[0]
        try:
            text, tile = family(tiles)
        except NoChoice:
            continue
        if prod(tile.shape) > _MOST_LANES or len(tile.shape) > 4:
            continue
        code = f"{name} = {text}"
        reads = tuple(dict.fromkeys(re.findall(r"\b[avx]\d+\b", text)))
        step = Step(name, code, reads)
        trial = Tiles(tiles.choose, tiles.rows, tiles.columns, {**tiles.known, name: tile})
        if _is_valid(_program(trial, seed, sizes, [*steps, step], (name,))):
            return step, tile
    return None


def _is_valid(program: RandomProgram) -> bool:
    kernel: Any = program.function()
    try:
        kernel.interpret(*program.make_arguments())
    except Exception:  # the interpreter refuses it, so it is no step
        return False
    return True


_UNARY = (
    "-{}",
    "tkl.abs({})",
    "tkl.exp({} * 0.5)",
    "tkl.tanh({})",
    "tkl.sigmoid({})",
    "tkl.sqrt(tkl.abs({}))",
    "tkl.log1p(tkl.abs({}))",
    "tkl.floor({})",
    "tkl.round({})",
    "tkl.sin({})",
    "tkl.erf({})",
    "{} * {}",
    "{} + 1",
    "tkl.clamp({}, -1, 1)",
    "tkl.maximum({}, 0)",
    "{}.to(tkl.f16).to(tkl.f32)",
)


def _unary(t: Tiles) -> tuple[str, Tile]:
    x = t.pick_float()
    text = t.choose.choice(_UNARY)
    return text.format(x, x), t.known[x]


def _convert(t: Tiles) -> tuple[str, Tile]:
    x = t.pick()
    shape = t.known[x].shape
    options = [
        (f"{x}.to(tkl.i32).to(tkl.i64)", Tile(shape, "int")),
        (f"{x}.to(tkl.f32)", Tile(shape)),
    ]
    if t.known[x].kind == "float":
        options += [(f"{x} > 0", Tile(shape, "bool")), (f"{x} <= {x} * 2", Tile(shape, "bool"))]
    return t.choose.choice(options)


def _binary(t: Tiles) -> tuple[str, Tile]:
    x = t.pick_float()
    y = t.pick(
        lambda tile: tile.kind == "float" and _broadcast(t.known[x].shape, tile.shape) is not None
    )
    shape = _broadcast(t.known[x].shape, t.known[y].shape)
    assert shape is not None
    text = t.choose.choice(
        (
            "{} + {}",
            "{} - {}",
            "{} * {}",
            "{} / ({} + 9)",
            "tkl.maximum({}, {})",
            "tkl.minimum({}, {})",
            "tkl.where({0} > {1}, {0}, {1} * 2)",
        )
    )
    return text.format(x, y), Tile(shape)


def _broadcast(first: Shape, second: Shape) -> Shape | None:
    rank = max(len(first), len(second))
    one = (1,) * (rank - len(first)) + first
    two = (1,) * (rank - len(second)) + second
    if any(a != b and 1 not in (a, b) for a, b in zip(one, two, strict=True)):
        return None
    return tuple(max(a, b) if a and b else 0 for a, b in zip(one, two, strict=True))


def _view(t: Tiles) -> tuple[str, Tile]:
    x = t.pick(lambda tile: len(tile.shape) > 0)
    tile = t.known[x]
    shape, rank = tile.shape, len(tile.shape)
    axis = t.choose.randrange(rank)
    order = t.choose.sample(range(rank), rank)
    start = t.choose.randrange(shape[axis])
    stop = t.choose.randint(start + 1, shape[axis])
    cut = ", ".join([":"] * axis + [f"{start}:{stop}"] + [":"] * (rank - axis - 1))
    spot = ", ".join([":"] * axis + ["None"] + [":"] * (rank - axis))
    new = _refactor(t.choose, prod(shape))
    options: list[tuple[str, Shape]] = [
        (f"tkl.transpose({x}, {tuple(order)})", tuple(shape[k] for k in order)),
        (f"tkl.reshape({x}, {new})", new),
        (f"{x}[{cut}]", (*shape[:axis], stop - start, *shape[axis + 1 :])),
        (f"{x}[{spot}]", (*shape[:axis], 1, *shape[axis:])),
        (f"tkl.broadcast_to({x}, {(2, *shape)})", (2, *shape)),
        (
            f"tkl.concatenate([{x}, {x}], {axis})",
            (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]),
        ),
    ]
    text, result = t.choose.choice(options)
    return text, Tile(result, tile.kind)


def _refactor(choose: random.Random, count: int) -> Shape:
    """Sizes whose product is the count, ones among them."""
    sizes: list[int] = []
    while count > 1:
        size = choose.choice([n for n in range(2, count + 1) if count % n == 0])
        sizes.append(size)
        count //= size
    for _ in range(choose.randint(0, 2)):
        sizes.insert(choose.randint(0, len(sizes)), 1)
    return tuple(sizes)


def _reduce(t: Tiles) -> tuple[str, Tile]:
    x = t.pick(lambda tile: len(tile.shape) > 0 and tile.kind == "float")
    shape = t.known[x].shape
    axis, keep = t.choose.randrange(len(shape)), t.choose.random() < 0.4
    left = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
    name = t.choose.choice(("sum", "max", "min", "prod", "argmax", "argmin"))
    kind = "int" if name.startswith("arg") else "float"
    return f"tkl.{name}({x}, axis={axis}, keepdims={keep})", Tile(left, kind)


def _scan(t: Tiles) -> tuple[str, Tile]:
    x = t.pick_float(1)
    shape = t.known[x].shape
    name = t.choose.choice(("cumsum", "cummax", "cummin", "sort"))
    return f"tkl.{name}({x}, axis={t.choose.randrange(len(shape))})", t.known[x]


def _multiply(t: Tiles) -> tuple[str, Tile]:
    x = t.pick(lambda tile: len(tile.shape) == 2 and tile.kind == "float")
    depth = t.known[x].shape[1]
    y = t.pick(
        lambda tile: len(tile.shape) == 2 and tile.kind == "float" and tile.shape[1] == depth
    )
    shape = (t.known[x].shape[0], t.known[y].shape[0])
    return f"tkl.dot({x}, tkl.transpose({y}))", Tile(shape)


def _gather(t: Tiles) -> tuple[str, Tile]:
    """Rows of x0 or elements of x2, at indices that lie inside, with and without masks."""
    rows, columns = t.rows, t.columns
    options = (
        (f"tkl.load(x0, (a3[:, None], j + tkl.arange({columns})[None, :]))", (rows, columns)),
        (f"tkl.load(x0, (i, j), ({rows}, {columns}), mask=a1 > 0)", (rows, columns)),
        (f"tkl.load(x0, (i, j), ({rows}, {columns}), mask=a1 > 0, other=1)", (rows, columns)),
        (f"tkl.load(x0, (i, j), ({rows}, {columns}), mask=(a3 > 1)[:, None])", (rows, columns)),
        (f"tkl.load(x2, (N - 1 - j - tkl.arange({columns}),), other=3)", (columns,)),
        (f"tkl.load(x0, (i + 1, j - 1), ({rows}, {columns}))", (rows, columns)),
        (f"tkl.load(x0, (i, 0), ({rows}, 1))", (rows, 1)),
        (f"tkl.load(x2, (j,), ({columns},), mask=a2 < 0.5)", (columns,)),
    )
    text, shape = t.choose.choice(options)
    return text, Tile(shape)


def _loop(t: Tiles) -> tuple[str, Tile]:
    """A loop over blocks of rows that carries a tile."""
    rows, columns = t.rows, t.columns
    shape = (rows, columns)
    start = t.choose.choice((f"tkl.zeros({shape}, tkl.f32)", "a0", "a1"))
    body = t.choose.choice(
        (
            "total + part",
            "tkl.maximum(total, part)",
            "total * 0.5 + part",
            "tkl.where(part > total, part, total - 1)",
        )
    )
    stop = t.choose.choice((f"M // {rows}", "2", "p + 1"))
    return (
        f"tkl.for_loop(0, {stop}, init_args=[{start}])(\n"
        f"    lambda k, total: (lambda part: {body})(tkl.load(x0, (k * {rows}, j), {shape}))\n)[0]",
        Tile(shape),
    )


FAMILIES: dict[Callable[[Tiles], tuple[str, Tile]], int] = {
    _unary: 3,
    _convert: 1,
    _binary: 4,
    _view: 6,
    _reduce: 3,
    _scan: 1,
    _multiply: 1,
    _gather: 4,
    _loop: 1,
}
