"""A linear layer's weight is packed bytes with a scale and a zero for each group."""

import torch

import turbine
from turbine.passes import GroupQuantize


# CHECK-DAG: @"weight:q" = #flow.parameter.named<"model"::"weight:q"> : tensor<4x24xi8>
# CHECK-DAG: @"weight:scale" = #flow.parameter.named<"model"::"weight:scale"> : tensor<4x3x1xf32>
# CHECK-DAG: @"weight:zero" = #flow.parameter.named<"model"::"weight:zero"> : tensor<4x3x1xf32>
# CHECK: func.func @main
# CHECK-NOT: @weight :
# CHECK: %[[I:.*]] = flow.tensor.bitcast {{.*}} : tensor<4x24xi8> -> tensor<4x48xi4>
# CHECK: arith.extui %[[I]] : tensor<4x48xi4> to tensor<4x48xi32>
# CHECK: %[[F:.*]] = arith.uitofp
# CHECK: %[[T:.*]] = torch_c.from_builtin_tensor %[[F]]
# CHECK: %[[G:.*]] = torch.aten.view %[[T]], {{.*}} -> !torch.vtensor<[4,3,16],f32>
# CHECK: %[[Z:.*]] = torch.aten.sub.Tensor %[[G]], {{.*}} !torch.vtensor<[4,3,1],f32>
# CHECK: %[[W:.*]] = torch.aten.mul.Tensor %[[Z]]
# CHECK: torch.aten.slice.Tensor {{.*}} -> !torch.vtensor<[4,40],f32>
# CHECK: torch.aten.addmm
def text() -> str:
    model = torch.nn.Linear(40, 4)
    output = turbine.aot.export(model, args=(torch.ones(3, 40),))
    return output.transform(GroupQuantize(bits=4, group_size=16)).text()
