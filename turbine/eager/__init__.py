"""The "turbine" device: eager tensors whose ops are compiled together.

`turbine.eager.enable()` registers it with PyTorch. Ops on its tensors are recorded, and run as one
compiled program when a value is read. See docs/eager.md.
"""

from __future__ import annotations

from turbine import needs_torch as needs_torch  # first: the message if PyTorch is absent
from turbine.eager.device import disable as disable
from turbine.eager.device import enable as enable
from turbine.eager.device import is_enabled as is_enabled
from turbine.eager.programs import wait as wait
from turbine.eager.report import DeviceReport as DeviceReport
from turbine.eager.report import explain as explain
from turbine.eager.report import fallbacks as fallbacks
from turbine.eager.report import trace as trace
