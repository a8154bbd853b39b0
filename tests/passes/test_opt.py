"""`turbine opt`: order of passes, text and bytecode files, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.passes.modules import LIBRARY, TWO, parse
from turbine.aot import ExportOutput
from turbine.cli.main import main
from turbine.mlir import context, parameters
from turbine.mlir.parameters import Parameter
from turbine.passes import PASSES

Opt = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opt:
    monkeypatch.chdir(tmp_path)
    Path("in.mlir").write_text(TWO)
    # A name says nothing about what is in a file.
    Path("bytecode.mlir").write_bytes(context.to_bytecode(parse()))

    def run(*words: str) -> tuple[int, str, str]:
        return (main(["opt", *words]), *capsys.readouterr())

    return run


@pytest.mark.parametrize("source", ["in.mlir", "bytecode.mlir"])
@pytest.mark.parametrize("target", ["out.mlir", "out.mlirbc"])
def test_opt_reads_and_writes_text_and_bytecode(opt: Opt, source: str, target: str) -> None:
    answer = opt(source, """--rename-parameters={"a":"c"}""", "-o", target)
    assert answer == (0, f"{target}\n", "")
    assert Path(target).read_bytes().startswith(b"ML\xefR") == (target == "out.mlirbc")
    found = parameters.by_global(context.read(Path(target)))
    assert found["a"] == Parameter("model", "c")


def test_opt_runs_passes_in_the_order_given(opt: Opt) -> None:
    first, second = """--rename-parameters={"a":"c"}""", """--rename-parameters={"c":"d"}"""
    code, printed, _ = opt("in.mlir", first, "--add-metadata", '{"main": {"k": "v"}}', second)
    assert code == 0
    assert '"model"::"d"' in printed
    assert 'iree.reflection = {k = "v"}' in printed
    assert opt("in.mlir", second, first)[0] == 1


def test_opt_merges_and_expands_from_files(opt: Opt, custom: ExportOutput) -> None:
    custom.save_mlir("custom.mlirbc")
    Path("library.mlir").write_text(LIBRARY)
    words = ("--merge", "in.mlir,main=other", "--expand-custom-ops", "library.mlir")
    code, printed, _ = opt("custom.mlirbc", *words)
    assert code == 0
    assert "torch.operator" not in printed
    assert "func.func @other()" in printed


BROKEN = "module {\n  func.func @f() {\n    foo.bar\n  }\n}"


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (
            BROKEN,
            (),
            "error: the IR does not parse: Dialect `foo' not found for custom op 'foo.bar'",
        ),
        (BROKEN, (), "where: bad.mlir:3:5"),
        ("func.func @f() -> i32 { return }", (), "where: bad.mlir:1:25"),
        ("ML\u0000", (), "where: bad.mlir:1:1"),
        ("", (), "error: bad.mlir is empty"),
        (TWO, ("--rename-parameters", '{"a": "b"}'), "two parameters would be named 'model::b'"),
        (TWO, ("--rename-parameters", '{"a": "c", "a": "d"}'), "'a' is given twice"),
        (TWO, ("--rename-parameters", "{"), "--rename-parameters is not JSON"),
        (TWO, ("--rename-parameters", "[1]"), "--rename-parameters is not an object of strings"),
        (TWO, ("--add-metadata", '{"main": 1}'), "--add-metadata has no object of metadata for"),
        (TWO, ("--merge", "in.mlir"), "@main collides with @main: the target has that name"),
        (TWO, ("--merge", "in.mlir,main"), "--merge: 'main' is not OLD=NEW"),
        (TWO, ("--merge", "absent.mlir"), "cannot read absent.mlir: No such file"),
        (TWO, ("--group-quantize", "bits=3"), "cannot quantize to bits=3"),
        (TWO, ("--group-quantize", "size=3"), "unknown option of group-quantize 'size'; valid: "),
        (TWO, ("--group-quantize", "bits=four"), "bits='four' is not a number"),
        (TWO, ("--group-quantize", "group-size=0"), "cannot make groups of group_size=0"),
    ],
)
def test_opt_reports_errors_and_writes_nothing(
    opt: Opt, text: str, words: tuple[str, ...], told: str
) -> None:
    Path("bad.mlir").write_text(text)
    Path("out.mlir").write_text("old")
    before = sorted(Path().iterdir())
    code, printed, error = opt("bad.mlir", *words, "-o", "out.mlir")
    assert (code, printed) == (1, "")
    assert told in error
    assert Path("out.mlir").read_text() == "old"
    assert sorted(Path().iterdir()) == before


def test_every_pass_is_an_option_of_opt(opt: Opt) -> None:
    code, text, _ = opt("--help")
    assert code == 0
    assert [name for name in PASSES if f"--{name} " not in text] == []
