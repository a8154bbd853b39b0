"""Renamed parameters are read under new names; globals, and what reads them, keep theirs."""

from turbine.mlir import context
from turbine.passes import RenameParameters, run_passes

MODULE = """
util.global private @a = #flow.parameter.named<"model"::"a"> : tensor<4xf32>
util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<4xf32>
util.global private @c = #flow.parameter.named<"c"> : tensor<4xf32>
util.global private @d = dense<1.0> : tensor<4xf32>
func.func @main() -> tensor<4xf32> {
  %0 = util.global.load @a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


# CHECK: @a = #flow.parameter.named<"model"::"b"> : tensor<4xf32>
# CHECK: @b = #flow.parameter.named<"other"::"a"> : tensor<4xf32>
# CHECK: @c = #flow.parameter.named<"late"::"c"> : tensor<4xf32>
# CHECK: @d = dense<1.000000e+00>
# CHECK: util.global.load @a
def text() -> str:
    renames = RenameParameters(
        {"a": "b", "model::b": "other::a"},
        lambda scope, key: ("late", key) if scope is None else None,
    )
    return str(run_passes(context.parse(MODULE), [renames]))
