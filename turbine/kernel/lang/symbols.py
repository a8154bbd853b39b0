"""Symbols for sizes, dtypes and buffers: `tkl.sym.M`, `tkl.types.T`, `tkl.InputBuffer[M, T]`."""

from __future__ import annotations

from functools import cache
from typing import Any

from turbine import algebra, errors
from turbine.dtypes import Dtype
from turbine.kernel.lang.memory_spaces import AddressSpace
from turbine.kernel.trace.tracer import IndexExpr, IndexSymbol, Tile, expr_of, user_line
from turbine.kernel.trace.types import USAGES, BufferType, DtypeSymbol, UnsupportedType


class Sym:
    """Size symbols by name: `tkl.sym.M` is the same symbol everywhere."""

    def __getattr__(self, name: str) -> IndexSymbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return _symbol(name)

    def __call__(self, name: str) -> IndexSymbol:
        """The size symbol of a name."""
        return _symbol(name)


class Types:
    """Dtype symbols by name: `T = tkl.types.T` is inferred from the arguments of a call."""

    def __getattr__(self, name: str) -> DtypeSymbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return DtypeSymbol(name)


@cache
def _symbol(name: str) -> IndexSymbol:
    return IndexSymbol(algebra.symbol(name))


sym = Sym()
types = Types()


def symbols(names: str) -> tuple[IndexSymbol, ...]:
    """Several size symbols at once; `tkl.sym.M` is one.

    Example::

        M, N = tkl.symbols("M N")
    """
    return tuple(map(_symbol, names.replace(",", " ").split()))


class BufferKind:
    """Builds buffer types: `InputBuffer[M, N, tkl.f32]`."""

    def __init__(self, usage: str) -> None:
        self.usage = usage

    def __getitem__(self, items: Any) -> BufferType:
        listed = items if isinstance(items, tuple) else (items,)
        *sizes, dtype = (item for item in listed if item is not AddressSpace.GLOBAL_MEMORY)
        if isinstance(dtype, UnsupportedType):
            raise errors.KernelError(
                f"{USAGES[self.usage]}[...] has dtype {dtype!r}, which kernels do not support",
                where=user_line(),
                hint="pass such elements as bytes, tkl.i8 or tkl.u8, and unpack them with shifts",
            )
        if not isinstance(dtype, (Dtype, DtypeSymbol)):
            raise errors.KernelError(
                f"{USAGES[self.usage]}[...] ends with {dtype!r}, which is not a dtype",
                where=user_line(),
                hint="write the sizes, then the dtype: InputBuffer[M, N, tkl.f32]",
            )
        for size in sizes:
            if isinstance(size, AddressSpace):
                raise errors.KernelError(
                    f"{USAGES[self.usage]}[...] is in {size}",
                    where=user_line(),
                    hint="arguments of a kernel are in global memory; a TemporaryBuffer belongs "
                    "to one program",
                )
            if not isinstance(size, (int, IndexExpr)) or isinstance(size, bool):
                raise errors.KernelError(
                    f"{USAGES[self.usage]}[...] has invalid size {size!r}",
                    where=user_line(),
                    hint="sizes are numbers and symbols, tkl.sym.M",
                )
        return BufferType(self.usage, tuple(map(expr_of, sizes)), dtype)

    def __repr__(self) -> str:
        return f"tkl.{USAGES[self.usage]}"


InputBuffer = BufferKind("input")
OutputBuffer = BufferKind("output")
InOutBuffer = BufferKind("inout")
TemporaryBuffer = BufferKind("temporary")
KernelBuffer = InOutBuffer


class GridKind:
    """Builds grids: `tkl.Grid[M, N]` is a tuple of sizes, for `kernel(*tkl.Grid[M, N])`."""

    def __getitem__(self, items: Any) -> tuple[Any, ...]:
        return items if isinstance(items, tuple) else (items,)


Grid = GridKind()


def cdiv(one: Any, other: Any) -> Any:
    """Quotient rounded up: the number of blocks that cover a size.

    Operands are integers, sizes or computed tiles of integers.

    Example::

        tkl.cdiv(10, 4)  # 3
        tkl.cdiv(tkl.arange(7, 10), 4)  # [2 2 3]
    """
    if isinstance(one, Tile) or isinstance(other, Tile):
        return one // other + (one % other != 0)
    return IndexExpr(algebra.ceiling(expr_of(one), expr_of(other)))
