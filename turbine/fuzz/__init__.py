"""Random programs, compiled and compared with eager PyTorch."""

from turbine.fuzz.session import Finding as Finding
from turbine.fuzz.session import fuzz as fuzz
