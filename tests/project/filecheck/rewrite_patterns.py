"""A pattern is applied wherever it matches, in loops too, and what it leaves unread goes."""

from collections.abc import Sequence

from turbine.mlir import context
from turbine.mlir.ir import Operation, Value
from turbine.mlir.matchers import Transpose2DMatcher
from turbine.mlir.rewrites import rewrite

MODULE = """
func.func @main(%x: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[3,4],f32> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %true = torch.constant.bool true
  %list = torch.prim.ListConstruct %1, %0 : (!torch.int, !torch.int) -> !torch.list<int>
  %r = torch.prim.Loop %1, %true, init(%x) {
  ^bb0(%i: !torch.int, %y: !torch.vtensor<[3,4],f32>):
    %a = torch.aten.t %y : !torch.vtensor<[3,4],f32> -> !torch.vtensor<[4,3],f32>
    %b = torch.aten.permute %a, %list
        : !torch.vtensor<[4,3],f32>, !torch.list<int> -> !torch.vtensor<[3,4],f32>
    %c = torch.aten.relu %b : !torch.vtensor<[3,4],f32> -> !torch.vtensor<[3,4],f32>
    torch.prim.Loop.condition %true, iter(%c : !torch.vtensor<[3,4],f32>)
  } : (!torch.int, !torch.bool, !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[3,4],f32>
  return %r : !torch.vtensor<[3,4],f32>
}
"""


def fold(op: Operation) -> Sequence[Value] | None:
    """transpose(transpose(x)) is x."""
    outer = Transpose2DMatcher()(op)
    inner = Transpose2DMatcher()(outer.input) if outer is not None else None
    return None if inner is None else [inner.input]


# CHECK-NOT: ListConstruct
# CHECK: torch.prim.Loop
# CHECK: ^bb0(%{{.*}}: !torch.int, %[[Y:.*]]: !torch.vtensor<[3,4],f32>):
# CHECK-NEXT: torch.aten.relu %[[Y]]
def text() -> str:
    module = context.parse(MODULE)
    rewrite(module, [fold])
    context.verify(module)
    return str(module)
