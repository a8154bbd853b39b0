"""A written input comes back as one more result; the function itself changes nothing."""

import turbine
from tests.odd_models.catalog import ODD


# CHECK: func.func @main(%[[X:.*]]: !torch.vtensor<[3,4],f32>)
# CHECK-SAME: -> (!torch.vtensor<[3,4],f32>, !torch.vtensor<[3,4],f32>)
# CHECK-NOT: overwrite
# CHECK: return
def text() -> str:
    example = ODD["mutates_input"]()
    return turbine.aot.export(example.model, args=example.args).text()
