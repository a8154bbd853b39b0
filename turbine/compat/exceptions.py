"""Errors under the names of iree-turbine."""

from turbine.errors import ArgumentError as UnsupportedTorchDeviceError
from turbine.errors import ArgumentError as UnsupportedTypeError
from turbine.errors import DeviceError as MismatchedDeviceSetClearError
from turbine.errors import DeviceError as NoCurrentDeviceError
from turbine.errors import ExportError as ApiSequencingError
from turbine.errors import TurbineError as GeneralError
from turbine.errors import UnsupportedDtype as UnknownDTypeError

__all__ = [
    "ApiSequencingError",
    "GeneralError",
    "MismatchedDeviceSetClearError",
    "NoCurrentDeviceError",
    "UnknownDTypeError",
    "UnsupportedTorchDeviceError",
    "UnsupportedTypeError",
]
