"""Builtins of procedures: parts and shapes of tensors, with sizes known only at run time."""

import torch

from turbine import aot
from turbine.aot import IREE


# CHECK: func.func @dim(%[[X:.*]]: tensor<?x8xf32>) -> (index, i64)
# CHECK: %[[DIM:.*]] = tensor.dim %[[X]]
# CHECK: %[[WIDE:.*]] = arith.index_cast %[[DIM]] : index to i64
# CHECK: return %[[DIM]], %[[WIDE]]
# CHECK: func.func @empty(%[[N:.*]]: index) -> tensor<?x4xf16>
# CHECK: flow.tensor.empty : tensor<?x4xf16>{%[[N]]}
# CHECK: func.func @splat(%[[N:.*]]: index, %[[VALUE:.*]]: f32) -> tensor<2x?xf32>
# CHECK: flow.tensor.splat %[[VALUE]] : tensor<2x?xf32>{%[[N]]}
# CHECK: func.func @reshape(%[[X:.*]]: tensor<?x8xf32>) -> tensor<?x2x4xf32>
# CHECK: %[[ROWS:.*]] = tensor.dim %[[X]]
# CHECK: flow.tensor.reshape %[[X]] : tensor<?x8xf32>{%[[ROWS]]} -> tensor<?x2x4xf32>{%[[ROWS]]}
# CHECK: func.func @part(%[[X:.*]]: tensor<?x8xf32>, %[[I:.*]]: index, %[[N:.*]]: index)
# CHECK: cf.assert {{.*}} out of range along axis 0
# CHECK: tensor.extract_slice %[[X]][%[[I]], 3] [%[[N]], 1] [1, 1] : {{.*}} to tensor<?x1xf32>
# CHECK: func.func @update(%[[I:.*]]: index, %[[PART:.*]]: tensor<1x8xf32>)
# CHECK: %[[OLD:.*]] = util.global.load @cache
# CHECK: %[[NEW:.*]] = tensor.insert_slice %[[PART]] into %[[OLD]][%[[I]], 0] [1, 8] [1, 1]
# CHECK: util.global.store %[[NEW]], @cache
# CHECK: func.func @trace(%[[X:.*]]: tensor<?x8xf32>)
# CHECK: flow.tensor.trace "rows" = [%[[X]] : tensor<?x8xf32>{%{{.*}}}]
class Tensors(aot.CompiledModule):
    cache = aot.export_global(aot.AbstractTensor(4, 8), mutable=True)

    def dim(self, x=aot.AbstractTensor(None, 8)):
        return IREE.tensor_dim(x, 0), IREE.tensor_dim(x, 0, dtype=aot.AbstractI64)

    def empty(self, n=aot.AbstractIndex):
        return IREE.tensor_empty(n, 4, dtype=torch.float16)

    def splat(self, n=aot.AbstractIndex, value=aot.AbstractF32):
        return IREE.tensor_splat(2, n, value=value)

    def reshape(self, x=aot.AbstractTensor(None, 8)):
        return IREE.tensor_reshape(x, x.dim(0), 2, 4)

    def part(self, x=aot.AbstractTensor(None, 8), i=aot.AbstractIndex, n=aot.AbstractIndex):
        return IREE.tensor_slice(x, (i, n), 3)

    def update(self, i=aot.AbstractIndex, part=aot.AbstractTensor(1, 8)):
        self.cache = IREE.tensor_update(self.cache, part, i, 0)

    def trace(self, x=aot.AbstractTensor(None, 8)):
        IREE.tensor_trace("rows", x)


def text() -> str:
    return aot.export(Tensors).text()
