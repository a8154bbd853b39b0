"""All rules of the CPU backend."""

from turbine.kernel.backends.iree import atomics as atomics
from turbine.kernel.backends.iree import control_flow as control_flow
from turbine.kernel.backends.iree import debugging as debugging
from turbine.kernel.backends.iree import memory as memory
from turbine.kernel.backends.iree import ordering as ordering
from turbine.kernel.backends.iree import pointwise as pointwise
from turbine.kernel.backends.iree import products as products
from turbine.kernel.backends.iree import reductions as reductions
from turbine.kernel.backends.iree import scans as scans
from turbine.kernel.backends.iree import views as views
from turbine.kernel.backends.iree.emitter import RULES as RULES
