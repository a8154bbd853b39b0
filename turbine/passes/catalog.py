"""All passes, by name."""

from __future__ import annotations

from turbine.passes.add_metadata import AddMetadata
from turbine.passes.base import Pass
from turbine.passes.expand_custom_ops import ExpandCustomOps
from turbine.passes.group_quantize import GroupQuantize
from turbine.passes.merge import Merge
from turbine.passes.rename_parameters import RenameParameters

_ALL: tuple[type[Pass], ...] = (
    RenameParameters,
    AddMetadata,
    Merge,
    ExpandCustomOps,
    GroupQuantize,
)
PASSES: dict[str, type[Pass]] = {kind.name: kind for kind in _ALL}
