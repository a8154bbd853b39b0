"""Sizes of a kernel are inferred from argument shapes, in any order of declaration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, permutations, product
from random import Random
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import errors
from turbine.algebra import Expr, Symbol, as_expr, quotient, slope, symbol
from turbine.kernel.program.signature import KernelSignature, Parameter
from turbine.kernel.program.size_inference import bind_sizes
from turbine.kernel.trace.types import DTYPES, BufferType

S, HK, GR, D = tkl.symbols("S HK GR D")
Q, K = tkl.InputBuffer[HK * GR, S, D, tkl.f32], tkl.InputBuffer[HK, S, D, tkl.f32]


@tk.gen.kernel(HK, GR)
def add_groups(q: Q, k: K, y: tkl.OutputBuffer[HK * GR, S, D, tkl.f32]) -> None:
    h, g = tkl.program_id(0), tkl.program_id(1)
    tile = tkl.load(q, (h * GR + g, 0, 0), (1, S, D)) + tkl.load(k, (h, 0, 0), (1, S, D))
    tkl.store(y, (h * GR + g, 0, 0), tile)


def in_pytorch(q: Tensor, k: Tensor) -> Tensor:
    return q + k.repeat_interleave(q.shape[0] // k.shape[0], 0)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_product_of_sizes_may_precede_its_factor(groups: int) -> None:
    q, k = torch.randn(2 * groups, 3, 5), torch.randn(2, 3, 5)
    torch.testing.assert_close(add_groups(q, k), in_pytorch(q, k))
    torch.testing.assert_close(add_groups.interpret(q, k), in_pytorch(q, k))


def test_products_of_sizes_are_inferred_in_dynamic_programs() -> None:
    class Model(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            result: Tensor = add_groups(q, k)
            return result

    q, k = torch.randn(8, 3, 5), torch.randn(2, 3, 5)
    heads = torch.export.Dim("heads", max=64)
    shapes = {"q": {0: heads * 4}, "k": {0: heads}}
    artifact = turbine.aot.export(Model(), args=(q, k), dynamic_shapes=shapes).compile()
    compiled = torch.compile(Model(), backend="turbine", fullgraph=True, dynamic=True)
    for heads_now in (2, 3):
        q, k = torch.randn(4 * heads_now, 3, 5), torch.randn(heads_now, 3, 5)
        torch.testing.assert_close(artifact(q, k), in_pytorch(q, k))
        torch.testing.assert_close(compiled(q, k), in_pytorch(q, k))


def test_errors_name_the_argument_the_axis_the_expression_and_the_value() -> None:
    q, k = torch.randn(9, 3, 5), torch.randn(2, 3, 5)
    wanted = r"GR\*HK cannot be 9, which is axis 0 of q \(with HK from axis 0 of k\)"
    with pytest.raises(errors.KernelError, match=wanted):
        add_groups(q, k)
    with pytest.raises(errors.KernelError, match="S is 3 from axis 1 of q and 4 from axis 1 of k"):
        add_groups(torch.randn(4, 3, 5), torch.randn(2, 4, 5))

    @tk.gen.kernel(HK)
    def open_(q: Q, y: tkl.OutputBuffer[HK, tkl.f32]) -> None:
        h = tkl.program_id(0)
        tkl.store(y, (h,), tkl.sum(tkl.load(q, (h, 0, 0), (1, S, D))))

    wanted = r"cannot infer GR, HK from axis 0 of q, which is GR\*HK = 8"
    with pytest.raises(errors.KernelError, match=wanted) as caught:
        open_(torch.randn(8, 3, 5))
    assert "using(GR=64, HK=64)" in str(caught.value.hint)
    assert open_.using(GR=4)(torch.ones(8, 3, 5)).tolist() == [15.0, 15.0]


def test_slope_is_the_factor_of_a_symbol() -> None:
    a, b = symbol("A"), symbol("B")
    (of,) = a.symbols
    assert slope(a * b * 3 + b, of) == b * 3
    assert slope(b, of) == as_expr(0)
    assert slope(a * a, of) is None
    assert slope(quotient(a, 2) + a, of) is None


# Against brute force.

NAMES = ("A", "B", "C")


def drawn_size(random: Random) -> Expr:
    one, other = (symbol(random.choice(NAMES)) for _ in range(2))
    return random.choice(
        [
            one,
            one,
            one * other,
            one + other,
            one * random.randint(2, 3),
            one * 2 + random.randint(0, 2),
            one * other + one,
            quotient(one, 2),
            as_expr(random.randint(1, 3)),
        ]
    )


def signature_of(sizes: Sequence[Expr]) -> KernelSignature:
    buffers = [
        Parameter(f"x{place}", BufferType("input", (size,), DTYPES["f32"]))
        for place, size in enumerate(sizes)
    ]
    return KernelSignature("fuzzed", tuple(buffers), None)


def inferred(sizes: Sequence[Expr], shape: Sequence[int]) -> dict[Symbol, int] | str:
    args = {f"x{place}": SimpleNamespace(shape=(n,), ndim=1) for place, n in enumerate(shape)}
    try:
        return bind_sizes(signature_of(sizes), args, {})
    except errors.KernelError as error:
        return "open" if "cannot infer" in error.fact else "wrong"


def solutions(sizes: Sequence[Expr], shape: Sequence[int]) -> list[dict[Symbol, int]]:
    symbols = sorted({s for size in sizes for s in size.symbols}, key=str)
    found = []
    text = " and ".join(f"{size} == {n}" for size, n in zip(sizes, shape, strict=True))
    holds = eval(f"lambda {', '.join(map(str, symbols))}: {text}")
    for values in product(range(24), repeat=len(symbols)):
        if holds(*values):
            found.append(dict(zip(symbols, values, strict=True)))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_inference_agrees_with_brute_force_in_every_order(seed: int) -> None:
    random = Random(seed)
    kinds = dict.fromkeys(("found", "open", "wrong"), 0)
    for _ in range(60):
        sizes = [drawn_size(random) for _ in range(random.randint(1, 4))]
        values = {Symbol(name): random.randint(0, 4) for name in NAMES}
        shape = [size.evaluate(values) for size in sizes]
        if random.random() < 0.4:
            shape[random.randrange(len(shape))] += random.choice((-1, 1))
        shape = [max(n, 0) for n in shape]
        rows = list(zip(sizes, shape, strict=True))
        results = [
            inferred(*zip(*order, strict=True)) for order in islice(permutations(rows), 0, None, 3)
        ]
        assert all(result == results[0] for result in results), (sizes, shape, results)
        result, right = results[0], solutions(sizes, shape)
        kinds[result if isinstance(result, str) else "found"] += 1
        if isinstance(result, dict):
            assert right == [result], (sizes, shape)
        elif result == "wrong":
            assert not right, (sizes, shape)
    assert min(kinds.values()) > 5, kinds
