"""All rules of the GPU backend."""

from turbine.kernel.backends.triton import atomics as atomics
from turbine.kernel.backends.triton import casting as casting
from turbine.kernel.backends.triton import control_flow as control_flow
from turbine.kernel.backends.triton import debugging as debugging
from turbine.kernel.backends.triton import memory as memory
from turbine.kernel.backends.triton import ordering as ordering
from turbine.kernel.backends.triton import pointwise as pointwise
from turbine.kernel.backends.triton import products as products
from turbine.kernel.backends.triton import reductions as reductions
from turbine.kernel.backends.triton import scans as scans
from turbine.kernel.backends.triton import views as views
from turbine.kernel.backends.triton.emitter import RULES as RULES
