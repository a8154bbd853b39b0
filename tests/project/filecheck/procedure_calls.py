"""Procedures call jittables and each other; equal calls of a jittable share one function."""

from turbine import aot


# CHECK-LABEL: func.func @once
# CHECK: call @double(%{{.*}}) : (tensor<?x4xf32>) -> tensor<?x4xf32>
# CHECK-LABEL: func.func private @double
# CHECK: torch.aten.mul
# CHECK-LABEL: func.func @twice
# CHECK: call @double
# CHECK: call @once
# CHECK: %[[SAME:.*]] = arith.cmpi eq
# CHECK: cf.assert %[[SAME]], "argument 'add[0][1]' has another size along axis 0 at
# CHECK: call @add
# CHECK-NOT: func.func private @double
class Calls(aot.CompiledModule):
    def once(self, x=aot.AbstractTensor(None, 4)):
        return self.double(x)

    def twice(self, x=aot.AbstractTensor(None, 4), y=aot.AbstractTensor(None, 4)):
        return self.add(self.once(self.double(x)), y)

    @aot.jittable
    def double(x):
        return x * 2

    @aot.jittable
    def add(x, y):
        return x + y


def text() -> str:
    return aot.export(Calls).text()
