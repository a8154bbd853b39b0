"""Write MLIR functions of memrefs, loops and vectors as text.

Text takes a microsecond for each op, builders ten times as long. Static sizes are Python ints, and
arithmetic on them is folded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Value:
    """An SSA value: its name, its element type and its vector length; 0 for a scalar."""

    name: str
    element: str
    lanes: int = 0

    def __str__(self) -> str:
        return self.name

    @cached_property
    def type(self) -> str:
        """The MLIR type."""
        return vector_type(self.element, self.lanes)


def vector_type(element: str, lanes: int) -> str:
    """The type of a vector, or of a scalar for 0 lanes."""
    return f"vector<{lanes}x{element}>" if lanes else element


def mangle(name: str) -> str:
    """Convert a user's name to an MLIR identifier."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter == "_") else f"${ord(letter):x}"
        for letter in name
    )


# A size or an offset: a static one, or a value of type index.
Index = int | Value


@dataclass
class Loop:
    """An scf.for: its counter, its carried values and its results."""

    counter: Value
    carried: list[Value]
    results: list[Value]
    yielded: Sequence[Value] = ()


@dataclass
class Writer:
    """The lines of a function, and the constants at its top."""

    lines: list[str] = field(default_factory=list)
    count: int = 0
    depth: int = 0
    constants: dict[tuple[str, str], Value] = field(default_factory=dict)
    top: list[str] = field(default_factory=list)

    # Lines

    def line(self, text: str) -> None:
        """Write an op without results."""
        self.lines.append(f"{'  ' * self.depth}{text}")

    def emit(self, text: str, element: str, lanes: int = 0) -> Value:
        """Write an op with one result."""
        value = self.fresh(element, lanes)
        self.line(f"{value} = {text}")
        return value

    def fresh(self, element: str, lanes: int = 0) -> Value:
        """A value with a new name."""
        self.count += 1
        return Value(f"%{self.count}", element, lanes)

    # Constants

    def constant(self, number: bool | int | float, element: str, lanes: int = 0) -> Value:
        """A constant, defined once at the top; a vector for lanes."""
        literal = _literal(number, element)
        if lanes:
            literal = f"dense<{literal}>"
        return self._at_top(literal, element, lanes)

    def _at_top(self, literal: str, element: str, lanes: int) -> Value:
        key = literal, vector_type(element, lanes)
        if key not in self.constants:
            value = Value(f"%c{len(self.constants)}", element, lanes)
            self.constants[key] = value
            typed = "" if value.type == "i1" else f" : {value.type}"  # implied by true and false
            self.top.append(f"{value} = arith.constant {literal}{typed}")
        return self.constants[key]

    def steps(self, element: str, lanes: int) -> Value:
        """The vector 0, 1, 2 ... of an integer type."""
        literal = ", ".join(map(str, range(lanes)))
        return self._at_top(f"dense<[{literal}]>", element, lanes)

    def index(self, number: Index) -> Value:
        """Convert a size to a value."""
        return number if isinstance(number, Value) else self.constant(number, "index")

    # Arithmetic on operands of one type

    def binary(self, op: str, x: Value, y: Value) -> Value:
        """Write a binary op: `w.binary("arith.addf", x, y)`."""
        return self.emit(f"{op} {x}, {y} : {x.type}", x.element, x.lanes)

    def unary(self, op: str, x: Value) -> Value:
        """Write a unary op: `w.unary("math.exp", x)`."""
        return self.emit(f"{op} {x} : {x.type}", x.element, x.lanes)

    def compare(self, op: str, predicate: str, x: Value, y: Value) -> Value:
        """Write a comparison: `w.compare("arith.cmpf", "olt", x, y)`."""
        return self.emit(f"{op} {predicate}, {x}, {y} : {x.type}", "i1", x.lanes)

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """x where the condition holds, else y."""
        shape = x.type if condition.lanes == 0 else f"{condition.type}, {x.type}"
        return self.emit(f"arith.select {condition}, {x}, {y} : {shape}", x.element, x.lanes)

    def convert(self, op: str, x: Value, element: str) -> Value:
        """Write a conversion: `w.convert("arith.extf", x, "f32")`."""
        to = vector_type(element, x.lanes)
        return self.emit(f"{op} {x} : {x.type} to {to}", element, x.lanes)

    def splat(self, x: Value, lanes: int) -> Value:
        """Broadcast a scalar to a vector."""
        if x.lanes == lanes:
            return x
        return self.emit(
            f"vector.broadcast {x} : {x.type} to {vector_type(x.element, lanes)}", x.element, lanes
        )

    # Arithmetic on sizes and offsets

    def add(self, x: Index, y: Index) -> Index:
        """x + y"""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if x == 0 or y == 0:
            return y if x == 0 else x
        return self.binary("arith.addi", self.index(x), self.index(y))

    def sub(self, x: Index, y: Index) -> Index:
        """x - y"""
        if isinstance(x, int) and isinstance(y, int):
            return x - y
        return x if y == 0 else self.binary("arith.subi", self.index(x), self.index(y))

    def mul(self, x: Index, y: Index) -> Index:
        """x * y"""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        if x == 0 or y == 0:
            return 0
        if x == 1 or y == 1:
            return y if x == 1 else x
        return self.binary("arith.muli", self.index(x), self.index(y))

    def floordiv(self, x: Index, y: Index) -> Index:
        """x // y, rounded down."""
        if isinstance(x, int) and isinstance(y, int):
            return x // y
        return x if y == 1 else self.binary("arith.floordivsi", self.index(x), self.index(y))

    def mod(self, x: Index, y: Index) -> Index:
        """x % y, with the sign of y."""
        return self.sub(x, self.mul(self.floordiv(x, y), y))

    def min(self, x: Index, y: Index) -> Index:
        """The smaller of two."""
        if isinstance(x, int) and isinstance(y, int):
            return min(x, y)
        return x if x == y else self.binary("arith.minsi", self.index(x), self.index(y))

    def max(self, x: Index, y: Index) -> Index:
        """The larger of two."""
        if isinstance(x, int) and isinstance(y, int):
            return max(x, y)
        return x if x == y else self.binary("arith.maxsi", self.index(x), self.index(y))

    # Regions

    @contextmanager
    def loop(
        self, start: Index, stop: Index, step: Index = 1, carried: Sequence[Value] = ()
    ) -> Iterator[Loop]:
        """Write a loop; in the `with`, set `loop.yielded` to the next carried values."""
        counter = self.fresh("index")
        inner = [self.fresh(value.element, value.lanes) for value in carried]
        results = [self.fresh(value.element, value.lanes) for value in carried]
        loop = Loop(counter, inner, results)
        head = f"scf.for {counter} = {self.index(start)} to {self.index(stop)} step "
        head += str(self.index(step))
        if carried:
            pairs = ", ".join(f"{i} = {c}" for i, c in zip(inner, carried, strict=True))
            types = ", ".join(value.type for value in carried)
            head = f"{', '.join(map(str, results))} = {head} iter_args({pairs}) -> ({types})"
        self.line(f"{head} {{")
        self.depth += 1
        yield loop
        self._yield(loop.yielded)
        self.depth -= 1
        self.line("}")

    @contextmanager
    def branch(self, condition: Value) -> Iterator[None]:
        """Write an scf.if without results."""
        self.line(f"scf.if {condition} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def _yield(self, values: Sequence[Value]) -> None:
        if values:
            types = ", ".join(value.type for value in values)
            self.line(f"scf.yield {', '.join(map(str, values))} : {types}")

    # Memory

    def load(self, memory: str, shape: str, at: Sequence[Index], element: str, lanes: int) -> Value:
        """Load an element of a memref, or a vector of contiguous ones."""
        place = ", ".join(str(self.index(i)) for i in at)
        if lanes:
            to = vector_type(element, lanes)
            return self.emit(f"vector.load {memory}[{place}] : {shape}, {to}", element, lanes)
        return self.emit(f"memref.load {memory}[{place}] : {shape}", element)

    def store(self, value: Value, memory: str, shape: str, at: Sequence[Index]) -> None:
        """Store an element or a vector."""
        place = ", ".join(str(self.index(i)) for i in at)
        if value.lanes:
            self.line(f"vector.store {value}, {memory}[{place}] : {shape}, {value.type}")
        else:
            self.line(f"memref.store {value}, {memory}[{place}] : {shape}")


def _literal(number: bool | int | float, element: str) -> str:
    if element == "i1":
        return "true" if number else "false"
    if not element.startswith(("f", "b")):
        return str(int(number))
    if element == "f32":
        return f"0x{struct.unpack('<I', _pack_single(float(number)))[0]:08X}"
    if element == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(number)))[0]:016X}"
    raise AssertionError(f"constants of {element} are converted from f32")


def _pack_single(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", float("inf") if number > 0 else float("-inf"))
