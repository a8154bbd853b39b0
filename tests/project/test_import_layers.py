"""Imports under turbine/ point to lower layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheels.imports import Import, files_of, imports_of

pytestmark = pytest.mark.tiny

ROOT = Path(__file__).resolve().parents[2]

# Top to bottom. A room imports itself and any room on the floors below it.
FLOORS = (
    ("cli", "compat"),
    ("coverage", "fuzz"),
    ("eager",),
    ("aot", "dynamo"),
    ("page",),
    ("library",),
    ("kernel",),
    ("ops",),
    ("compiler", "runtime"),
    ("capture", "lower", "passes"),
    ("mlir",),
    ("facts",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Rooms of the kernel room, top to bottom; what is loose in it is above them all.
KERNEL_FLOORS = ("inspection", "tuning", "call", "backends", "program", "lang", "trace")
# Modules directly under turbine/ and the room each belongs to.
LOOSE = dict.fromkeys(
    (
        "errors",
        "config",
        "dtypes",
        "target",
        "signature",
        "pytree",
        "dims",
        "algebra",
        "dump",
        "fits",
        "tables",
        "packed_weights",
        "permissions",
        "progress",
        "child_processes",
        "extras",
        "needs_torch",
        "redirects",
        "renamed",
        "version",
        "whole_package",
    ),
    "facts",
) | {"__main__": "cli"}
ROOF = "turbine/__init__.py"
ZOO = "zoo"
# (importer, imported): neighbours on one floor where the first may use the second's data types.
MAY_USE_TYPES_OF = {("lower", "capture")}
# (file, imported): what a file may import inside a function or for types, against the table.
# Artifacts run where there is no compiler, so only Launchable.jit_compile imports it.
MAY_IMPORT_LATE = {
    ("turbine/runtime/launch.py", "turbine.compiler.pipeline"),
    ("turbine/kernel/call/kernel.py", "turbine.kernel.inspection.printer"),  # Kernel.text
    ("turbine/kernel/call/kernel.py", "turbine.kernel.tuning"),  # Kernel.tune
    # Types of names that redirects.OLD_NAMES finds.
    ("turbine/kernel/gen.py", "turbine.compat"),
    ("turbine/runtime/run_trace.py", "turbine.compat"),
}
# The one part of IREE each room may import; rooms not listed import none of it.
IREE_PART = {
    "mlir": "iree.compiler",
    "lower": "iree.compiler.extras",
    "compiler": "iree.compiler.api",
    "runtime": "iree.runtime",
    "compat": "iree",
}
# Artifacts load and run where torch is not installed, so these rooms import it late or not at all.
TORCH_FREE = {"facts", "compiler", "runtime"}
BRING_TORCH = ("torch", "iree.compiler.extras.fx_importer")
# Imported only once a torch tensor has been seen; others still may not import them at load.
AFTER_TORCH = (
    "turbine/runtime/cuda_tensors.py",
    "turbine/runtime/torch_buffers.py",
    "turbine/runtime/quick_call.py",
    "turbine/runtime/tensor_call.py",
)

House = dict[str, str]  # path from the repository root -> source text


def violations(house: House) -> list[str]:
    """Every import that breaks the table, as `file:line imports X (why)`."""
    imports = {path: imports_of(path, text) for path, text in house.items()}
    bringers = _files_that_bring_torch(imports)
    found = [f"{path}:1 has no floor (add it to FLOORS)" for path in house if not _is_placed(path)]
    for path, items in imports.items():
        if _is_placed(path):
            found += (
                f"{path}:{item.line} imports {item.name} ({why})"
                for item in items
                for why in _complaints(path, item, bringers)
            )
    return found


def _is_placed(path: str) -> bool:
    return path == ROOF or _room(path.removesuffix(".py").replace("/", ".")) != ROOF


def _room(name: str) -> str:
    """The package of a dotted name; other names belong to the top package."""
    first = f"{name}.".split(".")[1]
    room = LOOSE.get(first, first)
    return room if room in FLOOR_OF or room == ZOO else ROOF


def _complaints(path: str, item: Import, bringers: set[str]) -> Iterator[str]:
    room = ROOF if path == ROOF else _room(path.removesuffix(".py").replace("/", "."))
    if _is_within(item.name, "iree") and not _is_within(item.name, IREE_PART.get(room, "nothing")):
        yield "this part of IREE belongs to another room"
    late = (name for file, name in MAY_IMPORT_LATE if file == path)
    is_late = not item.at_load and any(_is_within(item.name, name) for name in late)
    direction = _wrong_direction(room, item.name) if _is_within(item.name, "turbine") else None
    direction = direction or _wrong_in_kernel(path, item.name)
    if direction is not None and not is_late:
        yield direction
    if room in TORCH_FREE and path not in AFTER_TORCH and _brings_torch(item, bringers):
        yield "torch at load"


def _wrong_direction(room: str, name: str) -> str | None:
    other = _room(name)
    if room in (ROOF, other):
        return None
    if ZOO in (room, other):
        return None if room == "cli" else "the zoo stands alone"
    if other == ROOF or FLOOR_OF[other] < FLOOR_OF[room]:
        return "upward"
    if FLOOR_OF[other] > FLOOR_OF[room]:
        return None
    is_type = name.rpartition(".")[2][0].isupper()
    return None if is_type and (room, other) in MAY_USE_TYPES_OF else "sideways"


def _wrong_in_kernel(path: str, name: str) -> str | None:
    """The same among the rooms of the kernel room."""
    inner, other = (part.split(".")[2:3] for part in (path.replace("/", "."), name))
    if not (_is_within(name, "turbine.kernel") and path.startswith("turbine/kernel/")):
        return None
    if not {*inner, *other} <= set(KERNEL_FLOORS):
        is_loose = not {*other} <= set(KERNEL_FLOORS) and {*inner} <= set(KERNEL_FLOORS)
        return "upward" if is_loose else None
    above = KERNEL_FLOORS.index(other[0]) < KERNEL_FLOORS.index(inner[0])
    return "upward" if above else None


def _files_that_bring_torch(imports: dict[str, list[Import]]) -> set[str]:
    """Files that import torch when loaded, themselves or through files they import."""
    bringers: set[str] = set()
    while more := {
        path
        for path, items in imports.items()
        if path not in bringers and any(_brings_torch(item, bringers) for item in items)
    }:
        bringers |= more
    return bringers


def _brings_torch(item: Import, bringers: set[str]) -> bool:
    if not item.at_load:
        return False
    if any(_is_within(item.name, library) for library in BRING_TORCH):
        return True
    return not bringers.isdisjoint(files_of(item.name))


def _is_within(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")


def test_every_import_points_down() -> None:
    house = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.glob("turbine/**/*.py"))
    }
    assert house
    found = violations(house)
    assert not found, "\n" + "\n".join(found)


FORBIDDEN = [
    ("mlir/x.py", "import turbine.cli.main", "imports turbine.cli.main (upward)"),
    ("mlir/x.py", "from ..cli import main", "imports turbine.cli.main (upward)"),
    ("ops/x.py", "from turbine import load", "imports turbine.load (upward)"),
    ("ops/x.py", "def f():\n    import turbine.aot", "imports turbine.aot (upward)"),
    ("errors.py", "from turbine.mlir import types", "imports turbine.mlir.types (upward)"),
    (
        "kernel/lang/x.py",
        "from turbine.kernel.program import facts",
        "imports turbine.kernel.program.facts (upward)",
    ),
    (
        "kernel/trace/x.py",
        "from turbine.kernel import gen",
        "imports turbine.kernel.gen (upward)",
    ),
    ("aot/x.py", "from turbine import dynamo", "imports turbine.dynamo (sideways)"),
    ("runtime/x.py", "import turbine.compiler", "imports turbine.compiler (sideways)"),
    ("compiler/x.py", "import turbine.runtime", "imports turbine.runtime (sideways)"),
    (
        "runtime/launch.py",
        "from turbine.compiler import pipeline",
        "imports turbine.compiler.pipeline (sideways)",
    ),
    (
        "runtime/launch.py",
        "def f():\n    from turbine.compiler import cache",
        "imports turbine.compiler.cache (sideways)",
    ),
    ("capture/x.py", "from turbine.lower.y import T", "imports turbine.lower.y.T (sideways)"),
    ("lower/x.py", "from turbine.capture.y import f", "imports turbine.capture.y.f (sideways)"),
    ("zoo/x.py", "import turbine.errors", "imports turbine.errors (the zoo stands alone)"),
    ("aot/x.py", "import turbine.zoo", "imports turbine.zoo (the zoo stands alone)"),
    (
        "compiler/x.py",
        "from iree.compiler import ir",
        "imports iree.compiler.ir (this part of IREE belongs to another room)",
    ),
    (
        "aot/x.py",
        "import iree.runtime as rt",
        "imports iree.runtime (this part of IREE belongs to another room)",
    ),
    ("dtypes.py", "import torch", "imports torch (torch at load)"),
    ("runtime/x.py", "try:\n    import torch\nfinally: ...", "imports torch (torch at load)"),
    (
        "compiler/x.py",
        "if TYPE_CHECKING: ...\nelse:\n    import torch",
        "imports torch (torch at load)",
    ),
]


@pytest.mark.parametrize(("path", "text", "complaint"), FORBIDDEN)
def test_a_planted_violation_is_reported(path: str, text: str, complaint: str) -> None:
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "import " in row)
    assert violations({f"turbine/{path}": text}) == [f"turbine/{path}:{line} {complaint}"]


ALLOWED = [
    ("__init__.py", "from turbine.aot import export as export"),
    ("__main__.py", "from turbine.cli.main import main"),
    ("cli/x.py", "from turbine.zoo import catalog\nfrom turbine import aot, dynamo, errors"),
    ("kernel/x.py", "import turbine.compiler, turbine.runtime, torch"),
    ("lower/x.py", "from turbine.capture.program import Program\nimport turbine.mlir"),
    ("lower/x.py", "from iree.compiler.extras.fx_importer import FxImporter"),
    ("compiler/x.py", "from iree.compiler import api\nfrom turbine.passes import pipeline"),
    ("runtime/x.py", "def f():\n    import torch\nif TYPE_CHECKING:\n    import torch"),
    ("runtime/launch.py", "def f():\n    from turbine.compiler import pipeline"),
    ("mlir/x.py", "from iree.compiler import ir\nfrom . import types\nimport torchvision, ireeish"),
    ("config.py", "from turbine import errors"),
]


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_a_downward_import_is_not_reported(path: str, text: str) -> None:
    assert violations({f"turbine/{path}": text}) == []


def test_indirect_imports_of_torch_are_found() -> None:
    house = {
        "turbine/mlir/__init__.py": "from turbine.mlir.add import add as add",
        "turbine/mlir/add.py": "import torch",
        "turbine/compiler/x.py": "from turbine.mlir.names import NAMES",
    }
    assert violations(house) == [
        "turbine/compiler/x.py:1 imports turbine.mlir.names.NAMES (torch at load)"
    ]


def test_unknown_packages_are_reported() -> None:
    assert violations({"turbine/attic/x.py": ""}) == [
        "turbine/attic/x.py:1 has no floor (add it to FLOORS)"
    ]
