"""The interpreter: a program with torch, each op by its meaning."""

from turbine.kernel.backends.interpret.memory import Memory as Memory
from turbine.kernel.backends.interpret.runner import run as run
from turbine.kernel.backends.interpret.runner import run_in_memory as run_in_memory
