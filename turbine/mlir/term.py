"""Write formulas with Python operators; terms emit MLIR ops."""

from __future__ import annotations

from dataclasses import dataclass

from turbine.mlir.writer import Value, Writer


@dataclass(frozen=True)
class Format:
    """The layout of a float type, and limits of functions of it."""

    bits: str
    width: int
    fraction: int
    bias: int
    tiny: float
    # From the first, exp is at least `tiny`; from the second, it overflows.
    exp_limits: tuple[float, float]
    # From here, tanh and erf round to 1.
    tanh_limit: float
    erf_limit: float

    @property
    def one_and_half(self) -> float:
        """Added to a small number, it leaves the nearest integer in the low bits."""
        return 1.5 * 2.0**self.fraction


FORMATS = {
    "f32": Format("i32", 32, 23, 127, 2.0**-126, (-87.33654475, 88.72283935), 9.1, 4.0),
    "f64": Format(
        "i64", 64, 52, 1023, 2.0**-1022, (-708.3964185322641, 709.7827128933841), 19.1, 5.95
    ),
}


@dataclass(frozen=True)
class Term:
    """A value in a formula; Python numbers become constants of its type."""

    writer: Writer
    value: Value

    @property
    def format(self) -> Format:
        """The format of the element type."""
        return FORMATS[self.value.element]

    def like(self, other: Operand) -> Term:
        """Convert a number to a constant of this type."""
        if isinstance(other, Term):
            return other
        return self._of(self.writer.constant(other, self.value.element, self.value.lanes))

    def __add__(self, other: Operand) -> Term:
        return self._binary("add", other)

    def __sub__(self, other: Operand) -> Term:
        return self._binary("sub", other)

    def __mul__(self, other: Operand) -> Term:
        return self._binary("mul", other)

    def __truediv__(self, other: Operand) -> Term:
        return self._binary("div", other)

    def __and__(self, other: Operand) -> Term:
        return self._of(self.writer.binary("arith.andi", self.value, self.like(other).value))

    def __xor__(self, other: Operand) -> Term:
        return self._of(self.writer.binary("arith.xori", self.value, self.like(other).value))

    def __lshift__(self, other: int) -> Term:
        return self._of(self.writer.binary("arith.shli", self.value, self.like(other).value))

    def __rshift__(self, other: int) -> Term:
        return self._of(self.writer.binary("arith.shrsi", self.value, self.like(other).value))

    def fma(self, factor: Operand, addend: Operand) -> Term:
        """self * factor + addend, rounded once."""
        operands = f"{self.value}, {self.like(factor).value}, {self.like(addend).value}"
        element, lanes = self.value.element, self.value.lanes
        return self._of(
            self.writer.emit(f"math.fma {operands} : {self.value.type}", element, lanes)
        )

    def polynomial(self, coefficients: tuple[float, ...]) -> Term:
        """Evaluate a polynomial, highest power first; Horner's scheme over pairs."""
        square, low, high = self * self, coefficients[::-1][0::2], coefficients[::-1][1::2]
        pairs = [self.fma(second, first) for first, second in zip(low, high, strict=False)]
        value = pairs.pop() if len(low) == len(high) else self.like(low[-1])
        for pair in reversed(pairs):
            value = value.fma(square, pair)
        return value

    def call(self, op: str, *others: Operand) -> Term:
        """Emit an op of the math or arith dialect."""
        if not others:
            return self._of(self.writer.unary(op, self.value))
        return self._of(self.writer.binary(op, self.value, self.like(others[0]).value))

    def abs(self) -> Term:
        """The absolute value."""
        return self.call("math.absf")

    def signed_as(self, other: Term) -> Term:
        """The absolute value with the sign of another term."""
        return self.call("math.copysign", other)

    def is_(self, predicate: str, other: Operand) -> Term:
        """Compare with a predicate of arith.cmpf or arith.cmpi."""
        op = "arith.cmpf" if self._is_float else "arith.cmpi"
        return self._of(self.writer.compare(op, predicate, self.value, self.like(other).value))

    def where(self, condition: Term, otherwise: Operand) -> Term:
        """Select this term where a condition holds, else another."""
        other = self.like(otherwise).value
        return self._of(self.writer.select(condition.value, self.value, other))

    def bits(self) -> Term:
        """The bits of a float as an integer."""
        return self._of(self.writer.convert("arith.bitcast", self.value, self.format.bits))

    def as_float(self, element: str) -> Term:
        """The float with these bits."""
        return self._of(self.writer.convert("arith.bitcast", self.value, element))

    def to(self, op: str, element: str) -> Term:
        """Convert to another element type."""
        if self.value.element == element:
            return self
        return self._of(self.writer.convert(op, self.value, element))

    @property
    def _is_float(self) -> bool:
        return self.value.element in FORMATS

    def _binary(self, name: str, other: Operand) -> Term:
        return self.call(f"arith.{name}{'f' if self._is_float else 'i'}", other)

    def _of(self, value: Value) -> Term:
        return Term(self.writer, value)


Operand = Term | float
