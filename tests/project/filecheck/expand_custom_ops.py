"""A custom op becomes the body of its library function, with types made to fit."""

from turbine.mlir import context
from turbine.passes import ExpandCustomOps, run_passes

MODULE = """
func.func @main(%x: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[3,4],f32> {
  %two = torch.constant.int 2
  %0 = torch.operator "torch.demo.scale"(%x, %two)
      : (!torch.vtensor<[3,4],f32>, !torch.int) -> !torch.vtensor<[3,4],f32>
  %1 = torch.operator "torch.demo.unknown"(%0)
      : (!torch.vtensor<[3,4],f32>) -> !torch.vtensor<[3,4],f32>
  return %1 : !torch.vtensor<[3,4],f32>
}
"""
LIBRARY = """
util.global private @table = dense<3.0> : tensor<4xf32>
util.global private @unused = dense<4.0> : tensor<4xf32>
func.func private @factor(%n: i64) -> f32 {
  %0 = arith.sitofp %n : i64 to f32
  return %0 : f32
}
func.func @demo__scale(%x: tensor<?x4xf32>, %n: i64) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %f = func.call @factor(%n) : (i64) -> f32
  %size = tensor.dim %x, %c0 : tensor<?x4xf32>
  %table = util.global.load @table : tensor<4xf32>
  %row = tensor.extract %table[%c0] : tensor<4xf32>
  %product = arith.mulf %f, %row : f32
  %empty = tensor.empty(%size) : tensor<?x4xf32>
  %all = linalg.fill ins(%product : f32) outs(%empty : tensor<?x4xf32>) -> tensor<?x4xf32>
  %y = arith.mulf %x, %all : tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}
func.func @demo__other(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
"""


# CHECK: util.global private @table
# CHECK-NOT: @unused
# CHECK: func.func @main(%[[X:.*]]: !torch.vtensor<[3,4],f32>)
# CHECK: %[[B:.*]] = torch_c.to_builtin_tensor %[[X]] : {{.*}} -> tensor<3x4xf32>
# CHECK: %[[C:.*]] = tensor.cast %[[B]] : tensor<3x4xf32> to tensor<?x4xf32>
# CHECK: %[[N:.*]] = torch_c.to_i64
# CHECK: arith.sitofp %[[N]] : i64 to f32
# CHECK: %[[Y:.*]] = arith.mulf %[[C]], {{.*}} : tensor<?x4xf32>
# CHECK: %[[S:.*]] = tensor.cast %[[Y]] : tensor<?x4xf32> to tensor<3x4xf32>
# CHECK: %[[T:.*]] = torch_c.from_builtin_tensor %[[S]]
# CHECK: torch.operator "torch.demo.unknown"(%[[T]])
# CHECK-NOT: func.func
def text() -> str:
    expand = ExpandCustomOps(library=context.parse(LIBRARY))
    return str(run_passes(context.parse(MODULE), [expand]))
