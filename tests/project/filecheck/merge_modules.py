"""Private names give way, equal globals become one, and what refers to either follows."""

from turbine.mlir import context
from turbine.passes import Merge, run_passes

TARGET = """
util.global private @weight = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
util.global private mutable @state = dense<0> : tensor<4xi32>
func.func private @helper() { return }
func.func @first() -> tensor<4xf32> {
  func.call @helper() : () -> ()
  %0 = util.global.load @weight : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
SOURCE = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
util.global private @weight = #flow.parameter.named<"model"::"other"> : tensor<4xf32>
util.global private mutable @counter = dense<1> : tensor<4xi32>
func.func private @helper() { return }
func.func private @first() -> tensor<4xf32>
func.func @second() -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi32>) {
  func.call @helper() : () -> ()
  func.call @first() : () -> tensor<4xf32>
  %0 = util.global.load @w : tensor<4xf32>
  %1 = util.global.load @weight : tensor<4xf32>
  %2 = util.global.load @counter : tensor<4xi32>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
}
"""


# CHECK: util.global private @weight = #flow.parameter.named<"model"::"w">
# CHECK: util.global private mutable @state = dense<0>
# CHECK: util.global private @weight_1 = #flow.parameter.named<"model"::"other">
# CHECK-NOT: util.global private
# CHECK: func.func private @helper()
# CHECK: func.func @first() -> tensor<4xf32> {
# CHECK: call @helper()
# CHECK: func.func private @helper_1()
# CHECK-NOT: func.func private @first
# CHECK: func.func @renamed()
# CHECK: call @helper_1()
# CHECK: call @first()
# CHECK: util.global.load @weight : tensor<4xf32>
# CHECK: util.global.load @weight_1 : tensor<4xf32>
# CHECK: util.global.load @state : tensor<4xi32>
def text() -> str:
    merge = Merge(context.parse(SOURCE), {"counter": "state", "second": "renamed"})
    return str(run_passes(context.parse(TARGET), [merge]))
