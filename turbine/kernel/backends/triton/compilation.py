"""Compile Triton source: code and a target in, a compiled kernel out; Triton keeps it on disk."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Collection
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

from turbine import errors
from turbine.kernel.backends.triton.module import Argument, Code

# Pointers and integers that Triton knows to be multiples of this are read in wide accesses.
ALIGNMENT = 16
_WARP = 32


def import_triton() -> Any:
    """Triton, or how to get it."""
    try:
        import triton
    except ImportError as error:
        raise errors.KernelError(
            f"kernels for GPUs are compiled by Triton, which cannot be imported: {error}",
            hint="pip install turbine[cuda]; or run the kernel on the CPU",
        ) from error
    return triton


class _Loader(SourceLoader):
    """Imports the source of a kernel as a module."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def get_filename(self, fullname: str) -> str:
        """The name by which Triton finds the source."""
        return self.file

    def get_data(self, path: str) -> bytes:
        """The source."""
        return self.text.encode()


def load_function(code: Code) -> Any:
    """Import the source of a kernel; returns its function, as Triton's decorator makes it."""
    import_triton()
    digest = hashlib.sha256(code.text.encode()).hexdigest()[:16]
    file = f"<turbine kernel {code.name} {digest}>"
    # Triton reads the source of its functions again, from here.
    linecache.cache[file] = (len(code.text), None, code.text.splitlines(keepends=True), file)
    loader = _Loader(code.text, file)
    spec = ModuleSpec(f"turbine_kernel_{code.name}_{digest}", loader, origin=file)
    module = module_from_spec(spec)
    loader.exec_module(module)
    return vars(module)[code.name]


def current_target() -> Any:
    """The current GPU, as Triton names it."""
    import_triton()
    from triton.runtime import driver

    return driver.active.get_current_target()


def shared_bytes(device: int) -> int:
    """The shared memory that a program has on a GPU."""
    import_triton()
    from triton.runtime import driver

    found: int = driver.active.utils.get_device_properties(device)["max_shared_mem"]
    return found


def nvidia_target(capability: int) -> Any:
    """A GPU by its compute capability, 90 for sm_90."""
    import_triton()
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability, _WARP)


def compile_code(code: Code, target: Any, aligned: Collection[Argument]) -> Any:
    """Compile for a GPU of Triton's; the arguments in `aligned` are multiples of 16."""
    triton = import_triton()
    from triton.compiler import ASTSource

    signature = {argument.name: argument.type for argument in code.arguments}
    attributes = {
        (place,): [["tt.divisibility", ALIGNMENT]]
        for place, argument in enumerate(code.arguments)
        if argument in aligned
    }
    source = ASTSource(load_function(code), signature, {}, attributes)
    options = {"num_warps": code.schedule.warps, "num_stages": code.schedule.stages}
    try:
        return triton.compile(source, target, options)
    except Exception as error:  # of many types of Triton and LLVM
        name = f"{target.backend}:{target.arch}"
        raise errors.KernelError(
            f"Triton does not compile kernel {code.name} for {name}: {error}",
            hint="kernel.text('triton') is the source; smaller blocks need less memory",
        ) from error
