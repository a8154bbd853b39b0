"""TK, the kernel language: `import turbine.kernel as tk, turbine.kernel.lang as tkl`."""

from turbine import needs_torch as needs_torch
from turbine.kernel import gen as gen
from turbine.kernel import lang as lang
from turbine.kernel.call.kernel import Kernel as Kernel
from turbine.kernel.inspection.call_report import explain as explain
from turbine.kernel.inspection.comparison import check as check
from turbine.kernel.lang.debugging import DEBUG as DEBUG
from turbine.kernel.lang.debugging import is_debug as is_debug
