"""Templates of matmuls with packed weights; grouped_product.py fills them in.

$x, $y, $w and $s are the types of the operand, the result, the packed weight and its scales. A
byte holds $parts weights: the first is in its lowest bits and belongs to the first part of its
group.
"""

# The start of every variant: pad the operand with zeros to whole groups.
START = """
util.func private @$function(%x: $x, %w: $w, %s: $s, %factor: f32) -> $y {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %rows = tensor.dim %x, %c0 : $x
  %padded = tensor.pad %x low[0, 0] high[0, $padding] {
    ^bb0(%i: index, %j: index):
      tensor.yield %zero : f32
  } : $x to $padded"""

BY_DIGITS = """
stream.executable private @${function}_kernel {
  stream.executable.export public @${function}_kernel workgroups() -> (index, index, index) {
    %tiles = arith.constant $tiles : index
    %one = arith.constant 1 : index
    stream.return %tiles, %one, %one : index, index, index
  }
  builtin.module {
    func.func @${function}_kernel(
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
      %x = stream.binding.subspan %x_bound[%c0] : !stream.binding -> $x_memory{%rows}
      %w = stream.binding.subspan %w_bound[%c0] : !stream.binding -> $w_memory
      %s = stream.binding.subspan %s_bound[%c0] : !stream.binding -> $s_memory
      %unit = stream.binding.subspan %unit_bound[%c0] : !stream.binding -> memref<?xf32>{%rows}
      %y = stream.binding.subspan %y_bound[%c0] : !stream.binding -> $y_memory{%rows}
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
              %packed = vector.load %w[%n, %g, %k] : $w_memory, vector<${lanes}xi8>
$multiply
            }
            %float0 = arith.sitofp %sums#0 : vector<4xi32> to vector<4xf32>
            %float1 = arith.sitofp %sums#1 : vector<4xi32> to vector<4xf32>
            %float2 = arith.sitofp %sums#2 : vector<4xi32> to vector<4xf32>
            %high = math.fma %float0, %base, %float1 : vector<4xf32>
            %sum = math.fma %high, %base, %float2 : vector<4xf32>
            %stored_scale = memref.load %s[%n, %g] : $s_memory
            %scale = arith.extf %stored_scale : f16 to f32
            %scales = vector.broadcast %scale : f32 to vector<4xf32>
            %total_after = math.fma %sum, %scales, %total_before : vector<4xf32>
            scf.yield %total_after : vector<4xf32>
          }
          %whole = vector.reduction <add>, %total : vector<4xf32> into f32
          %one_unit = memref.load %unit[%m] : memref<?xf32>
          %result = arith.mulf %whole, %one_unit : f32
          memref.store %result, %y[%m, %n] : $y_memory
        }
      }
      return
    }
  }
}
$start
  %no_rows = tensor.empty($sized) : $row
  %nothing = linalg.fill ins(%zero : f32) outs(%no_rows : $row) -> $row
  %largest = linalg.reduce ins(%x : $x) outs(%nothing : $row) dimensions = [1]
    (%value: f32, %before: f32) {
      %magnitude = math.absf %value : f32
      %after = arith.maximumf %magnitude, %before : f32
      linalg.yield %after : f32
    }
  %unit = linalg.map ins(%largest : $row) outs(%no_rows : $row)
    (%value: f32, %unused: f32) {
      %steps = arith.constant 4194303.0 : f32
      %step = arith.divf %value, %steps : f32
      %scaled = arith.mulf %step, %factor : f32
      // A row with inf has no steps to be written in.
      %infinity = arith.constant 0x7F800000 : f32
      %nan = arith.constant 0x7FC00000 : f32
      %is_finite = arith.cmpf olt, %value, %infinity : f32
      %known = arith.select %is_finite, %scaled, %nan : f32
      linalg.yield %known : f32
    }
  %grouped = tensor.expand_shape %padded [[0], [1, 2]] output_shape [$count, $groups, $size]
    : $padded into tensor<${rows}x${groups}x${size}xf32>
  %no_digits = tensor.empty($sized) : $digits
  %digits = linalg.generic {
      indexing_maps = [affine_map<(m, g, d, k) -> (m, g, k)>, affine_map<(m, g, d, k) -> (m)>,
                       affine_map<(m, g, d, k) -> (m, g, d, k)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%grouped, %largest : tensor<${rows}x${groups}x${size}xf32>, $row)
      outs(%no_digits : $digits) {
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
  } -> $digits
  %y = flow.dispatch @${function}_kernel::@${function}_kernel(%rows, %digits, %w, %s, %unit)
    : (index, $digits$dynamic, $w, $s, $row$dynamic) -> $y$dynamic
  util.return %y : $y
}
"""

# In the innermost loop: the weights of one part of a group, and one digit times them.
UNPACK_VECTOR = """
              %up$part = arith.constant dense<$left> : vector<${lanes}xi8>
              %down$part = arith.constant dense<$unused_bits> : vector<${lanes}xi8>
              %raised$part = arith.shli %packed, %up$part : vector<${lanes}xi8>
              %whole$part = arith.shrsi %raised$part, %down$part : vector<${lanes}xi8>
              %w$part = arith.extsi %whole$part : vector<${lanes}xi8> to vector<${lanes}xi32>"""
MULTIPLY_VECTOR = """
              %x${digit}_$part = vector.load %x[%m, %g, %c$digit, %c$part, %k]
                : $x_memory, vector<${lanes}xi8>
              %wide${digit}_$part = arith.extsi %x${digit}_$part
                : vector<${lanes}xi8> to vector<${lanes}xi32>
              %product${digit}_$part = arith.muli %wide${digit}_$part, %w$part
                : vector<${lanes}xi32>
              %sum${digit}_$part = llvm.call_intrinsic "llvm.vector.partial.reduce.add"(
                  $before, %product${digit}_$part)
                : (vector<4xi32>, vector<${lanes}xi32>) -> vector<4xi32>"""

# Each weight becomes a float where it is used: for groups that do not fill vectors.
BY_FLOATS = """
$start
  %grouped = tensor.expand_shape %padded [[0], [1, 2, 3]]
    output_shape [$count, $groups, $parts, $bytes]
    : $padded into tensor<${rows}x${groups}x${parts}x${bytes}xf32>
  %no_sums = tensor.empty($sized) : $y
  %nothing = linalg.fill ins(%zero : f32) outs(%no_sums : $y) -> $y
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, g, p, k) -> (m, g, p, k)>,
                       affine_map<(m, n, g, p, k) -> (n, g, k)>,
                       affine_map<(m, n, g, p, k) -> (n, g)>,
                       affine_map<(m, n, g, p, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%grouped, %w, %s : tensor<${rows}x${groups}x${parts}x${bytes}xf32>, $w, $s)
      outs(%nothing : $y) {
    ^bb0(%value: f32, %packed: i8, %stored_scale: f16, %before: f32):
      %part = linalg.index 3 : index
$unpack
      %scaled = arith.mulf %weight, %value : f32
      %after = arith.addf %before, %scaled : f32
      linalg.yield %after : f32
  } -> $y
  util.return %y : $y
}
"""

# The bits of %packed that belong to %part, times the scale.
UNPACK = """
      %bits = arith.constant $bits : index
      %unused = arith.constant $unused_bits : index
      %below = arith.muli %part, %bits : index
      %left = arith.subi %unused, %below : index
      %up = arith.index_cast %left : index to i8
      %down = arith.constant $unused_bits : i8
      %raised = arith.shli %packed, %up : i8
      %whole = arith.shrsi %raised, %down : i8
      %float = arith.sitofp %whole : i8 to f32
      %scale = arith.extf %stored_scale : f16 to f32
      %step = arith.mulf %scale, %factor : f32
      %weight = arith.mulf %float, %step : f32"""

# For many rows: blocks of the weight become floats, one after the other, and are multiplied as
# matrices. Only one block is in memory.
BY_BLOCKS = """
$start
  %nothing = tensor.empty($sized) : $y
  %block = arith.constant $block : index
  %outputs = arith.constant $outputs : index
  // The last block overlaps the one before rather than being smaller.
  %last = arith.constant $last_block : index
  %y = scf.for %first = %c0 to %outputs step %block iter_args(%y_before = %nothing) -> ($y) {
    %n = arith.minui %first, %last : index
    %w_block = tensor.extract_slice %w[%n, 0, 0] [$block, $groups, $bytes] [1, 1, 1]
      : $w to tensor<${block}x${groups}x${bytes}xi8>
    %s_block = tensor.extract_slice %s[%n, 0] [$block, $groups] [1, 1]
      : $s to tensor<${block}x${groups}xf16>
    %no_weights = tensor.empty() : $weights
    %weights = linalg.generic {
        indexing_maps = [affine_map<(n, g, p, k) -> (n, g, k)>, affine_map<(n, g, p, k) -> (n, g)>,
                         affine_map<(n, g, p, k) -> (n, g, p, k)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%w_block, %s_block : tensor<${block}x${groups}x${bytes}xi8>,
            tensor<${block}x${groups}xf16>)
        outs(%no_weights : $weights) {
      ^bb0(%packed: i8, %stored_scale: f16, %none: f32):
      %part = linalg.index 2 : index
$unpack
      linalg.yield %weight : f32
    } -> $weights
    %matrix = tensor.collapse_shape %weights [[0], [1, 2, 3]]
      : $weights into tensor<${block}x${columns}xf32>
    %no_sums = tensor.empty($sized) : $products
    %no_products = linalg.fill ins(%zero : f32) outs(%no_sums : $products) -> $products
    %products = linalg.matmul
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                       affine_map<(m, n, k) -> (m, n)>]
      ins(%padded, %matrix : $padded, tensor<${block}x${columns}xf32>)
      outs(%no_products : $products) -> $products
    %y_after = tensor.insert_slice %products into %y_before[0, %n] [$count, $block] [1, 1]
      : $products into $y
    scf.yield %y_after : $y
  }
  util.return %y : $y
}
"""

# For a number of rows known at run time: few and many go different ways.
CHOOSE = """
util.func private @$name(%x: $x, %w: $w, %s: $s, %factor: f32) -> $y {
  %c0 = arith.constant 0 : index
  %limit = arith.constant $few_rows : index
  %rows = tensor.dim %x, %c0 : $x
  %are_few = arith.cmpi ule, %rows, %limit : index
  %y = scf.if %are_few -> ($y) {
    %few = util.call @${name}_few(%x, %w, %s, %factor) : ($x, $w, $s, f32) -> $y
    scf.yield %few : $y
  } else {
    %many = util.call @${name}_many(%x, %w, %s, %factor) : ($x, $w, $s, f32) -> $y
    scf.yield %many : $y
  }
  util.return %y : $y
}
"""

# Rows looked up by an index tensor of any rank, whose elements are in range.
ROWS = """
util.func private @$name(%indices: $indices, %w: $w, %s: $s, %factor: f32) -> $result {
$dims
  %nothing = tensor.empty($sized) : $result
  %y = linalg.generic {
      indexing_maps = [affine_map<($all_axes) -> ($axes)>, affine_map<($all_axes) -> ($all_axes)>],
      iterator_types = [$parallel]}
      ins(%indices : $indices) outs(%nothing : $result) {
    ^bb0(%index: i64, %unused_value: f32):
      %row = arith.index_cast %index : i64 to index
      %column = linalg.index $rank : index
      %group, %part, %byte = affine.delinearize_index %column into ($groups, $parts, $bytes)
        : index, index, index
      %packed = tensor.extract %w[%row, %group, %byte] : $w
      %stored_scale = tensor.extract %s[%row, %group] : $s
$unpack
      linalg.yield %weight : f32
  } -> $result
  util.return %y : $result
}
"""
