"""The wheels of turbine-runtime and turbine: what is in them, and that each installs alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

import turbine
from turbine.cli.main import verbs
from wheels import split
from wheels.imports import imports_of

ROOT = Path(__file__).resolve().parents[2]
# What a build reads.
SOURCES = ("pyproject.toml", "LICENSE", "turbine", "shark_turbine", "iree")
# What distributions of dependencies call the modules that the runtime imports.
MODULES = {"iree-base-runtime": "iree.runtime", "ml_dtypes": "ml_dtypes", "numpy": "numpy"}
TEST_TOOLS = r"^\s*(import|from) (pytest|hypothesis|filecheck|expecttest|tests)\b"


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment with one or both wheels, and links to what they depend on."""

    folder: Path

    @property
    def packages(self) -> Path:
        """Where its packages are."""
        (found,) = self.folder.glob("lib/*/site-packages")
        return found

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment."""
        command = [str(self.folder / "bin" / words[0]), *words[1:]]
        settings = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        # Python looks for modules in the folder that it is started in, which must not be ours.
        return subprocess.run(
            command, cwd=self.folder, env=settings, capture_output=True, text=True, timeout=120
        )

    def output(self, program: str) -> str:
        """What a Python program prints."""
        ended = self.run("python", "-W", "error", "-c", program)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels, built as `make wheel` does from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
        else:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "complete", ".")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *options]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
    (complete,) = (source / "complete").glob("*.whl")
    return split.split(complete, source / "dist")


@pytest.fixture(scope="module")
def runtime(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """turbine-runtime alone, with its dependencies and nothing else."""
    made = _install(tmp_path_factory.mktemp("runtime"), built[:1])
    for name in split.REQUIRES:
        for file in distribution(name).files or ():
            _link(Path(str(file)), Path(str(file.locate())), made.packages)
    return made


@pytest.fixture(scope="module")
def whole(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Both wheels, and all packages of this environment."""
    made = _install(tmp_path_factory.mktemp("whole"), built)
    shared = distribution("torch").locate_file("")
    (made.packages / "shared.pth").write_text(f"{shared}\n")
    return made


@pytest.fixture(scope="module")
def model(whole: Environment) -> Path:
    """An artifact that the whole package compiled."""
    words = ("compile", "torch.nn:ReLU", "--input", "2x3xf32", "-o", "relu.turbine")
    ended = whole.run("turbine", *words)
    assert (ended.returncode, ended.stdout) == (0, "relu.turbine\n"), ended.stderr
    return whole.folder / "relu.turbine"


def _install(folder: Path, wheels: list[Path]) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    subprocess.run([*pip, *map(str, wheels)], check=True, capture_output=True, timeout=120)
    return Environment(folder)


def _link(name: Path, file: Path, packages: Path) -> None:
    link = packages / name
    if ".." not in name.parts and not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())


def _sources() -> dict[str, bytes]:
    folders = ("turbine", "shark_turbine", "iree")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    kept = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in kept}


def _imports_at_load(files: set[str], sources: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for path in files:
        if path.endswith(".py"):
            for item in imports_of(path, sources[path].decode()):
                if item.at_load:
                    yield path, item.name


def test_the_runtime_has_what_it_imports_and_no_compiler() -> None:
    sources = _sources()
    files = split.runtime_files(sources)
    rooms = {path.split("/")[1] for path in files if path.count("/") > 1}
    assert rooms == {"cli", "runtime"}
    assert {"turbine/py.typed", "turbine/cli/run.py", "turbine/cli/bench.py"} <= files
    assert {"turbine/cli/inspect.py", "turbine/cli/profile.py"} <= files
    assert files.isdisjoint({"turbine/cli/compile.py", "turbine/cli/toolchain.py"})
    runtime_room = {path for path in sources if path.startswith("turbine/runtime/")}
    assert runtime_room <= files


def test_the_runtime_loads_nothing_beyond_its_requirements() -> None:
    sources = _sources()
    files = split.runtime_files(sources)
    allowed = (*sys.stdlib_module_names, *(MODULES[name] for name in split.REQUIRES))
    # PyTorch's tensors are taken where the caller has it: imported once one is seen.
    after_torch = {f"turbine/runtime/{name}.py" for name in AFTER_TORCH}
    foreign = [
        (path, name)
        for path, name in _imports_at_load(files, sources)
        if not name.startswith("turbine.")
        and not f"{name}.".startswith(tuple(f"{module}." for module in allowed))
        and not (name.startswith("torch") and path in after_torch)
    ]
    assert foreign == []


AFTER_TORCH = ("torch_buffers", "cuda_tensors", "quick_call", "tensor_call")


def test_an_import_in_a_function_is_followed_only_below_the_runtime() -> None:
    files = {
        "turbine/__init__.py": b"",
        "turbine/errors.py": b"",
        "turbine/fits.py": b"",
        "turbine/ops/__init__.py": b"",
        "turbine/runtime/__init__.py": b"def f():\n    from turbine import errors, ops",
        "turbine/runtime/data.bin": b"",
        "turbine/ops/data.bin": b"",
    }
    assert split.runtime_files(files) == {
        "turbine/__init__.py",
        "turbine/errors.py",
        "turbine/runtime/__init__.py",
        "turbine/runtime/data.bin",
    }


def test_no_file_is_in_both_wheels_and_none_is_lost(built: list[Path]) -> None:
    runtime, rest = (split.read(path) for path in built)
    assert not set(runtime.files) & set(rest.files)
    assert {*runtime.files, *rest.files} == set(_sources())


def test_the_wheels_hold_no_test_code(built: list[Path]) -> None:
    for path in built:
        for file, data in split.read(path).files.items():
            assert not {"tests", "conftest.py"} & set(file.split("/")), file
            assert not re.search(TEST_TOOLS, data.decode(), re.M), file


def test_the_whole_package_depends_on_the_runtime_of_its_version(built: list[Path]) -> None:
    runtime, rest = (split.read(path) for path in built)
    version = turbine.__version__
    assert f"Requires-Dist: turbine-runtime=={version}".encode() in rest.info["METADATA"]
    lines = runtime.info["METADATA"].decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist" in line]
    assert [text.partition("<")[0] for text in required] == [
        *split.REQUIRES,
        'gguf; extra == "gguf"',
    ]
    assert "Name: turbine-runtime" in lines
    assert f"Version: {version}" in lines


def test_the_dockerfile_copies_all_that_the_build_needs() -> None:
    lines = (ROOT / "examples" / "deploy" / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--" not in line]
    copied = {name for names in copies for name in names}
    assert copied == {*SOURCES, "wheels"}


def test_the_runtime_runs_an_artifact(runtime: Environment, model: Path) -> None:
    program = f"""
import importlib.util, numpy, turbine
print([n for n in ("torch", "iree.compiler") if importlib.util.find_spec(n) is not None])
relu = turbine.load({str(model)!r})
print(relu.signature.text())
print(relu(numpy.float32([[-1, 0, 1], [2, -2, 3]])).tolist())
"""
    assert runtime.output(program).splitlines() == [
        "[]",
        "(input: float32[2, 3]) -> float32[2, 3]",
        "[[0.0, 0.0, 1.0], [2.0, 0.0, 3.0]]",
    ]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "words", [["run"], ["bench", "--seconds", "0"], ["profile"], ["inspect", "--verify"]], ids=str
)
def test_the_runtime_has_its_commands(words: list[str], runtime: Environment, model: Path) -> None:
    ended = runtime.run("turbine", *words, str(model))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_doctor_examines_the_runtime_alone(runtime: Environment) -> None:
    doctor = runtime.run("turbine", "doctor")
    assert doctor.returncode == 0
    assert "the runtime alone" in doctor.stdout


def test_what_the_runtime_lacks_is_an_error_with_a_remedy(runtime: Environment) -> None:
    program = """
import turbine
from turbine import errors
for line in ("import turbine.aot", "from turbine import ops", "turbine.explain",
             "from turbine.kernel import lang"):
    try:
        exec(line)
    except errors.MissingExtra as error:
        print(error.fact.partition(",")[0], "|", error.hint)
try:
    turbine.runtime.Launchable.jit_compile("module {}").preload("local-sync")
except errors.MissingExtra as error:
    print(error.fact, "|", error.hint.partition(",")[0])
print(hasattr(turbine, "nothing"))
"""
    line = "turbine.{} is not part of turbine-runtime | pip install turbine"
    assert runtime.output(program).splitlines() == [
        *(line.format(name) for name in ("aot", "ops", "dynamo", "kernel")),
        "no compiler is installed | pip install turbine",
        "False",
    ]
    ended = runtime.run("turbine", "compile", "turbine.zoo:mlp")
    assert ended.returncode == 2
    assert "pip install turbine adds the verbs that compile" in ended.stderr


def test_the_whole_package_has_every_verb(whole: Environment) -> None:
    shown = whole.run("turbine", "--help").stdout
    assert all(f"\n    {verb} " in shown for verb in verbs())
    assert "pip install" not in shown
