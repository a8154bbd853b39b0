"""The interpreter: runs each op of a program with torch."""

from turbine.kernel.backends.interpret.memory import Memory as Memory
from turbine.kernel.backends.interpret.runner import run as run
from turbine.kernel.backends.interpret.runner import run_in_memory as run_in_memory
