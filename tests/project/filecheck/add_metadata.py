"""Metadata is a reflection dictionary on the function named, beside what is there."""

from turbine.mlir import context
from turbine.passes import AddMetadata, run_passes

MODULE = """
func.func @main() attributes {iree.reflection = {author = "her", year = "2024"}} { return }
func.func @other() { return }
"""


# CHECK: @main() attributes {iree.reflection = {author = "her", batch = "8", year = "2025"}}
# CHECK-NOT: iree.reflection
def text() -> str:
    metadata = AddMetadata("main", {"batch": 8, "year": 2025})
    return str(run_passes(context.parse(MODULE), [metadata]))
