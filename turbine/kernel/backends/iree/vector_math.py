"""Functions of numbers."""

from __future__ import annotations

from collections.abc import Callable

from turbine.kernel.backends.iree.writer import Value, Writer


def _op(name: str) -> Callable[..., Value]:
    return lambda w, x: w.unary(f"math.{name}", x)


def _pow(w: Writer, x: Value, y: Value) -> Value:
    return w.binary("math.powf", x, y)


def _sigmoid(w: Writer, x: Value) -> Value:
    one = w.constant(1.0, x.element, x.lanes)
    return w.binary(
        "arith.divf",
        one,
        w.binary("arith.addf", one, w.unary("math.exp", w.unary("arith.negf", x))),
    )


FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{
        n: _op(n)
        for n in (
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log1p",
            "sqrt",
            "rsqrt",
            "tanh",
            "sin",
            "cos",
            "erf",
            "floor",
            "ceil",
            "trunc",
        )
    },
    "round": _op("roundeven"),
    "sigmoid": _sigmoid,
    "pow": _pow,
}
