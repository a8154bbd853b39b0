"""Globals: numbers and tensors, mutable, external, uninitialized, and in trees."""

import torch

from turbine import aot

MODEL = torch.nn.Linear(4, 2)


# CHECK-DAG: util.global private mutable @count = 0 : index
# CHECK-DAG: util.global private mutable @ratio = 5.000000e-01 : f64
# CHECK-DAG: util.global private mutable @flag = true
# CHECK-DAG: util.global private mutable @cache = dense<0.000000e+00> : tensor<4xf32>
# CHECK-DAG: util.global private mutable @blank = #util.uninitialized : tensor<4xf32>
# CHECK-DAG: util.global private mutable @tree.a = dense<1.000000e+00> : tensor<2xf32>
# CHECK-DAG: util.global private mutable @tree.b.0 = dense<0> : tensor<3xi64>
# CHECK-DAG: util.global private @inside <inlining_policy = #util.inline.never> = dense<1.0
# CHECK-DAG: util.global private @params.weight = #flow.parameter.named<"layer"::"WEIGHT">
# CHECK-DAG: util.global private @params.bias = #flow.parameter.named<"layer"::"params.bias">
# CHECK-LABEL: func.func @step
# CHECK: %[[OLD:.*]] = util.global.load @count : index
# CHECK: %[[NEW:.*]] = arith.addi %[[OLD]]
# CHECK: util.global.store %[[NEW]], @count : index
# CHECK: %[[B:.*]] = util.global.load @tree.b.0 : tensor<3xi64>
# CHECK: return %[[B]]
class Globals(aot.CompiledModule):
    count = aot.export_global(aot.AbstractIndex, mutable=True)
    ratio = aot.export_global(0.5, mutable=True)
    flag = aot.export_global(True, mutable=True)
    cache = aot.export_global(aot.AbstractTensor(4), mutable=True)
    blank = aot.export_global(aot.AbstractTensor(4), mutable=True, uninitialized=True)
    inside = aot.export_global(torch.ones(2), external=False, noinline=True)
    tree = aot.export_global_tree(
        {"a": torch.ones(2), "b": [torch.zeros(3, dtype=torch.int64)]}, mutable=True
    )
    params = aot.export_parameters(
        MODEL,
        external=True,
        external_scope="layer",
        name_mapper={"params.weight": "WEIGHT"}.get,
    )

    def step(self):
        self.count = self.count + 1
        return self.tree["b"][0]


def text() -> str:
    return aot.export(Globals).text()
