"""The ops and functions of the kernel language, by name."""

from __future__ import annotations

import inspect
from typing import Any

import turbine.kernel.lang as tkl
from turbine.kernel.trace.op import Op

OPS: dict[str, Any] = {
    name: value
    for name, value in vars(tkl).items()
    if isinstance(value, Op) or inspect.isfunction(value)
}
