"""Each op carries the file and line of the user's code that made it."""

import torch

import turbine
from turbine.mlir import context


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)  # the line the location names


# CHECK: #[[LINE:.*]] = loc("{{.*}}filecheck/locations.py":11:0)
# CHECK: torch.aten.tanh {{.*}} loc(#[[LINE]])
def text() -> str:
    output = turbine.aot.export(Model(), args=(torch.ones(2),))
    return context.to_text(output.mlir_module, locations=True)
