"""Values of a procedure while it is traced: tensors and numbers known only at run time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from turbine import dtypes, errors
from turbine.aot import tracing
from turbine.aot.abstract import AbstractScalar
from turbine.capture.program import Weight
from turbine.dtypes import Dtype, Scalar
from turbine.mlir import constants, flow, scalars
from turbine.mlir.ir import Type, Value

INDEX = dtypes.SCALARS["index"]
INT64 = dtypes.SCALARS["int64"]
FLOAT64 = dtypes.SCALARS["float64"]
BOOL = dtypes.SCALARS["bool"]
_RANK = {name: place for place, name in enumerate(dtypes.SCALARS)}

# A number of Python's, or one known only at run time.
Number = Any


class IrScalar:
    """A number that is known only at run time. Arithmetic and comparisons give more of them."""

    __hash__ = None  # type: ignore[assignment]  # == gives a value of the program

    def __init__(
        self, value: Value, scalar: Scalar, store: Callable[[Any], None] | None = None
    ) -> None:
        self.value = value
        self.scalar = scalar
        self._store = store

    @property
    def dtype(self) -> str:
        """Its kind: "index", "int32", "int64", "float32", "float64" or "bool"."""
        return self.scalar.name

    def __repr__(self) -> str:
        return f"<IrScalar {self.scalar.name}>"

    def set(self, value: Number) -> None:
        """Store into the global that this was read from."""
        if self._store is None:
            raise errors.ProcedureError(
                f"a {self.scalar.name} that is no global cannot be set", where=tracing.line()
            )
        self._store(value)

    def to(self, kind: AbstractScalar) -> IrScalar:
        """The same number as another kind; a float loses its fraction on the way to an int."""
        value = scalars.cast(self.value, self.scalar, kind.scalar, tracing.here())
        return IrScalar(value, kind.scalar)

    def __add__(self, other: Number) -> IrScalar:
        return compute("add", self, other)

    def __radd__(self, other: Number) -> IrScalar:
        return compute("add", other, self)

    def __sub__(self, other: Number) -> IrScalar:
        return compute("sub", self, other)

    def __rsub__(self, other: Number) -> IrScalar:
        return compute("sub", other, self)

    def __mul__(self, other: Number) -> IrScalar:
        return compute("mul", self, other)

    def __rmul__(self, other: Number) -> IrScalar:
        return compute("mul", other, self)

    def __truediv__(self, other: Number) -> IrScalar:
        return true_divide(self, other)

    def __rtruediv__(self, other: Number) -> IrScalar:
        return true_divide(other, self)

    def __floordiv__(self, other: Number) -> IrScalar:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Number) -> IrScalar:
        return floor_divide(other, self)

    def __mod__(self, other: Number) -> IrScalar:
        return remainder(self, other)

    def __rmod__(self, other: Number) -> IrScalar:
        return remainder(other, self)

    def __neg__(self) -> IrScalar:
        # Not 0 - x, which loses the sign of a zero.
        return compute("mul", self, -1)

    def __and__(self, other: Number) -> IrScalar:
        return compute("and", self, other)

    def __or__(self, other: Number) -> IrScalar:
        return compute("or", self, other)

    def __eq__(self, other: object) -> IrScalar:  # type: ignore[override]
        return compare("eq", self, other)

    def __ne__(self, other: object) -> IrScalar:  # type: ignore[override]
        return compare("ne", self, other)

    def __lt__(self, other: Number) -> IrScalar:
        return compare("lt", self, other)

    def __le__(self, other: Number) -> IrScalar:
        return compare("le", self, other)

    def __gt__(self, other: Number) -> IrScalar:
        return compare("gt", self, other)

    def __ge__(self, other: Number) -> IrScalar:
        return compare("ge", self, other)

    def __bool__(self) -> NoReturn:
        raise _unknown(self.scalar, "decide an if, a while, an `and` or an `or`")

    def __int__(self) -> NoReturn:
        raise _unknown(self.scalar, "become a Python int")

    def __index__(self) -> NoReturn:
        raise _unknown(self.scalar, "become a Python int")

    def __float__(self) -> NoReturn:
        raise _unknown(self.scalar, "become a Python float")


def _unknown(scalar: Scalar, deed: str) -> errors.ProcedureError:
    return errors.ProcedureError(
        f"a {scalar.name} known only at run time cannot {deed}",
        where=tracing.line(),
        hint="compute with it, or decide inside a jittable with torch.where",
    )


def constant(number: bool | int | float, scalar: Scalar) -> IrScalar:
    """A number of Python's as one of the program's."""
    if scalar.python is int and not -(2 ** (scalar.bits - 1)) <= number < 2 ** (scalar.bits - 1):
        raise errors.ProcedureError(f"{number} is no {scalar.name}", where=tracing.line())
    return IrScalar(scalars.constant(number, scalar, tracing.here()), scalar)


def compute(name: str, left: Number, right: Number) -> IrScalar:
    """Two numbers by a row of `scalars.ARITHMETIC`."""
    one, two = _alike(left, right, name)
    value = scalars.compute(name, one.value, two.value, one.scalar, tracing.here())
    return IrScalar(value, one.scalar)


def compare(name: str, left: Number, right: Number) -> IrScalar:
    """Two numbers by a row of `scalars.COMPARISONS`."""
    one, two = _alike(left, right, name, at_least="bool")
    value = scalars.compare(name, one.value, two.value, one.scalar, tracing.here())
    return IrScalar(value, BOOL)


def true_divide(left: Number, right: Number) -> IrScalar:
    """A quotient, as a float: of ints as float64."""
    one, two = _alike(left, right, "/")
    if one.scalar.python is int:
        one, two = one.to(AbstractScalar(FLOAT64)), two.to(AbstractScalar(FLOAT64))
    value = scalars.compute("divide", one.value, two.value, one.scalar, tracing.here())
    return IrScalar(value, one.scalar)


def floor_divide(left: Number, right: Number) -> IrScalar:
    """A quotient rounded down, as Python does."""
    one, two = _alike(left, right, "//")
    location = tracing.here()
    if one.scalar.python is float:
        exact = scalars.compute("divide", one.value, two.value, one.scalar, location)
        return IrScalar(scalars.floor(exact, location), one.scalar)
    _check_divisor(two)
    quotient = compute_raw("divide", one, two)
    rest = compute_raw("remainder", one, two)
    lower = compute_raw("sub", quotient, constant(1, one.scalar))
    return _select(_differs_in_sign(rest, two), lower, quotient)


def remainder(left: Number, right: Number) -> IrScalar:
    """What a quotient rounded down leaves, with the divisor's sign."""
    one, two = _alike(left, right, "%")
    if one.scalar.python is int:
        _check_divisor(two)
    rest = compute_raw("remainder", one, two)
    return _select(_differs_in_sign(rest, two), compute_raw("add", rest, two), rest)


def compute_raw(name: str, left: IrScalar, right: IrScalar) -> IrScalar:
    """Two numbers of one kind, without any conversion."""
    value = scalars.compute(name, left.value, right.value, left.scalar, tracing.here())
    return IrScalar(value, left.scalar)


def _differs_in_sign(rest: IrScalar, divisor: IrScalar) -> IrScalar:
    signs = compute_raw("xor", rest < 0, divisor < 0)
    return compute_raw("and", rest != 0, signs)


def _select(condition: IrScalar, yes: IrScalar, no: IrScalar) -> IrScalar:
    value = scalars.select(condition.value, yes.value, no.value, tracing.here())
    return IrScalar(value, yes.scalar)


def _check_divisor(divisor: IrScalar) -> None:
    check(divisor != 0, "division by zero")


def check(condition: IrScalar, message: str) -> None:
    """Make a call fail, with the user's line, unless a condition holds."""
    flow.check(condition.value, f"{message} at {tracing.line()}", tracing.here())


def _alike(
    left: Number, right: Number, operation: str, at_least: str = "int32"
) -> tuple[IrScalar, IrScalar]:
    """Two numbers as numbers of one kind: the later one in `dtypes.SCALARS`."""
    kinds = [_kind(left, right, operation), _kind(right, left, operation)]
    if operation in ("and", "or"):
        at_least = "bool"
    name = max([*kinds, at_least], key=_RANK.__getitem__)
    if operation in ("and", "or") and dtypes.SCALARS[name].python is float:
        raise errors.ProcedureError(f"`{operation}` of a float", where=tracing.line())
    wanted = dtypes.SCALARS[name]
    return as_scalar(left, wanted), as_scalar(right, wanted)


def _kind(number: Number, other: Number, operation: str) -> str:
    """What a number of Python's counts as depends on what it is combined with."""
    if isinstance(number, IrScalar):
        return number.scalar.name
    if isinstance(number, bool):
        return "bool"
    beside = other.scalar if isinstance(other, IrScalar) else INT64
    if isinstance(number, int):
        return "int64" if beside.python is bool else beside.name
    if isinstance(number, float):
        return beside.name if beside.python is float else "float64"
    raise errors.ProcedureError(
        f"`{operation}` of a {beside.name} and a {type(number).__name__}", where=tracing.line()
    )


def as_scalar(number: Number, scalar: Scalar) -> IrScalar:
    """A number of Python's or of the program's as one kind."""
    if isinstance(number, IrScalar):
        return number.to(AbstractScalar(scalar))
    return constant(number, scalar)


class IrTensor:
    """A tensor that is known only at run time.

    Of `shape`, an int is a size that is known, a name stands for one that has this name in the
    signature, and None for any other one. `get_dim_value` gives sizes as numbers to compute with.
    """

    def __init__(
        self,
        value: Value | None,
        shape: tuple[int | str | None, ...],
        row: Dtype,
        store: Callable[[Any], None] | None = None,
        *,
        is_own: bool = False,
        weight: Weight | None = None,
    ) -> None:
        self._value = value
        self.weight = weight  # that it is for good; it has a value once that is asked for
        self.shape = shape
        self.row = row
        self.is_own = is_own or store is not None  # its memory is not a caller's
        self._store = store
        self._sizes: dict[int, IrScalar] = {}

    @property
    def value(self) -> Value:
        """The tensor in IR."""
        if self._value is None:
            assert self.weight is not None
            trace = tracing.required("a weight")
            self._value = trace.weights.load(self.weight, tracing.here())
        return self._value

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its elements."""
        return self.row.torch

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<IrTensor {self.text()}>"

    def text(self) -> str:
        """Its dtype and shape."""
        return type_text(self.row, self.shape)

    def __bool__(self) -> NoReturn:
        raise errors.ProcedureError(
            "a tensor known only at run time cannot decide an if or a while",
            where=tracing.line(),
            hint="decide inside a jittable with torch.where",
        )

    def set(self, value: Any) -> None:
        """Store into the global that this was read from."""
        if self._store is None:
            raise errors.ProcedureError(
                f"a {self.text()} that is no global cannot be set", where=tracing.line()
            )
        self._store(value)

    def get_dim_value(self, axis: int) -> IrScalar:
        """The size along an axis, as a number of the program."""
        place = axis + self.rank if axis < 0 else axis
        if not 0 <= place < self.rank:
            raise errors.ProcedureError(
                f"axis out of range: {axis=} rank={self.rank}", where=tracing.line()
            )
        if place not in self._sizes:
            self._sizes[place] = self._measure(place)
        return self._sizes[place]

    dim = get_dim_value

    def _measure(self, axis: int) -> IrScalar:
        size = self.shape[axis]
        if isinstance(size, int):
            return constant(size, INDEX)
        return IrScalar(flow.dim(self.value, axis, tracing.here()), INDEX)

    def size(self, axis: int) -> int | IrScalar:
        """The size along an axis: a plain int where it is known."""
        size = self.shape[axis]
        return size if isinstance(size, int) else self.get_dim_value(axis)

    def unknown_sizes(self) -> list[Value]:
        """The sizes that its type does not say."""
        return [
            self.get_dim_value(axis).value
            for axis, size in enumerate(self.shape)
            if not isinstance(size, int)
        ]

    def as_type(self, shape: tuple[int | str | None, ...]) -> IrTensor:
        """The same tensor with other sizes known, which have been checked."""
        value = flow.cast(self.value, tensor_type(shape, self.row), tracing.here())
        return IrTensor(value, shape, self.row, is_own=self.is_own)

    def become(self, other: IrTensor) -> None:
        """Take another value, as a tensor does that is written in place."""
        if self._store is not None:
            self._store(other)
        self._value, self.weight = other.value, None


def type_text(row: Dtype, shape: tuple[Any, ...]) -> str:
    """A dtype and a shape, "float32[?, 8]"."""
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return f"{row.name}[{sizes}]"


def tensor_type(shape: tuple[int | str | None, ...], row: Dtype) -> Type:
    """The IR type; sizes with names are known at run time."""
    return constants.tensor_type(without_names(shape), row)


def without_names(shape: tuple[int | str | None, ...]) -> tuple[int | None, ...]:
    """The sizes that are known, and None for those known only at run time."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def from_tensor(tensor: torch.Tensor) -> IrTensor:
    """A tensor that is at hand, as one of the program."""
    trace = tracing.required("a tensor")
    return from_weight(trace.weight_of(tensor, "constant"))


def from_weight(weight: Weight, store: Callable[[Any], None] | None = None) -> IrTensor:
    """A weight as it is now; one that is never written is loaded where it is first used."""
    shape, row = tuple(weight.tensor.shape), dtypes.of_torch(weight.tensor.dtype)
    if not weight.mutable:
        return IrTensor(None, shape, row, store, weight=weight)
    builder = tracing.required("a weight").weights
    return IrTensor(builder.load(weight, tracing.here()), shape, row, store)


def from_number(number: IrScalar) -> IrTensor:
    """A number as a tensor without axes; an index is an int64."""
    plain = number.to(AbstractScalar(INT64)) if number.scalar is INDEX else number
    value = flow.from_number(plain.value, tracing.here())
    return IrTensor(value, (), dtypes.named(plain.scalar.name))


def size_product(sizes: list[int | IrScalar]) -> Any:
    """The product of sizes: an int if all are."""
    return math.prod(sizes)
