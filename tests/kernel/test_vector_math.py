"""Math functions of kernels match PyTorch to a few ulp, and at special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from turbine.mlir.vector_math import FUNCTIONS
from turbine.mlir.writer import Value, Writer
from turbine.runtime import Launchable

REFERENCES: dict[str, Callable[..., Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "abs": torch.abs,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "pow": torch.pow,
}
DTYPES = {"f32": torch.float32, "f64": torch.float64}
# Units in the last place; PyTorch's own f64, which f64 is compared with, is off by up to one.
ALLOWED = {"f32": 2.0, "f64": 4.0}
LANES = {"f32": 16, "f64": 8}
SHORT = ("exp", "tanh", "sin", "log1p", "erf", "pow")
EDGES = (88.7228317, 88.73, -87.3, -87.4, 127.99999, 128.0, -126.0, -127.0)
EDGES_OF_DOUBLE = (709.782712893384, 709.79, -708.3, -709.0, 1023.99999, 1024.0, -1022.0, -1023.0)
SIZES = (0.0, 1.0, 0.5, 1.5, 2.5, 2.0, 3.0, 1e-30, 1e5, 1e30, math.inf)
SPECIAL = (*SIZES, *(-size for size in SIZES), math.nan, *EDGES, *EDGES_OF_DOUBLE)
CASES = [(name, element, LANES[element]) for name in REFERENCES for element in DTYPES]
CASES += [(name, element, 0) for name in SHORT for element in DTYPES]


@pytest.mark.sweep(10)
@pytest.mark.parametrize(("name", "element", "lanes"), CASES)
def test_functions_are_accurate_to_a_few_ulp(name: str, element: str, lanes: int) -> None:
    arguments = _arguments(name, element)
    got = _results()[f"{name}_{element}_{lanes}"]
    expected = REFERENCES[name](*(x.double() for x in arguments))
    errors = torch.where(_matters(name, arguments[0]), _units(got, expected), 0.0)
    worst = int(errors.argmax())
    assert errors[worst] <= ALLOWED[element], (
        f"{errors[worst]=} {[float(x[worst]) for x in arguments]} {got[worst]=} {expected[worst]=}"
    )


@pytest.mark.parametrize("name", [name for name in REFERENCES if name not in ("cos", "pow")])
def test_signs_of_zero_match_torch(name: str) -> None:
    (x,) = _arguments(name, "f32")
    zeros = x == 0.0
    got, expected = _results()[f"{name}_f32_16"][zeros], REFERENCES[name](x[zeros])
    assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("name", ["tanh", "erf"])
@pytest.mark.parametrize("element", DTYPES)
def test_functions_saturate_at_one(name: str, element: str) -> None:
    (x,) = _arguments(name, element)
    large = x.abs() > 20.0
    got = _results()[f"{name}_{element}_{LANES[element]}"]
    assert torch.equal(got[large], x[large].sign())


@pytest.mark.parametrize("name", ["exp", "exp2"])
@pytest.mark.parametrize("element", DTYPES)
def test_exponentials_saturate_at_zero_and_infinity(name: str, element: str) -> None:
    (x,) = _arguments(name, element)
    got = _results()[f"{name}_{element}_{LANES[element]}"]
    assert torch.equal(got[x < -1100.0], torch.zeros_like(got[x < -1100.0]))
    assert got[x > 1100.0].isposinf().all()


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("element", DTYPES)
def test_sines_of_huge_numbers_are_bounded(name: str, element: str) -> None:
    (x,) = _arguments(name, element)
    got = _results()[f"{name}_{element}_{LANES[element]}"]
    assert torch.equal(got.abs() <= 1.0, x.isfinite())


def test_every_function_is_tested() -> None:
    assert set(FUNCTIONS) == set(REFERENCES)


def test_exp2_of_integers_is_exact() -> None:
    (x,) = _arguments("exp2", "f32")
    whole = (x == x.round()) & (x.abs() < 126)
    assert torch.equal(_results()["exp2_f32_16"][whole], torch.exp2(x[whole].double()).float())


def _units(got: Tensor, expected: Tensor) -> Tensor:
    """Errors in ulp of the expected values; inf where only one is nan or infinite."""
    info = torch.finfo(got.dtype)
    rounded = expected.to(got.dtype)
    exponent = torch.frexp(rounded.abs().clamp(info.tiny, info.max))[1].double() - 1.0
    unit = torch.exp2(exponent) * info.eps
    distance = (got.double() - expected).abs() / unit
    # Subnormal results may be zero.
    distance = torch.where(rounded.abs() <= info.tiny * 1.001, got.abs() / info.tiny, distance)
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    special = ~rounded.isfinite() | ~got.isfinite()
    return torch.where(same, 0.0, torch.where(special, float("inf"), distance))


def _arguments(name: str, element: str) -> tuple[Tensor, ...]:
    if name == "pow":
        return _bases_and_exponents(DTYPES[element])
    return (_numbers(DTYPES[element]),)


def _matters(name: str, x: Tensor) -> Tensor:
    """Where a result must be right: f64 sines may be anything sane of huge numbers."""
    huge = (x.abs() > 1e12) & x.isfinite()
    is_limited = name in ("sin", "cos") and x.dtype == torch.float64
    return ~huge if is_limited else torch.full_like(huge, True)


@cache
def _numbers(dtype: torch.dtype) -> Tensor:
    """Numbers of all magnitudes, more near one, and those where functions change."""
    generator = torch.Generator().manual_seed(7)
    info = torch.finfo(dtype)
    random = torch.rand(4, 8192, generator=generator, dtype=torch.float64) * 2.0 - 1.0
    sizes = torch.exp2(random[0] * -math.log2(info.tiny))
    parts = (
        sizes * random[1].sign(),
        torch.exp2(random[1] * 20.0) * random[2].sign(),
        random[2] * 8.0,
        random[3] * (100.0 if dtype == torch.float32 else 750.0),
        torch.arange(-128.0, 128.0) / 2,
        torch.tensor((*SPECIAL, info.max, -info.max, info.tiny, -info.tiny), dtype=torch.float64),
    )
    x = torch.cat([part.double() for part in parts]).to(dtype)
    return torch.nn.functional.pad(x, (0, -len(x) % 16))


@cache
def _bases_and_exponents(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    random = torch.rand(3, 8192, generator=generator, dtype=torch.float64) * 2.0 - 1.0
    edges = torch.tensor(SPECIAL, dtype=torch.float64)
    bases = torch.cat([torch.exp2(random[0] * 9.0), random[1] * 9.0, edges.repeat(len(edges))])
    whole = (random[2] * 20.0).round()
    exponents = torch.cat([random[2] * 60.0, whole, edges.repeat_interleave(len(edges))])
    padding = (0, -len(bases) % 16)
    x, y = (torch.nn.functional.pad(part, padding).to(dtype) for part in (bases, exponents))
    return x, y


@cache
def _results() -> dict[str, Tensor]:
    """The results of all functions, computed by one program."""
    cases = {f"{name}_{element}_{lanes}": (name, element, lanes) for name, element, lanes in CASES}
    arguments = {key: _arguments(name, element) for key, (name, element, _) in cases.items()}
    program = Launchable.jit_compile(_module(cases, arguments))
    results = program(*(x for operands in arguments.values() for x in operands))
    return dict(zip(cases, results, strict=True))


def _module(
    cases: dict[str, tuple[str, str, int]], arguments: dict[str, tuple[Tensor, ...]]
) -> str:
    """One kernel for each case, and a function that calls them all."""
    kernels, calls, parameters, types = [], [], [], []
    for key, (name, element, lanes) in cases.items():
        tensor = f"tensor<{len(arguments[key][0])}x{element}>"
        operands = [f"%{key}_{i}" for i in range(len(arguments[key]))]
        kernels.append(_kernel(key, name, element, lanes, tensor.replace("tensor", "memref")))
        parameters += [f"{operand}: {tensor}" for operand in operands]
        types.append(tensor)
        calls.append(
            f"%{key} = flow.dispatch @{key}::@{key}({', '.join(operands)})"
            f" : ({', '.join([tensor] * len(operands))}) -> {tensor}"
        )
    values = ", ".join(f"%{key}" for key in cases)
    head = f"func.func @main({', '.join(parameters)}) -> ({', '.join(types)}) {{"
    body = "\n".join([*calls, f"return {values} : {', '.join(types)}"])
    return "\n".join([*kernels, head, body, "}"])


def _kernel(key: str, name: str, element: str, lanes: int, memory: str) -> str:
    """A loop over all elements of a buffer."""
    operands = ("%x", "%z") if name == "pow" else ("%x",)
    size = int(memory.removeprefix("memref<").split("x")[0])
    w = Writer()
    with w.loop(0, size, lanes or 1) as loop:
        values: list[Value] = [
            w.load(operand, memory, [loop.counter], element, lanes) for operand in operands
        ]
        w.store(FUNCTIONS[name](w, *values), "%y", memory, [loop.counter])
    bindings = [f"{name}_binding" for name in (*operands, "%y")]
    views = [
        f"{name} = stream.binding.subspan {name}_binding[%origin] : !stream.binding -> {memory}"
        for name in (*operands, "%y")
    ]
    return _EXECUTABLE.format(
        key=key,
        bindings=", ".join(f"{binding}: !stream.binding" for binding in bindings),
        body="\n".join([*views, *w.top, *w.lines]),
    )


_EXECUTABLE = """
stream.executable private @{key} {{
  stream.executable.export public @{key} workgroups() -> (index, index, index) {{
    %one = arith.constant 1 : index
    stream.return %one, %one, %one : index, index, index
  }}
  builtin.module {{
    func.func @{key}({bindings}) attributes {{
      translation_info = #iree_codegen.translation_info<
        pipeline = #iree_cpu.pipeline<BufferOpsTileAndVectorize>>
    }} {{
%origin = arith.constant 0 : index
{body}
      return
    }}
  }}
}}
"""
