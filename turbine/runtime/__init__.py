"""Run compiled code: devices, programs without a signature, and traces of what they do."""

from turbine import renamed
from turbine.runtime.device import Device as Device
from turbine.runtime.device import get_vm_instance as get_vm_instance
from turbine.runtime.launch import Launchable as Launchable

__getattr__ = renamed.modules(__name__, {"tracing": "run_trace"})
