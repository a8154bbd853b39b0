"""Errors for common user mistakes: what failed, where, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import turbine
from tests.models import Fn, compiled
from turbine import errors
from turbine.mlir import context
from turbine.ops import schema
from turbine.passes.merge import Merge
from turbine.passes.rename_parameters import RenameParameters
from turbine.runtime import Device, Launchable

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)
HERE = Path(__file__).name
HERE_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mistake:
    """A call that fails; `line` is text of the line of this file that the message points at."""

    call: Callable[[], object]
    kind: type[Exception]
    what: str
    how: str = ""
    line: str = ""


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # a branch on data
            return x + 1
        return x - 1


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum().item())):  # a loop over data
            x = x + 1
        return x


class Asserting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert (x > 0).all()  # an assertion on data
        return x


class DrawingInBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def noisy(y: Tensor) -> Tensor:
            return y + torch.rand_like(y)

        y: Tensor = torch.cond(x.sum() > 0, noisy, torch.neg, (x,))  # noise in a branch
        return y


class WithNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(x.numpy().tobytes()[0])  # numpy in a model


class Raising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("negative input")  # an error of the model's


class WrongShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x  # shapes that do not fit


class TwoDtypes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(3, 2, dtype=torch.float16)  # two dtypes


class Sparse(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.sparse.mm(x.to_sparse(), x.t())  # a sparse tensor


class Eigenvalues(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.linalg.eigvals(x)  # an op without a definition


class SymmetricFactor(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.linalg.ldl_factor(x)  # a factorization without a definition


def _export(model: nn.Module, *args: Any, **options: Any) -> turbine.aot.ExportOutput:
    return turbine.aot.export(model, args=args or (X,), **options)


def _linear() -> nn.Linear:
    return nn.Linear(3, 2)


@cache
def _artifact() -> turbine.Artifact:
    return compiled(lambda x: x + 1, X)


def _call(*args: Any, **kwargs: Any) -> object:
    return _artifact()(*args, **kwargs)


def _add_twice() -> None:
    builder = turbine.aot.ParameterArchiveBuilder()
    builder.add_module(_linear())
    builder.add_module(_linear())


Dim = torch.export.Dim
WHERE = "torch.where"
FORWARD = "example arguments for the model's forward"
MISTAKES = {
    # What a model does.
    "branch": Mistake(
        lambda: _export(Branching()), errors.ExportError, "data-dependent", WHERE, "a branch on"
    ),
    "loop": Mistake(
        lambda: _export(Counting()), errors.ExportError, "data-dependent", "int", "a loop over"
    ),
    "assert": Mistake(
        lambda: _export(Asserting()), errors.ExportError, "data-dependent", WHERE, "an assertion"
    ),
    "noise in a branch": Mistake(
        lambda: _export(DrawingInBranch()),
        errors.UnsupportedOp,
        "aten.rand_like.default draws random numbers in a branch",
        "draw them outside",
        "noise in a branch",
    ),
    "no lowering": Mistake(
        lambda: compiled(torch.linalg.qr, torch.eye(2, dtype=torch.complex64)),
        errors.UnsupportedOpInIR,
        "no lowering for torch.aten.linalg_qr",
        "extend_aot_decompositions",
    ),
    "numpy": Mistake(
        lambda: _export(WithNumpy()), errors.ExportError, ".numpy()", "torch's", "numpy in a model"
    ),
    "raise": Mistake(
        lambda: _export(Raising()), errors.ExportError, "negative input", "chained", "an error of"
    ),
    "shape": Mistake(
        lambda: _export(WrongShape()), errors.ExportError, "[2, 3]", "chained", "that do not fit"
    ),
    "dtypes": Mistake(
        lambda: _export(TwoDtypes()), errors.ExportError, "float16", "one dtype", "two dtypes"
    ),
    "half": Mistake(
        lambda: _export(_linear().half()), errors.ExportError, "float16, float32", "one dtype"
    ),
    "sparse": Mistake(
        lambda: _export(Sparse()), errors.UnsupportedOp, "sparse_coo", "to_dense", "a sparse"
    ),
    "bits": Mistake(
        lambda: _export(Fn(lambda x: x), X.to(torch.float8_e4m3fn).view(torch.bits8)),
        errors.UnsupportedDtype,
        "bits8",
        "x.to(torch.float32)",
    ),
    "eigenvalues": Mistake(
        lambda: _export(Eigenvalues(), torch.eye(3)).compile(),
        errors.UnsupportedOp,
        "linalg_eig",
        "extend_aot_decompositions",
        "an op without",
    ),
    "factorization": Mistake(
        lambda: _export(SymmetricFactor(), torch.eye(3)).compile(),
        errors.UnsupportedOp,
        "linalg_ldl_factor_ex",
        "extend_aot_decompositions",
        "a factorization without",
    ),
    # How it is exported.
    "function": Mistake(lambda: turbine.aot.export(torch.sin), errors.ExportError, "nn.Module"),  # type: ignore[arg-type]
    "class": Mistake(lambda: turbine.aot.export(nn.Linear), errors.ExportError, "class Linear"),  # type: ignore[arg-type]
    "no arguments": Mistake(
        lambda: turbine.aot.export(_linear()), errors.ExportError, "'input'", FORWARD
    ),
    "another keyword": Mistake(
        lambda: turbine.aot.export(_linear(), kwargs={"x": X}),
        errors.ExportError,
        "'input'",
        FORWARD,
    ),
    "a list": Mistake(
        lambda: turbine.aot.export(_linear(), args=[X]),  # type: ignore[arg-type]
        errors.ExportError,
        "expected a tuple",
        "args=(x,)",
    ),
    "an array": Mistake(
        lambda: _export(_linear(), X.numpy()), errors.ExportError, "ndarray", "torch.from_numpy"
    ),
    "an object": Mistake(
        lambda: _export(Fn(lambda x, y: x), X, object()), errors.ExportError, "object", "tensors"
    ),
    "an object returned": Mistake(
        lambda: _export(Fn(lambda x: (x, object()))), errors.ExportError, "object", "return tensors"
    ),
    "meta weights": Mistake(
        lambda: _export(nn.Linear(3, 2, device="meta")), errors.ExportError, "meta", "one device"
    ),
    "scripted": Mistake(
        lambda: _export(torch.jit.trace(_linear(), X)), errors.ExportError, "Script", "nn.Module"
    ),
    "dynamic_shapes by another name": Mistake(
        lambda: _export(_linear(), dynamic_shapes={"x": {0: Dim("batch")}}),
        errors.ExportError,
        "['input']",
        "one entry for each argument",
    ),
    "a fixed size left open": Mistake(
        lambda: _export(_linear(), dynamic_shapes={"input": {1: Dim("width")}}),
        errors.ExportError,
        "width",
        "fixes a size",
    ),
    "weights=state_dict": Mistake(
        lambda: _export(_linear(), weights=_linear().state_dict()),
        errors.ConfigError,
        "weights is a OrderedDict, expected one of 'external', 'global', 'inline'",
        "load_state_dict",
    ),
    "weights=extern": Mistake(
        lambda: _export(_linear(), weights="extern"), errors.ConfigError, "valid: external"
    ),
    "target=gpu": Mistake(
        lambda: _export(_linear()).compile(target="gpu"), errors.UnknownTarget, "valid: cpu, "
    ),
    "target=device": Mistake(
        lambda: _export(_linear()).compile(target=torch.device("cpu")),  # type: ignore[arg-type]
        errors.UnknownTarget,
        "target is a device",
        'target="cpu"',
    ),
    "strategy=O3": Mistake(
        lambda: _export(_linear()).compile(strategy="O3"),
        errors.ConfigError,
        "valid: auto, isolated",
    ),
    "archive= alone": Mistake(
        lambda: _export(_linear()).compile(archive="weights.irpa"),
        errors.ConfigError,
        "archive= needs save_to=",
        'save_to="model.turbine"',
    ),
    "no folder to save in": Mistake(
        lambda: _export(_linear()).compile("absent/x.turbine"),
        errors.ArtifactError,
        "no folder absent",
        "mkdir -p absent",
    ),
    "programs under another name": Mistake(
        lambda: turbine.aot.FxPrograms.load("programs.pt2"),
        errors.ExportError,
        "'programs.pt2'",
        "call it programs.json",
    ),
    "a program without its module": Mistake(
        lambda: turbine.aot.FxProgramsBuilder(_linear()).export_program(_linear),
        errors.ExportError,
        "takes no argument",
        "(module, ...)",
    ),
    "a global both ways": Mistake(
        lambda: turbine.aot.export_global(X, external=True, uninitialized=True),
        errors.ProcedureError,
        "both external and uninitialized",
        "leave one of them out",
    ),
    "a pass of a jittable": Mistake(
        lambda: turbine.aot.jittable(passes=["inline"])(torch.sin),
        errors.ProcedureError,
        "unknown pass of a jittable 'inline'",
        "leave passes= out",
    ),
    "a state_dict for a module": Mistake(
        lambda: turbine.aot.ParameterArchiveBuilder().add_module(_linear().state_dict()),  # type: ignore[arg-type]
        errors.ParameterError,
        "OrderedDict is not an nn.Module",
        "add_tensor(name, tensor)",
    ),
    "a tensor for its name": Mistake(
        lambda: turbine.aot.ParameterArchiveBuilder().add_tensor(3, X),  # type: ignore[arg-type]
        errors.ParameterError,
        "3 is not a name",
        "pass the name first",
    ),
    "a module added twice": Mistake(
        _add_twice, errors.ParameterError, "added twice: weight", "prefix= for add_module"
    ),
    # How IR is read and transformed.
    "no file of IR": Mistake(
        lambda: context.read(Path("absent.mlir")), errors.CompileError, "absent.mlir", "MLIR text"
    ),
    "a pipeline": Mistake(
        lambda: context.run_pipeline(context.parse(""), "canonicalise"),
        errors.CompileError,
        "the pipeline canonicalise does not parse",
        "builtin.module(canonicalize, cse)",
    ),
    "half a rename": Mistake(
        lambda: Merge.parse("in.mlir,main"),
        errors.TransformError,
        "'main' is not OLD=NEW",
        "--merge other.mlir,old=new",
    ),
    "a rename of inline weights": Mistake(
        lambda: RenameParameters({"a": "b"}).run(context.parse("")),
        errors.TransformError,
        "none at all",
        'weights="external"',
    ),
    "a rename of no weight": Mistake(
        lambda: _export(_linear()).transform(RenameParameters({"w": "b"})),
        errors.TransformError,
        "unknown parameter 'w'",
        "missing_ok=True",
    ),
    # How an op is declared.
    "two arguments of one name": Mistake(
        lambda: schema.parse("demo::f(Tensor x, Tensor x) -> Tensor"),
        errors.CustomOpError,
        "two arguments are called x",
        "a name of its own",
    ),
    "a list of lists": Mistake(
        lambda: schema.parse("demo::f(Tensor[][] x) -> Tensor"),
        errors.CustomOpError,
        "lists of lists",
        "one flat list",
    ),
    "results unlike the schema's": Mistake(
        lambda: schema.parse("demo::f(Tensor x) -> (Tensor, Tensor)").check_results(X),
        errors.CustomOpError,
        "returned 1 results, its schema has 2",
        "the schema is f(Tensor x) -> (Tensor, Tensor)",
    ),
    "turbine.compile": Mistake(
        lambda: turbine.compile(_linear()),
        AttributeError,
        "'compile'",
        'torch.compile(model, backend="turbine")',
    ),
    # How it is loaded and called.
    "no file": Mistake(
        lambda: turbine.load("nothing.turbine"), errors.ArtifactError, "nothing.", "save_to="
    ),
    "no file of code": Mistake(
        lambda: Launchable.from_file("nothing.vmfb"), errors.ArtifactError, "cannot read", ".vmfb"
    ),
    "code without bytes": Mistake(
        lambda: Launchable.from_bytes(b""),
        errors.ArtifactError,
        "the code is empty",
        "compile the file",
    ),
    "no folder of code": Mistake(
        lambda: Launchable.from_file_cache_only("nowhere"),
        errors.ArgumentError,
        "no folder at nowhere",
        "jit_compile",
    ),
    "a module for its text": Mistake(
        lambda: Launchable.jit_compile(Path("x.mlir")),  # type: ignore[arg-type]
        errors.ArgumentError,
        "expected MLIR",
        "read_bytes()",
    ),
    "no device": Mistake(Device, errors.ArgumentError, "one of uri", 'Device("local-task")'),
    "no archive": Mistake(
        lambda: turbine.aot.ParameterArchive(HERE_FOLDER / "none.irpa"),
        errors.ParameterError,
        "no archive at",
        "archives in that folder: none",
    ),
    "another file": Mistake(
        lambda: turbine.load(__file__), errors.ArtifactError, "not a turbine artifact", HERE
    ),
    "dtype": Mistake(
        lambda: _call(X.double()), errors.ArgumentError, "float64, expected", "float32[2, 3]"
    ),
    "rank": Mistake(lambda: _call(X[0]), errors.ArgumentError, "1 dims", "float32[2, 3]"),
    "size": Mistake(lambda: _call(X[:1]), errors.ArgumentError, "size 1 along", "float32[2, 3]"),
    "list": Mistake(lambda: _call([1.0]), errors.ArgumentError, "a list", "float32[2, 3]"),
    "number": Mistake(lambda: _call(3), errors.ArgumentError, "a int", "float32[2, 3]"),
    "none": Mistake(lambda: _call(None), errors.ArgumentError, "NoneType", "float32[2, 3]"),
    "nothing": Mistake(lambda: _call(), errors.ArgumentError, "missing", "float32[2, 3]"),
    "two": Mistake(lambda: _call(X, X), errors.ArgumentError, "extra", "float32[2, 3]"),
    "keyword": Mistake(lambda: _call(y=X), errors.ArgumentError, "'y'", "float32[2, 3]"),
    "device": Mistake(lambda: _call(X.to("meta")), errors.ArgumentError, "meta", "float32[2, 3]"),
    "layout": Mistake(lambda: _call(X.to_sparse()), errors.ArgumentError, "sparse", "[2, 3]"),
    "array of doubles": Mistake(
        lambda: _call(numpy.ones((2, 3))), errors.ArgumentError, "float64", "float32[2, 3]"
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", MISTAKES)
def test_errors_name_cause_place_and_fix(name: str) -> None:
    mistake = MISTAKES[name]
    with pytest.raises(mistake.kind) as raised:
        mistake.call()
    text = str(raised.value)
    assert mistake.what in text.partition("\n  where:")[0]
    assert mistake.how in text
    assert not re.search(r"<eval_with_key>|0x[0-9a-f]{6}|OutputKind|MLIRError", text)
    if mistake.line:
        assert f"where: {__file__}:{_number(mistake.line)}\n" in text


def _number(line: str) -> int:
    """The number of the line of this file's models that has a text."""
    lines = Path(__file__).read_text().partition("\nDim = ")[0].splitlines()
    (number,) = [index for index, text in enumerate(lines, start=1) if line in text]
    return number


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_linear(), nn.Dropout(0.5), nn.BatchNorm1d(2))
        self.kept = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.kept(self.layers(x))  # type: ignore[no-any-return]


def test_exporting_in_training_mode_warns_with_the_modules() -> None:
    with pytest.warns(errors.TrainingModeWarning) as caught:
        _export(Training())
    (warning,) = caught
    text = str(warning.message)
    assert "layers.1 (Dropout), layers.2 (BatchNorm1d)\n" in text
    assert "model.eval()" in text
    assert warning.filename == __file__


def test_exporting_in_evaluation_mode_does_not_warn() -> None:
    _export(Training().eval())


def test_explicit_dropout_in_evaluation_mode_does_not_warn() -> None:
    _export(Fn(lambda x: nn.functional.dropout(x, 0.5, True)).eval())


def test_the_inverse_of_a_matrix_is_exported_with_its_singularity_check() -> None:
    x = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    inverse = compiled(torch.linalg.inv, x)
    torch.testing.assert_close(inverse(x), torch.linalg.inv(x))
    with pytest.raises(errors.RunError, match=r"linalg\.inv: the matrix is singular"):
        inverse(torch.zeros(2, 3, 3))


def _masked(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y[x > 0] = x[x > 0] * 2
    columns = x[:, x[0] < 0].sum(0)
    return y, columns, x[x > 9], torch.masked_select(x, x[0] > -0.5)


def test_boolean_indexing_is_exported() -> None:
    torch.testing.assert_close(compiled(_masked, X)(X), _masked(X))
