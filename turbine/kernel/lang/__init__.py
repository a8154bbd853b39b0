"""The kernel language: `import turbine.kernel.lang as tkl`.

Every op has a docstring with an example: statements of a kernel's body, or a kernel and a call.
The comment after an expression is its value, as `tkl.print` prints it.
"""

from turbine.kernel.lang.arithmetic import abs as abs
from turbine.kernel.lang.arithmetic import add as add
from turbine.kernel.lang.arithmetic import bitwise_and as bitwise_and
from turbine.kernel.lang.arithmetic import bitwise_not as bitwise_not
from turbine.kernel.lang.arithmetic import bitwise_or as bitwise_or
from turbine.kernel.lang.arithmetic import bitwise_xor as bitwise_xor
from turbine.kernel.lang.arithmetic import clamp as clamp
from turbine.kernel.lang.arithmetic import equal as equal
from turbine.kernel.lang.arithmetic import floordiv as floordiv
from turbine.kernel.lang.arithmetic import fma as fma
from turbine.kernel.lang.arithmetic import greater as greater
from turbine.kernel.lang.arithmetic import greater_equal as greater_equal
from turbine.kernel.lang.arithmetic import less as less
from turbine.kernel.lang.arithmetic import less_equal as less_equal
from turbine.kernel.lang.arithmetic import logical_and as logical_and
from turbine.kernel.lang.arithmetic import logical_not as logical_not
from turbine.kernel.lang.arithmetic import logical_or as logical_or
from turbine.kernel.lang.arithmetic import maximum as maximum
from turbine.kernel.lang.arithmetic import minimum as minimum
from turbine.kernel.lang.arithmetic import mod as mod
from turbine.kernel.lang.arithmetic import mul as mul
from turbine.kernel.lang.arithmetic import neg as neg
from turbine.kernel.lang.arithmetic import not_equal as not_equal
from turbine.kernel.lang.arithmetic import pow as pow
from turbine.kernel.lang.arithmetic import shift_left as shift_left
from turbine.kernel.lang.arithmetic import shift_right as shift_right
from turbine.kernel.lang.arithmetic import sub as sub
from turbine.kernel.lang.arithmetic import truediv as truediv
from turbine.kernel.lang.arithmetic import where as where
from turbine.kernel.lang.atomics import atomic_add as atomic_add
from turbine.kernel.lang.atomics import atomic_max as atomic_max
from turbine.kernel.lang.atomics import atomic_min as atomic_min
from turbine.kernel.lang.casting import bitcast as bitcast
from turbine.kernel.lang.casting import to_dtype as to_dtype
from turbine.kernel.lang.constants import constant as constant
from turbine.kernel.lang.control_flow import cond as cond
from turbine.kernel.lang.control_flow import for_loop as for_loop
from turbine.kernel.lang.control_flow import while_loop as while_loop
from turbine.kernel.lang.creation import arange as arange
from turbine.kernel.lang.creation import full as full
from turbine.kernel.lang.creation import iota as iota
from turbine.kernel.lang.creation import zeros as zeros
from turbine.kernel.lang.debugging import assert_ as assert_
from turbine.kernel.lang.debugging import breakpoint as breakpoint
from turbine.kernel.lang.debugging import is_debug as is_debug
from turbine.kernel.lang.debugging import print as print
from turbine.kernel.lang.functions import ceil as ceil
from turbine.kernel.lang.functions import cos as cos
from turbine.kernel.lang.functions import erf as erf
from turbine.kernel.lang.functions import exp as exp
from turbine.kernel.lang.functions import exp2 as exp2
from turbine.kernel.lang.functions import expm1 as expm1
from turbine.kernel.lang.functions import floor as floor
from turbine.kernel.lang.functions import log as log
from turbine.kernel.lang.functions import log1p as log1p
from turbine.kernel.lang.functions import log2 as log2
from turbine.kernel.lang.functions import round as round
from turbine.kernel.lang.functions import rsqrt as rsqrt
from turbine.kernel.lang.functions import sigmoid as sigmoid
from turbine.kernel.lang.functions import sin as sin
from turbine.kernel.lang.functions import sqrt as sqrt
from turbine.kernel.lang.functions import tanh as tanh
from turbine.kernel.lang.functions import trunc as trunc
from turbine.kernel.lang.grid import num_programs as num_programs
from turbine.kernel.lang.grid import program_id as program_id
from turbine.kernel.lang.memory import load as load
from turbine.kernel.lang.memory import store as store
from turbine.kernel.lang.memory_spaces import AddressSpace as AddressSpace
from turbine.kernel.lang.ordering import argsort as argsort
from turbine.kernel.lang.ordering import sort as sort
from turbine.kernel.lang.ordering import sort_with_indices as sort_with_indices
from turbine.kernel.lang.ordering import topk as topk
from turbine.kernel.lang.products import dot as dot
from turbine.kernel.lang.random import rand as rand
from turbine.kernel.lang.random import randint as randint
from turbine.kernel.lang.random import randn as randn
from turbine.kernel.lang.random import random_bits as random_bits
from turbine.kernel.lang.random import random_bits4 as random_bits4
from turbine.kernel.lang.reductions import all as all
from turbine.kernel.lang.reductions import any as any
from turbine.kernel.lang.reductions import argmax as argmax
from turbine.kernel.lang.reductions import argmin as argmin
from turbine.kernel.lang.reductions import max as max
from turbine.kernel.lang.reductions import min as min
from turbine.kernel.lang.reductions import prod as prod
from turbine.kernel.lang.reductions import sum as sum
from turbine.kernel.lang.scans import associative_scan as associative_scan
from turbine.kernel.lang.scans import cummax as cummax
from turbine.kernel.lang.scans import cummin as cummin
from turbine.kernel.lang.scans import cumprod as cumprod
from turbine.kernel.lang.scans import cumsum as cumsum
from turbine.kernel.lang.scans import reduce as reduce
from turbine.kernel.lang.shapes import broadcast as broadcast
from turbine.kernel.lang.shapes import broadcast_in_dim as broadcast_in_dim
from turbine.kernel.lang.shapes import broadcast_to as broadcast_to
from turbine.kernel.lang.shapes import concatenate as concatenate
from turbine.kernel.lang.shapes import expand_dims as expand_dims
from turbine.kernel.lang.shapes import reshape as reshape
from turbine.kernel.lang.shapes import slice_ as slice  # noqa: F401
from turbine.kernel.lang.shapes import squeeze as squeeze
from turbine.kernel.lang.shapes import transpose as transpose
from turbine.kernel.lang.symbols import Grid as Grid
from turbine.kernel.lang.symbols import InOutBuffer as InOutBuffer
from turbine.kernel.lang.symbols import InputBuffer as InputBuffer
from turbine.kernel.lang.symbols import KernelBuffer as KernelBuffer
from turbine.kernel.lang.symbols import OutputBuffer as OutputBuffer
from turbine.kernel.lang.symbols import TemporaryBuffer as TemporaryBuffer
from turbine.kernel.lang.symbols import cdiv as cdiv
from turbine.kernel.lang.symbols import sym as sym
from turbine.kernel.lang.symbols import symbols as symbols
from turbine.kernel.lang.symbols import types as types
from turbine.kernel.trace.tracer import IndexExpr as IndexExpr
from turbine.kernel.trace.tracer import IndexSymbol as IndexSymbol
from turbine.kernel.trace.tracer import Tile as _Tile
from turbine.kernel.trace.types import DTYPES as _DTYPES
from turbine.kernel.trace.types import UnsupportedType as _UnsupportedType

bool = _DTYPES["bool"]
i8, i16, i32, i64 = (_DTYPES[name] for name in ("i8", "i16", "i32", "i64"))
u8, u16, u32, u64 = (_DTYPES[name] for name in ("u8", "u16", "u32", "u64"))
f16, bf16, f32, f64 = (_DTYPES[name] for name in ("f16", "bf16", "f32", "f64"))
f8e5m2, f8e4m3fn = _DTYPES["f8e5m2"], _DTYPES["f8e4m3fn"]
f8e5m2fnuz, f8e4m3fnuz = _DTYPES["f8e5m2fnuz"], _DTYPES["f8e4m3fnuz"]
index = _DTYPES["index"]
# Names of iree-turbine.
Index, Vector = IndexExpr, _Tile
i4, f4e2m1fn = _UnsupportedType("i4"), _UnsupportedType("f4e2m1fn")
f6e2m3fn, f8e8m0fnu = _UnsupportedType("f6e2m3fn"), _UnsupportedType("f8e8m0fnu")
