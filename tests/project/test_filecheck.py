"""Each file in filecheck/ prints text that its CHECK lines describe."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options

CASES = sorted((Path(__file__).parent / "filecheck").glob("*.py"))


@pytest.mark.filecheck
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_filecheck(case: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed.txt"
    printed.write_text(_text_of(case))
    assert _matches(case, printed), printed.read_text()


@pytest.mark.filecheck
def test_a_wrong_check_line_fails(tmp_path: Path) -> None:
    checks, printed = tmp_path / "checks.txt", tmp_path / "printed.txt"
    checks.write_text("# CHECK: torch.aten.mm\n")
    printed.write_text("torch.aten.add\n")
    assert not _matches(checks, printed)


def _text_of(case: Path) -> str:
    spec = importlib.util.spec_from_file_location(f"filecheck_{case.stem}", case)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.text()
    return text


def _matches(checks: Path, printed: Path) -> bool:
    options = parse_argv_options(["filecheck", str(checks), "--input-file", str(printed)])
    return bool(Matcher.from_opts(options).run() == 0)
