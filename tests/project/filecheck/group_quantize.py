"""A linear layer's weight is packed bytes with a scale for each group."""

import torch

import turbine
from turbine.passes import GroupQuantize


# CHECK-DAG: @weight.packed = #flow.parameter.named<"model"::"weight.packed"> : tensor<4x3x8xi8>
# CHECK-DAG: @weight.scales = #flow.parameter.named<"model"::"weight.scales"> : tensor<4x3xf32>
# CHECK: func.func @main
# CHECK-NOT: @weight :
# CHECK: %[[I:.*]] = flow.tensor.bitcast {{.*}} : tensor<4x3x8xi8> -> tensor<4x3x8x2xi4>
# CHECK: %[[E:.*]] = arith.extsi %[[I]] : tensor<4x3x8x2xi4> to tensor<4x3x8x2xi32>
# CHECK: %[[F:.*]] = arith.sitofp %[[E]]
# CHECK: %[[T:.*]] = torch_c.from_builtin_tensor %[[F]]
# CHECK: %[[H:.*]] = torch.aten.permute %[[T]], {{.*}} -> !torch.vtensor<[4,3,2,8],f32>
# CHECK: %[[G:.*]] = torch.aten.view %[[H]], {{.*}} -> !torch.vtensor<[4,3,16],f32>
# CHECK: %[[S:.*]] = torch.aten.unsqueeze {{.*}} -> !torch.vtensor<[4,3,1],f32>
# CHECK: torch.aten.mul.Tensor %[[G]], %[[S]]
# CHECK: torch.aten.slice.Tensor {{.*}} -> !torch.vtensor<[4,40],f32>
# CHECK: torch.aten.addmm
def text() -> str:
    model = torch.nn.Linear(40, 4)
    output = turbine.aot.export(model, args=(torch.ones(3, 40),))
    return output.transform(GroupQuantize(bits=4, group_size=16)).text()
