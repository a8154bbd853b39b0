"""Artifacts load and run on numpy arrays in a Python that has no torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.odd_models.catalog import ODD
from turbine import dtypes

PREFIX = """
import sys
sys.modules["torch"] = None  # importing it raises ImportError
import ml_dtypes, numpy
import turbine
from turbine import errors
folder = sys.argv[1] + "/"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved artifacts of a few models."""
    folder = tmp_path_factory.mktemp("saved")
    for name in ("nested_tree", "mutates_input", "counter"):
        example = ODD[name]()
        output = turbine.aot.export(example.model, args=example.args, kwargs=example.kwargs)
        output.compile(folder / f"{name}.turbine")
    torch.manual_seed(0)
    linear = turbine.aot.export(nn.Linear(4, 3), args=(torch.ones(2, 4),))
    linear.compile(folder / "linear.turbine", archive=folder / "linear.irpa")
    turbine.aot.export(EveryDtype(), args=EveryDtype.arguments()).compile(folder / "dtypes.turbine")
    return folder


class EveryDtype(nn.Module):
    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return xs

    @staticmethod
    def arguments() -> tuple[Tensor, ...]:
        return tuple(torch.zeros(3, dtype=row.torch) for row in dtypes.TABLE)


def run(folder: Path, program: str) -> str:
    """What a program prints that runs without torch."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREFIX + textwrap.dedent(program), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_torch_cannot_be_imported(folder: Path) -> None:
    program = """
    try:
        import torch
    except ImportError:
        print("absent")
    """
    assert run(folder, program) == "absent\n"


def test_functions_that_need_torch_raise_an_error(folder: Path) -> None:
    program = """
    for name in ("aot", "ops", "kernel", "dynamo"):
        try:
            __import__("turbine." + name)
        except errors.MissingExtra as error:
            print(error.fact.partition(":")[0], "|", error.hint.partition(";")[0])
    try:
        turbine.aot
    except ImportError as error:
        print(type(error).__name__)
    """
    line = "this part of Turbine needs PyTorch, which cannot be imported | pip install torch\n"
    assert run(folder, program) == 4 * line + "MissingExtra\n"


def test_results_match_torch(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    numpy.save(folder / "x.npy", x.numpy())
    program = """
    artifact = turbine.load(folder + "linear.turbine")
    x = numpy.load(folder + "x.npy")
    results = [artifact(x), artifact(input=numpy.asfortranarray(x))]
    assert all(type(result) is numpy.ndarray for result in results)
    assert (results[0] == results[1]).all()
    numpy.save(folder + "y.npy", results[0])
    """
    run(folder, program)
    found = torch.from_numpy(numpy.load(folder / "y.npy"))
    torch.testing.assert_close(found, model(x).detach())


def test_nested_arguments_and_results_keep_their_structure(folder: Path) -> None:
    program = """
    artifact = turbine.load(folder + "nested_tree.turbine")
    ones = numpy.ones((3, 4), "float32")
    four = numpy.full(4, 4, "float32")
    tree = {"one": [(ones, ones)], "many": [(ones, ones), (ones, ones)]}
    result = artifact(tree, scale=four, shift=four)
    print({k: [[float(leaf[0, 0]) for leaf in pair] for pair in v] for k, v in result.items()})
    try:
        artifact(tree, scale=four, shift=four.astype("float64"))
    except errors.ArgumentError as error:
        print(error.fact)
    """
    assert run(folder, program).splitlines() == [
        "{'many': [[4.0, 5.0], [4.0, 5.0]], 'one': [[4.0, 5.0]]}",
        "argument 'shift' has dtype float64, expected float32",
    ]


def test_state_and_mutated_arrays_work(folder: Path) -> None:
    program = """
    counter = turbine.load(folder + "counter.turbine")
    zeros = numpy.zeros((3, 4), "float32")
    print([int(counter(zeros)[0, 0]) for _ in range(3)])
    writer = turbine.load(folder + "mutates_input.turbine")
    x = numpy.zeros((4, 3), "float32").T
    print(writer(x)[0, 0], x[0, 0])
    """
    assert run(folder, program) == "[1, 2, 3]\n2.0 1.0\n"


def test_every_dtype_is_supported(folder: Path) -> None:
    program = """
    from turbine import dtypes
    artifact = turbine.load(folder + "dtypes.turbine")
    arrays = [numpy.array([0, 1, 1]).astype(row.numpy) for row in dtypes.TABLE]
    for array, result in zip(arrays, artifact(*arrays)):
        assert result.dtype == array.dtype, (result.dtype, array.dtype)
        assert result.tobytes() == array.tobytes()
    print(len(arrays))
    """
    assert run(folder, program) == f"{len(dtypes.TABLE)}\n"


def test_the_command_line_runs_an_artifact(folder: Path) -> None:
    program = """
    from turbine.cli.main import main
    code = main(["run", folder + "linear.turbine", "--input", "2x4xf32=1", "--json"])
    sys.exit(code)
    """
    assert run(folder, program).startswith('[{"name": "result", "dtype": "float32"')
