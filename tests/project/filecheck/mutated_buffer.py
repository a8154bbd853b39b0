"""A buffer the model writes is a mutable global: loaded, and stored before the return."""

import turbine
from tests.odd_models.catalog import ODD


# CHECK: util.global private mutable @[[NAME:.*]] = dense
# CHECK: %[[OLD:.*]] = util.global.load @[[NAME]]
# CHECK: torch.aten.add
# CHECK: %[[NEW:.*]] = torch_c.to_builtin_tensor
# CHECK: util.global.store %[[NEW]], @[[NAME]]
# CHECK-NEXT: return
def text() -> str:
    example = ODD["counter"]()
    return turbine.aot.export(example.model, args=example.args).text()
