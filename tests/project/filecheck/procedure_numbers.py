"""Numbers of procedures: arithmetic and comparisons, and a division that is checked first."""

from turbine import aot


# CHECK: func.func @add(%[[A:.*]]: index, %[[B:.*]]: index) -> (index, i1)
# CHECK: %[[ONE:.*]] = arith.constant 1 : index
# CHECK: %[[SUM:.*]] = arith.addi %[[A]], %[[ONE]] : index
# CHECK: cf.assert {{.*}}, "a result too large for index at
# CHECK: %[[LESS:.*]] = arith.cmpi slt, %[[SUM]], %[[B]] : index
# CHECK: return %[[SUM]], %[[LESS]]
# CHECK: func.func @divide(%[[A:.*]]: i64, %[[B:.*]]: i64) -> i64
# CHECK: %[[SOME:.*]] = arith.cmpi ne, %[[B]]
# CHECK: cf.assert %[[SOME]], "division by zero at
# CHECK: arith.divsi %[[A]], {{.*}} : i64
# CHECK: arith.select
# CHECK: func.func @mixed(%[[A:.*]]: i32, %[[B:.*]]: f32) -> f32
# CHECK: %[[FLOAT:.*]] = arith.sitofp %[[A]] : i32 to f32
# CHECK: arith.mulf %[[FLOAT]], %[[B]] : f32
class Numbers(aot.CompiledModule):
    def add(self, a=aot.AbstractIndex, b=aot.AbstractIndex):
        total = a + 1
        return total, total < b

    def divide(self, a=aot.AbstractI64, b=aot.AbstractI64):
        return a // b

    def mixed(self, a=aot.AbstractI32, b=aot.AbstractF32):
        return a * b


def text() -> str:
    return aot.export(Numbers).text()
