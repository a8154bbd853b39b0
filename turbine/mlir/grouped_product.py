"""Products with packed weights: sizes and values in, IR that multiplies without unpacking out.

Note [Products by digits]
A weight is an integer of 4 or 8 bits times the scale of its group. To turn each one into a float
takes longer than to read it. So the other operand is turned into integers instead, once: each row
is divided by its largest magnitude and written in three digits of base 256. Digits times weights
are dot products of bytes, which are exact and for which CPUs have instructions; the sum of a
group is then scaled as a float. What is lost is what rounding a row to 23 bits of its largest
magnitude loses: as much as float32 itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from iree.compiler.dialects import arith
from iree.compiler.ir import (
    F32Type,
    FlatSymbolRefAttr,
    Location,
    Module,
    Operation,
    RankedTensorType,
    ShapedType,
    SymbolTable,
    Value,
)

# Bytes of weights multiplied at once.
_LANES = 16
# Past this many weights in a group, sums of bytes times bytes may not fit 32 bits.
_LONGEST = 1 << 18
# Outputs that one task computes.
_TILE = 32


@dataclass(frozen=True)
class Sizes:
    """[rows, columns] times a packed weight of [outputs, groups, group_size]."""

    rows: int | None  # None where known only at run time
    columns: int
    outputs: int
    groups: int
    group_size: int
    bits: int

    @property
    def name(self) -> str:
        """The function's name, unique for the sizes."""
        rows = "any" if self.rows is None else self.rows
        sizes = f"{rows}x{self.columns}x{self.outputs}_by_{self.group_size}"
        return f"grouped_product_{sizes}_of_{self.bits}_bits"

    @property
    def group_bytes(self) -> int:
        """Bytes in which the weights of a group lie."""
        return self.group_size * self.bits // 8

    @property
    def suits_digits(self) -> bool:
        """Whether groups fill vectors, and their sums fit."""
        return self.group_bytes % _LANES == 0 and self.group_size <= _LONGEST


def call(
    module: Module, sizes: Sizes, operands: Sequence[Value], factor: float, location: Location
) -> Value:
    """Multiply builtin tensors (x, packed values, scales) and a factor, at the insertion point.

    The function that does it is added to the module on its first use.
    """
    if sizes.name not in SymbolTable(module.operation):
        _define(module, sizes)
    rows = ShapedType.get_dynamic_size() if sizes.rows is None else sizes.rows
    result = RankedTensorType.get([rows, sizes.outputs], F32Type.get())
    scalar = arith.ConstantOp(F32Type.get(), factor, loc=location).result
    attributes = {"callee": FlatSymbolRefAttr.get(sizes.name)}
    return Operation.create(
        "util.call", [result], [*operands, scalar], attributes=attributes, loc=location
    ).result


def _define(module: Module, sizes: Sizes) -> None:
    parsed = Module.parse(text(sizes), module.context)
    for operation in list(parsed.body.operations):
        operation.detach_from_parent()
        module.body.append(operation)


def text(sizes: Sizes) -> str:
    """The function and what it needs, as a module."""
    values = {
        "name": sizes.name,
        "rows": "?" if sizes.rows is None else sizes.rows,
        "sized": "%rows" if sizes.rows is None else "",
        "count": "%rows" if sizes.rows is None else sizes.rows,
        "dynamic": "{%rows}" if sizes.rows is None else "",
        "columns": sizes.columns,
        "padding": sizes.groups * sizes.group_size - sizes.columns,
        "padded": sizes.groups * sizes.group_size,
        "outputs": sizes.outputs,
        "groups": sizes.groups,
        "size": sizes.group_size,
        "bytes": sizes.group_bytes,
        "lanes": _LANES,
        "tile": _TILE,
        "tiles": -(-sizes.outputs // _TILE),
    }
    unpacking = _UNPACKING[sizes.bits]
    values["multiply_vectors"] = Template(_multiply_vectors(unpacking)).substitute(values)
    template = _BY_DIGITS if sizes.suits_digits else _BY_FLOATS + _FLOAT_PRODUCT[sizes.bits]
    return Template(f"module {{{template}}}").substitute(values)


@dataclass(frozen=True)
class _Unpacking:
    """How a vector of bytes becomes vectors of weights, and where the operands of those begin."""

    text: str
    parts: tuple[tuple[str, str], ...]  # (vector of weights, position of what they multiply)


_BYTES = "vector<${lanes}xi8>"
_WORDS = "vector<${lanes}xi32>"
# The first half of a group lies in the low halves of its bytes.
_UNPACKING = {
    8: _Unpacking("", (("%packed", "%k"),)),
    4: _Unpacking(
        f"""
        %four = arith.constant dense<4> : {_BYTES}
        %raised = arith.shli %packed, %four : {_BYTES}
        %low = arith.shrsi %raised, %four : {_BYTES}
        %high = arith.shrsi %packed, %four : {_BYTES}
        %half = arith.addi %k, %bytes : index""",
        (("%low", "%k"), ("%high", "%half")),
    ),
}


def _multiply_vectors(unpacking: _Unpacking) -> str:
    """The body of the innermost loop: each digit's sums grow by digits times weights."""
    lines = [unpacking.text]
    sums = ["%sum0", "%sum1", "%sum2"]
    for part, (weights, position) in enumerate(unpacking.parts):
        lines.append(f"%w{part} = arith.extsi {weights} : {_BYTES} to {_WORDS}")
        for digit, before in enumerate(sums):
            this = f"{digit}_{part}"
            sums[digit] = f"%sum{this}"
            lines.append(
                f"""
        %x{this} = vector.transfer_read %x[%m, %g, %c{digit}, {position}], %no_byte
          {{in_bounds = [true]}} : memref<?x${{groups}}x3x${{size}}xi8>, {_BYTES}
        %wide{this} = arith.extsi %x{this} : {_BYTES} to {_WORDS}
        %product{this} = arith.muli %wide{this}, %w{part} : {_WORDS}
        %sum{this} = llvm.call_intrinsic "llvm.vector.partial.reduce.add"({before}, %product{this})
          : (vector<4xi32>, {_WORDS}) -> vector<4xi32>"""
            )
    lines.append(f"scf.yield {', '.join(sums)} : vector<4xi32>, vector<4xi32>, vector<4xi32>")
    return "\n".join(lines)


_BY_DIGITS = """
stream.executable private @${name}_kernel {
  stream.executable.export public @${name}_kernel workgroups() -> (index, index, index) {
    %tiles = arith.constant $tiles : index
    %one = arith.constant 1 : index
    stream.return %tiles, %one, %one : index, index, index
  }
  builtin.module {
    func.func @${name}_kernel(
        %rows: index, %x_bound: !stream.binding, %w_bound: !stream.binding,
        %s_bound: !stream.binding, %unit_bound: !stream.binding, %y_bound: !stream.binding)
        attributes {translation_info = #iree_codegen.translation_info<
          pipeline = #iree_cpu.pipeline<BufferOpsTileAndVectorize>>} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %lanes = arith.constant $lanes : index
      %tile = arith.constant $tile : index
      %outputs = arith.constant $outputs : index
      %groups = arith.constant $groups : index
      %bytes = arith.constant $bytes : index
      %no_byte = arith.constant 0 : i8
      %no_sum = arith.constant dense<0> : vector<4xi32>
      %no_total = arith.constant dense<0.0> : vector<4xf32>
      %base = arith.constant dense<256.0> : vector<4xf32>
      %x = stream.binding.subspan %x_bound[%c0]
        : !stream.binding -> memref<?x${groups}x3x${size}xi8>{%rows}
      %w = stream.binding.subspan %w_bound[%c0]
        : !stream.binding -> memref<${outputs}x${groups}x${bytes}xi8>
      %s = stream.binding.subspan %s_bound[%c0]
        : !stream.binding -> memref<${outputs}x${groups}xf16>
      %unit = stream.binding.subspan %unit_bound[%c0] : !stream.binding -> memref<?xf32>{%rows}
      %y = stream.binding.subspan %y_bound[%c0]
        : !stream.binding -> memref<?x${outputs}xf32>{%rows}
      %task = stream.dispatch.workgroup.id[0] : index
      %first = arith.muli %task, %tile : index
      %after = arith.addi %first, %tile : index
      %last = arith.minui %after, %outputs : index
      scf.for %n = %first to %last step %c1 {
        scf.for %m = %c0 to %rows step %c1 {
          %total = scf.for %g = %c0 to %groups step %c1
              iter_args(%total_before = %no_total) -> (vector<4xf32>) {
            %sums:3 = scf.for %k = %c0 to %bytes step %lanes
                iter_args(%sum0 = %no_sum, %sum1 = %no_sum, %sum2 = %no_sum)
                -> (vector<4xi32>, vector<4xi32>, vector<4xi32>) {
              %packed = vector.transfer_read %w[%n, %g, %k], %no_byte {in_bounds = [true]}
                : memref<${outputs}x${groups}x${bytes}xi8>, vector<${lanes}xi8>
$multiply_vectors
            }
            %float0 = arith.sitofp %sums#0 : vector<4xi32> to vector<4xf32>
            %float1 = arith.sitofp %sums#1 : vector<4xi32> to vector<4xf32>
            %float2 = arith.sitofp %sums#2 : vector<4xi32> to vector<4xf32>
            %high = math.fma %float0, %base, %float1 : vector<4xf32>
            %sum = math.fma %high, %base, %float2 : vector<4xf32>
            %stored_scale = memref.load %s[%n, %g] : memref<${outputs}x${groups}xf16>
            %scale = arith.extf %stored_scale : f16 to f32
            %scales = vector.broadcast %scale : f32 to vector<4xf32>
            %total_after = math.fma %sum, %scales, %total_before : vector<4xf32>
            scf.yield %total_after : vector<4xf32>
          }
          %whole = vector.reduction <add>, %total : vector<4xf32> into f32
          %one_unit = memref.load %unit[%m] : memref<?xf32>
          %result = arith.mulf %whole, %one_unit : f32
          memref.store %result, %y[%m, %n] : memref<?x${outputs}xf32>
        }
      }
      return
    }
  }
}
util.func private @$name(
    %x: tensor<${rows}x${columns}xf32>, %w: tensor<${outputs}x${groups}x${bytes}xi8>,
    %s: tensor<${outputs}x${groups}xf16>, %factor: f32) -> tensor<${rows}x${outputs}xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %rows = tensor.dim %x, %c0 : tensor<${rows}x${columns}xf32>
  %no_rows = tensor.empty($sized) : tensor<${rows}xf32>
  %nothing = linalg.fill ins(%zero : f32) outs(%no_rows : tensor<${rows}xf32>)
    -> tensor<${rows}xf32>
  %largest = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<${rows}x${columns}xf32>) outs(%nothing : tensor<${rows}xf32>) {
    ^bb0(%value: f32, %before: f32):
      %magnitude = math.absf %value : f32
      %after = arith.maximumf %magnitude, %before : f32
      linalg.yield %after : f32
  } -> tensor<${rows}xf32>
  %unit = linalg.generic {
      indexing_maps = [affine_map<(m) -> (m)>, affine_map<(m) -> (m)>],
      iterator_types = ["parallel"]}
      ins(%largest : tensor<${rows}xf32>) outs(%no_rows : tensor<${rows}xf32>) {
    ^bb0(%value: f32, %unused: f32):
      %steps = arith.constant 4194303.0 : f32
      %step = arith.divf %value, %steps : f32
      %scaled = arith.mulf %step, %factor : f32
      linalg.yield %scaled : f32
  } -> tensor<${rows}xf32>
  %padded = tensor.pad %x low[0, 0] high[0, $padding] {
    ^bb0(%i: index, %j: index):
      tensor.yield %zero : f32
  } : tensor<${rows}x${columns}xf32> to tensor<${rows}x${padded}xf32>
  %grouped = tensor.expand_shape %padded [[0], [1, 2]] output_shape [$count, $groups, $size]
    : tensor<${rows}x${padded}xf32> into tensor<${rows}x${groups}x${size}xf32>
  %no_digits = tensor.empty($sized) : tensor<${rows}x${groups}x3x${size}xi8>
  %digits = linalg.generic {
      indexing_maps = [affine_map<(m, g, d, k) -> (m, g, k)>, affine_map<(m, g, d, k) -> (m)>,
                       affine_map<(m, g, d, k) -> (m, g, d, k)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%grouped, %largest : tensor<${rows}x${groups}x${size}xf32>, tensor<${rows}xf32>)
      outs(%no_digits : tensor<${rows}x${groups}x3x${size}xi8>) {
    ^bb0(%value: f32, %limit: f32, %unused: i8):
      // In steps of which the largest magnitude has 2^22 - 1.
      %steps = arith.constant 4194303.0 : f32
      %most = arith.constant 1.0e38 : f32
      %per_unit = arith.divf %steps, %limit : f32
      %bounded = arith.minnumf %per_unit, %most : f32
      %exact = arith.mulf %value, %bounded : f32
      // The sum has no room for a fraction: its last bits are the nearest integer.
      %round = arith.constant 12582912.0 : f32
      %round_bits = arith.constant 0x4B400000 : i32
      %rounded = arith.addf %exact, %round : f32
      %bits = arith.bitcast %rounded : f32 to i32
      %whole = arith.subi %bits, %round_bits : i32
      // Digits are signed: half of what lies below is added before it is shifted out.
      %digit = linalg.index 2 : index
      %place = arith.index_cast %digit : index to i32
      %c1 = arith.constant 1 : i32
      %c2 = arith.constant 2 : i32
      %c3 = arith.constant 3 : i32
      %below = arith.subi %c2, %place : i32
      %shift = arith.shli %below, %c3 : i32
      %power = arith.shli %c1, %shift : i32
      %mask = arith.subi %power, %c1 : i32
      %halves = arith.constant 0x808080 : i32
      %half = arith.andi %halves, %mask : i32
      %raised = arith.addi %whole, %half : i32
      %shifted = arith.shrsi %raised, %shift : i32
      %byte = arith.trunci %shifted : i32 to i8
      linalg.yield %byte : i8
  } -> tensor<${rows}x${groups}x3x${size}xi8>
  %y = flow.dispatch @${name}_kernel::@${name}_kernel(%rows, %digits, %w, %s, %unit)
    : (index, tensor<${rows}x${groups}x3x${size}xi8>$dynamic,
       tensor<${outputs}x${groups}x${bytes}xi8>, tensor<${outputs}x${groups}xf16>,
       tensor<${rows}xf32>$dynamic) -> tensor<${rows}x${outputs}xf32>$dynamic
  util.return %y : tensor<${rows}x${outputs}xf32>
}
"""

_BY_FLOATS = """
util.func private @$name(
    %x: tensor<${rows}x${columns}xf32>, %w: tensor<${outputs}x${groups}x${bytes}xi8>,
    %s: tensor<${outputs}x${groups}xf16>, %factor: f32) -> tensor<${rows}x${outputs}xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %rows = tensor.dim %x, %c0 : tensor<${rows}x${columns}xf32>
  %padded = tensor.pad %x low[0, 0] high[0, $padding] {
    ^bb0(%i: index, %j: index):
      tensor.yield %zero : f32
  } : tensor<${rows}x${columns}xf32> to tensor<${rows}x${padded}xf32>
  %grouped = tensor.expand_shape %padded [[0], [1, 2]] output_shape [$count, $groups, $size]
    : tensor<${rows}x${padded}xf32> into tensor<${rows}x${groups}x${size}xf32>
  %no_sums = tensor.empty($sized) : tensor<${rows}x${outputs}xf32>
  %nothing = linalg.fill ins(%zero : f32) outs(%no_sums : tensor<${rows}x${outputs}xf32>)
    -> tensor<${rows}x${outputs}xf32>
"""
_FLOAT_PRODUCT = {
    8: """
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, g, k) -> (m, g, k)>, affine_map<(m, n, g, k) -> (n, g, k)>,
                       affine_map<(m, n, g, k) -> (n, g)>, affine_map<(m, n, g, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%grouped, %w, %s : tensor<${rows}x${groups}x${size}xf32>,
          tensor<${outputs}x${groups}x${bytes}xi8>, tensor<${outputs}x${groups}xf16>)
      outs(%nothing : tensor<${rows}x${outputs}xf32>) {
    ^bb0(%value: f32, %weight: i8, %scale: f16, %before: f32):
      %wide = arith.extf %scale : f16 to f32
      %step = arith.mulf %wide, %factor : f32
      %whole = arith.sitofp %weight : i8 to f32
      %product = arith.mulf %whole, %value : f32
      %scaled = arith.mulf %product, %step : f32
      %after = arith.addf %before, %scaled : f32
      linalg.yield %after : f32
  } -> tensor<${rows}x${outputs}xf32>
  util.return %y : tensor<${rows}x${outputs}xf32>
}
""",
    4: """
  %first = tensor.extract_slice %grouped[0, 0, 0] [$count, $groups, $bytes] [1, 1, 1]
    : tensor<${rows}x${groups}x${size}xf32> to tensor<${rows}x${groups}x${bytes}xf32>
  %second = tensor.extract_slice %grouped[0, 0, $bytes] [$count, $groups, $bytes] [1, 1, 1]
    : tensor<${rows}x${groups}x${size}xf32> to tensor<${rows}x${groups}x${bytes}xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, g, k) -> (m, g, k)>, affine_map<(m, n, g, k) -> (m, g, k)>,
                       affine_map<(m, n, g, k) -> (n, g, k)>, affine_map<(m, n, g, k) -> (n, g)>,
                       affine_map<(m, n, g, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%first, %second, %w, %s : tensor<${rows}x${groups}x${bytes}xf32>,
          tensor<${rows}x${groups}x${bytes}xf32>, tensor<${outputs}x${groups}x${bytes}xi8>,
          tensor<${outputs}x${groups}xf16>)
      outs(%nothing : tensor<${rows}x${outputs}xf32>) {
    ^bb0(%value0: f32, %value1: f32, %packed: i8, %scale: f16, %before: f32):
      %wide = arith.extf %scale : f16 to f32
      %step = arith.mulf %wide, %factor : f32
      %four = arith.constant 4 : i8
      %raised = arith.shli %packed, %four : i8
      %low = arith.shrsi %raised, %four : i8
      %high = arith.shrsi %packed, %four : i8
      %whole0 = arith.sitofp %low : i8 to f32
      %whole1 = arith.sitofp %high : i8 to f32
      %product0 = arith.mulf %whole0, %value0 : f32
      %product1 = arith.mulf %whole1, %value1 : f32
      %product = arith.addf %product0, %product1 : f32
      %scaled = arith.mulf %product, %step : f32
      %after = arith.addf %before, %scaled : f32
      linalg.yield %after : f32
  } -> tensor<${rows}x${outputs}xf32>
  util.return %y : tensor<${rows}x${outputs}xf32>
}
""",
}
