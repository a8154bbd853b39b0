"""External weights are parameters of scope "model" under the names of the state dict."""

import torch

import turbine


# CHECK: module @linear
# CHECK-DAG: util.global private @weight = #flow.parameter.named<"model"::"weight">{{.*}}<2x4xf32>
# CHECK-DAG: util.global private @bias = #flow.parameter.named<"model"::"bias"> : tensor<2xf32>
# CHECK: func.func @forward(%[[X:.*]]: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[3,2],f32>
# CHECK-DAG: %[[W:.*]] = util.global.load @weight : tensor<2x4xf32>
# CHECK-DAG: torch_c.from_builtin_tensor %[[W]] : tensor<2x4xf32> -> !torch.vtensor<[2,4],f32>
# CHECK: torch.aten.addmm
# CHECK: return
def text() -> str:
    model = torch.nn.Linear(4, 2)
    args = (torch.ones(3, 4),)
    output = turbine.aot.export(model, args=args, module_name="linear", function_name="forward")
    return output.text()
