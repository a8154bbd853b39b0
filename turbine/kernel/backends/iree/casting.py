"""Convert between dtypes."""

from __future__ import annotations

from turbine.dtypes import Dtype
from turbine.kernel.backends.iree import elements
from turbine.mlir.writer import Value, Writer


def emit_cast(w: Writer, x: Value, of: Dtype, to: Dtype) -> Value:
    """Convert a number to another dtype; floats are truncated to integers."""
    if to.kind == "bool":
        return _is_not_zero(w, x, of)
    if of.kind == "float":
        return _float_to_float(w, x, to) if to.kind == "float" else _float_to_int(w, x, to)
    if to.kind == "float":
        op = "arith.sitofp" if of.kind == "int" else "arith.uitofp"
        return elements.round_to(w, w.convert(op, x, elements.carrier(to)), to)
    return _int_to_int(w, x, of, to)


def _is_not_zero(w: Writer, x: Value, of: Dtype) -> Value:
    zero = w.constant(0, x.element, x.lanes)
    if of.kind == "float":
        return w.compare("arith.cmpf", "une", x, zero)
    return w.compare("arith.cmpi", "ne", x, zero)


def _float_to_float(w: Writer, x: Value, to: Dtype) -> Value:
    carrier = elements.carrier(to)
    if x.element != carrier:
        x = w.convert("arith.extf" if carrier == "f64" else "arith.truncf", x, carrier)
    return elements.round_to(w, x, to)


def _float_to_int(w: Writer, x: Value, to: Dtype) -> Value:
    wide = "i64" if to.bits == 64 or (to.kind == "uint" and to.bits == 32) else "i32"
    op = "arith.fptoui" if to.kind == "uint" and to.bits == 64 else "arith.fptosi"
    return _resize(w, w.convert(op, x, wide), to.bits, "arith.extsi")


def _int_to_int(w: Writer, x: Value, of: Dtype, to: Dtype) -> Value:
    return _resize(w, x, to.bits, "arith.extsi" if of.kind == "int" else "arith.extui")


def _resize(w: Writer, x: Value, bits: int, extend: str) -> Value:
    have = int(x.element[1:])
    if have == bits:
        return x
    return w.convert(extend if have < bits else "arith.trunci", x, f"i{bits}")


def bitcast(w: Writer, x: Value, of: Dtype, to: Dtype) -> Value:
    """Reinterpret the bits of a number as another dtype."""
    raw = elements.to_store(w, x, of)
    kept = elements.storage_type(to)
    bits = raw if raw.element == kept else w.convert("arith.bitcast", raw, kept)
    return elements.from_storage(w, bits, to)
