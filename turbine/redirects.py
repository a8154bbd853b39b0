"""Imports under the names of iree-turbine: an old path in, a module of Turbine's out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from turbine import errors

# Old path below a root (`iree.turbine`, `shark_turbine`) -> our module. What has no row of its own
# but is below one is looked for below our module: aot.output is turbine.aot.output.
MOVED = {
    "aot": "turbine.aot",
    "aot.build_actions": "turbine.compat.build_actions",
    "aot.builtins": "turbine.compat.builtins",
    "aot.builtins.globals": "turbine.aot.globals",
    "aot.builtins.jittable": "turbine.aot.jittable",
    "aot.decompositions": "turbine.capture.decompositions",
    "aot.exporter": "turbine.aot.exporter",
    "aot.params": "turbine.aot.parameters",
    "aot.passes": "turbine.compat.functionalization",
    "aot.support.ir_utils": "turbine.compat.ir_utils",
    "aot.support.procedural": "turbine.compat.procedural",
    "aot.tensor_traits": "turbine.capture.traits",
    "dynamo": "turbine.dynamo",
    "dynamo.backends.base": "turbine.dynamo.entry",
    "dynamo.backends.cpu": "turbine.dynamo.entry",
    "dynamo.decompositions": "turbine.compat.decompositions",
    "dynamo.passes": "turbine.compat.decompositions",
    "importers.ir": "turbine.compat.ir",
    "importers.utils": "turbine.compat.importers",
    "kernel": "turbine.kernel",
    "kernel._support.indexing": "turbine.kernel.trace.tracer",
    "kernel._support.tracing": "turbine.compat.kernel_tracing",
    "ops": "turbine.ops",
    "ops.conv_fwd": "turbine.ops.convolution",
    "ops.insert_slice": "turbine.ops.slices",
    "ops.iree": "turbine.ops",
    "runtime": "turbine.runtime",
    "runtime.invoke": "turbine.compat.invoke",
    "runtime.op_reg": "turbine.compat.op_reg",
    "runtime.tracing": "turbine.runtime.run_trace",
    "support.conversions": "turbine.compat.conversions",
    "support.debugging": "turbine.compat.debugging",
    "support.exceptions": "turbine.compat.exceptions",
    "support.ir_imports": "turbine.compat.ir",
    "support.logging": "turbine.compat.logging",
    "support.tools": "turbine.compat.tools",
    "transforms.builder": "turbine.compat.builder",
    "transforms.general.add_metadata": "turbine.compat.add_metadata",
    "transforms.general.custom_op_expansion": "turbine.compat.custom_op_expansion",
    "transforms.general.rename_parameters": "turbine.compat.rename_parameters",
    "transforms.merger": "turbine.compat.merger",
    "transforms.quantization.mm_group_quant": "turbine.compat.mm_group_quant",
    "transforms.rewriter": "turbine.compat.rewriter",
}
# Old path -> why there is nothing, there and below.
ABSENT = {
    "kernel.boo": "Turbine has no bag of ops; torch.compile(model, backend='turbine') leaves to "
    "PyTorch what it does not compile",
    "kernel.compiler": "turbine.kernel compiles kernels; kernel.text('mlir') gives their code",
    "kernel.lang.global_symbols": "it is left from Wave, a project of its own, iree-org/wave",
    "kernel.lang.tkw_types": "it is left from Wave, a project of its own, iree-org/wave",
    "kernel.ops": "turbine.kernel.lang has the ops of kernels; those of Wave are in a project of "
    "its own, iree-org/wave",
    "kernel.wave": "Wave is a project of its own, iree-org/wave",
    "dynamo.backends.boo": "torch.compile(model, backend='turbine') leaves to PyTorch what it "
    "does not compile",
    "runtime.op_reg.compiler": "ops compile on their first call; runtime.op_reg."
    "FreeFuncKernelBuilder.create_module gives the IR of a kernel",
    "tools": "Turbine has no interpreter of MLIR; iree-compile and iree-run-module execute IR",
}
# Our module -> names of iree-turbine that it also has -> the module that defines them, imported on
# first use.
OLD_NAMES = {
    "turbine.kernel.gen": {
        "TestLaunchContext": "turbine.compat.kernel_tracing",
        "Thread": "turbine.compat.kernel_threads",
        "thread": "turbine.compat.kernel_threads",
    },
    "turbine.runtime.run_trace": {
        "DirectoryTracer": "turbine.compat.runtime_tracer",
        "RuntimeTracer": "turbine.compat.runtime_tracer",
        "tracer": "turbine.compat.runtime_tracer",
    },
}
_SHELVES = {old[:at] for old in MOVED for at, letter in enumerate(old) if letter == "."} - {*MOVED}


def install(root: str) -> None:
    """Let imports below a root find our modules."""
    finder = Redirects(root)
    if finder not in sys.meta_path:
        # First, as Python would otherwise load our files again under the old names.
        sys.meta_path.insert(0, finder)


def old_names(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module of ours that has a row in `OLD_NAMES`."""
    homes = OLD_NAMES[module]

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return find, list_names


@dataclass(frozen=True)
class Redirects(MetaPathFinder):
    """Answers for every path below a root, with an error where there is nothing."""

    root: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to import an old path; None for paths that are not below the root."""
        if not fullname.startswith(f"{self.root}."):
            return None
        old = fullname.removeprefix(f"{self.root}.")
        if old in _SHELVES:
            return ModuleSpec(fullname, None, is_package=True)
        ours = _spec_of_ours(old)
        if ours is None:
            near = get_close_matches(fullname, [f"{self.root}.{path}" for path in MOVED], cutoff=0)
            raise errors.UnknownModule(
                f"no module named {fullname!r}: {_why_absent(old)}",
                hint=f"nearest: {', '.join(near)}; docs/moving_over.md lists old and new names",
            )
        is_package = ours.submodule_search_locations is not None
        return ModuleSpec(fullname, _Redirect(old, ours), origin=ours.name, is_package=is_package)


@dataclass(frozen=True)
class _Redirect(InspectLoader):
    old: str
    ours: ModuleSpec

    def exec_module(self, module: ModuleType) -> None:
        """Put our module in the place of the empty one that Python made."""
        ours = sys.modules[module.__name__] = import_module(self.ours.name)
        # `from root.aot import params` asks our module, which calls it by another name.
        for child in _children(self.old):
            before = vars(ours).get(child)
            import_module(f"{module.__name__}.{child}")
            # Python binds the child in our module, where an op or function may have its name.
            if before is not None and not isinstance(before, ModuleType):
                setattr(ours, child, before)

    def get_code(self, fullname: str) -> CodeType | None:
        """What `python -m` runs."""
        loader = self.ours.loader
        return loader.get_code(self.ours.name) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        """The text of our module."""
        loader = self.ours.loader
        return loader.get_source(self.ours.name) if isinstance(loader, InspectLoader) else None


def _spec_of_ours(old: str) -> ModuleSpec | None:
    row = next((path for path in _upward(old) if path in MOVED or path in ABSENT), None)
    if row not in MOVED:
        return None
    ours = MOVED[row] + old.removeprefix(row)
    try:
        return find_spec(ours)
    except ModuleNotFoundError as error:
        # A folder above it that is not there; or a library that is not installed, such as torch.
        if error.name is None or not ours.startswith(error.name):
            raise
        return None


def _why_absent(old: str) -> str:
    row = next((path for path in _upward(old) if path in ABSENT), None)
    if row is None:
        return "Turbine has nothing in its place"
    # Python imports a package before what is in it, so the package speaks for both.
    below = (f"{path}: {why}" for path, why in ABSENT.items() if path.startswith(f"{row}."))
    return "; ".join([ABSENT[row], *below])


def _upward(path: str) -> Iterator[str]:
    """A path and those it is below, the longest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _children(old: str) -> list[str]:
    below = (path.removeprefix(f"{old}.") for path in MOVED if path.startswith(f"{old}."))
    return list(dict.fromkeys(path.partition(".")[0] for path in below))
