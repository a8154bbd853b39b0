"""The verbs that turbine-runtime lacks: those that compile, or need what compiles."""

from __future__ import annotations

from turbine.cli.cache import show_cache
from turbine.cli.compile import compile_model
from turbine.cli.coverage import show_coverage
from turbine.cli.explain import explain_program
from turbine.cli.fuzz import fuzz_programs
from turbine.cli.opt import transform_ir
from turbine.cli.options import Verb

VERBS: dict[str, Verb] = {
    "compile": compile_model,
    "explain": explain_program,
    "opt": transform_ir,
    "cache": show_cache,
    "coverage": show_coverage,
    "fuzz": fuzz_programs,
}
