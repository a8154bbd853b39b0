"""Register-tiled matmuls of partial tiles match torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from turbine.kernel.backends.iree import micro_kernel
from turbine.kernel.backends.iree.micro_kernel import Operand
from turbine.mlir.writer import Index, Value, Writer
from turbine.runtime import Launchable


@dataclass(frozen=True)
class Case:
    """A product's element, the bytes of a vector, its sizes, and each operand's contiguous axis."""

    element: str
    vector_bytes: int
    sizes: tuple[int, int, int]
    contiguous: tuple[int, int]
    in_place: bool = False

    def shapes(self) -> list[tuple[int, int]]:
        """Those of the operands in memory, where the contiguous axis is the last."""
        m, n, k = self.sizes
        pairs = zip(((m, k), (k, n)), self.contiguous, strict=True)
        return [shape if axis else shape[::-1] for shape, axis in pairs]


# None of the sizes is a multiple of the others' panels; wide vectors are split on narrow machines.
CASES = [
    Case("f32", 16, (20, 29, 13), (1, 0)),
    Case("f64", 16, (9, 7, 6), (1, 1)),
    Case("f32", 16, (9, 8, 7), (1, 1), in_place=True),
    Case("f32", 32, (3, 9, 4), (1, 1), in_place=True),
    Case("f32", 32, (7, 19, 18), (1, 0)),
    Case("i32", 64, (6, 20, 17), (0, 1)),
    Case("i64", 16, (1, 5, 3), (0, 0)),
]
DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64}
# What there is of each size: (of a size) to an extent.
EXTENTS: dict[str, Callable[[int], int]] = {
    "all": lambda size: size,
    "all but one": lambda size: size - 1,
    "half": lambda size: size // 2 + 1,
    "one": lambda size: 1,
    "none": lambda size: 0,
}


@pytest.fixture(scope="module")
def multiply() -> Launchable:
    """One program that computes the product of every case."""
    return Launchable.jit_compile(program())


def program() -> str:
    kernels = [kernel(i, case) for i, case in enumerate(CASES)]
    arguments, calls, results = [], [], []
    for i, case in enumerate(CASES):
        types = [f"tensor<{m}x{n}x{case.element}>" for m, n in case.shapes()]
        m, n, _ = case.sizes
        result = f"tensor<{m}x{n}x{case.element}>"
        arguments += [f"%a{i}: {types[0]}", f"%b{i}: {types[1]}"]
        calls.append(
            f"%c{i} = flow.dispatch @e{i}::@f{i}(%extents{i}, %a{i}, %b{i}) : "
            f"(tensor<3xi64>, {types[0]}, {types[1]}) -> {result}"
        )
        arguments.append(f"%extents{i}: tensor<3xi64>")
        results.append((f"%c{i}", result))
    names, kinds = (", ".join(column) for column in zip(*results, strict=True))
    return f"""
{"".join(kernels)}
func.func @main({", ".join(arguments)}) -> ({kinds}) {{
  {chr(10).join(calls)}
  return {names} : {kinds}
}}
"""


def kernel(number: int, case: Case) -> str:
    w = Writer()
    m, n, _ = case.sizes
    names = ("%a", "%b")
    kinds = [f"memref<{x}x{y}x{case.element}>" for x, y in case.shapes()]
    acc = f"memref<{m}x{n}x{case.element}>"
    kinds = ["memref<3xi64>", *kinds, acc]
    for place, (name, kind) in enumerate(zip(("%e", *names, "%acc"), kinds, strict=True)):
        zero = w.index(0)
        w.line(f"{name} = stream.binding.subspan %arg{place}[{zero}] : !stream.binding -> {kind}")
    with w.loop(0, m) as rows, w.loop(0, n) as columns:
        w.store(w.constant(1, case.element), "%acc", acc, [rows.counter, columns.counter])
    extents = extent(w, 0), extent(w, 1), extent(w, 2)
    micro_kernel.product(
        w,
        operand(case, 0, "%a", kinds[1]),
        operand(case, 1, "%b", kinds[2]),
        micro_kernel.sums_in("%acc", acc, case.element),
        extents=(m, n, extents[2]) if case.in_place else extents,
        sizes=case.sizes,
        element=case.element,
        vector_bytes=case.vector_bytes,
        allocate=lambda element, count: alloca(w, f"memref<{count}x{element}>"),
    )
    bindings = ", ".join(f"%arg{i}: !stream.binding" for i in range(4))
    body = "\n".join([*w.top, *w.lines])
    pipeline = "#iree_cpu.pipeline<BufferOpsTileAndVectorize>"
    return f"""
stream.executable private @e{number} {{
  stream.executable.export public @f{number} workgroups() -> (index, index, index) {{
    %one = arith.constant 1 : index
    stream.return %one, %one, %one : index, index, index
  }}
  builtin.module {{
    func.func @f{number}({bindings}) attributes {{
      translation_info = #iree_codegen.translation_info<pipeline = {pipeline}>
    }} {{
{body}
      return
    }}
  }}
}}
"""


def operand(case: Case, number: int, name: str, kind: str) -> Operand:
    contiguous = case.contiguous[number]

    def read(w: Writer, row: Index, column: Index, axis: int, lanes: int) -> Value:
        assert axis == contiguous or not lanes
        at = (row, column) if contiguous else (column, row)
        return w.load(name, kind, at, case.element, lanes)

    def prefetch(w: Writer, row: Index, column: Index) -> None:
        at = (row, column) if contiguous else (column, row)
        place = ", ".join(str(w.index(i)) for i in at)
        w.line(f"memref.prefetch {name}[{place}], read, locality<3>, data : {kind}")

    return Operand(read, contiguous, prefetch, case.in_place, case.in_place)


def extent(w: Writer, number: int) -> Value:
    value = w.load("%e", "memref<3xi64>", [number], "i64", 0)
    return w.emit(f"arith.index_cast {value} : i64 to index", "index")


def alloca(w: Writer, kind: str) -> str:
    return w.emit(f"memref.alloca() : {kind}", kind).name


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", EXTENTS)
def test_the_matmul_of_the_extents_is_accumulated(multiply: Launchable, name: str) -> None:
    extents = [extents_of(case, EXTENTS[name]) for case in CASES]
    arguments = [x for case, valid in zip(CASES, extents, strict=True) for x in inputs(case, valid)]
    expected = [
        total(case, a, b, valid)
        for case, a, b, valid in zip(CASES, arguments[::3], arguments[1::3], extents, strict=True)
    ]
    torch.testing.assert_close(multiply(*arguments), tuple(expected), rtol=0, atol=0)


def extents_of(case: Case, part: Callable[[int], int]) -> list[int]:
    """What is used in place is there except for some of the contraction."""
    m, n, k = case.sizes
    return [m, n, part(k)] if case.in_place else [part(m), part(n), part(k)]


def inputs(case: Case, extents: list[int]) -> list[Tensor]:
    """Small numbers, surrounded by values that must not be read."""
    random = torch.Generator().manual_seed(sum(case.sizes))
    dtype = DTYPES[case.element]
    (m, n, k), shapes = extents, case.shapes()
    tiles = []
    for shape, valid, axis in zip(shapes, ((m, k), (k, n)), case.contiguous, strict=True):
        tile = torch.full(shape, float("nan") if dtype.is_floating_point else 999, dtype=dtype)
        there = tile[: valid[1 - axis], : valid[axis]]
        there.copy_(torch.randint(-9, 9, there.shape, generator=random))
        tiles.append(tile)
    return [*tiles, torch.tensor(extents)]


def total(case: Case, a: Tensor, b: Tensor, extents: list[int]) -> Tensor:
    m, n, k = extents
    a, b = (x if axis else x.T for x, axis in zip((a, b), case.contiguous, strict=True))
    acc = torch.ones(case.sizes[:2], dtype=a.dtype)
    acc[:m, :n] += a[:m, :k] @ b[:k, :n]
    return acc
