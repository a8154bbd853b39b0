"""Generated pages are up to date, and code and paths in the docs are valid."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest
import torch

from turbine import config, redirects
from turbine.dynamo import options
from turbine.kernel import lang
from turbine.passes import PASSES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "made"),
    [
        ("errors_page", "docs/errors.md"),
        ("kernel_stub", "turbine/kernel/lang/__init__.pyi"),
        ("layout_picture", "docs/layout.svg"),
    ],
)
def test_generated_pages_are_up_to_date(script: str, made: str) -> None:
    page = runpy.run_path(str(ROOT / "docs" / f"{script}.py"))["page"]()
    assert (ROOT / made).read_text() == page, f"run: python docs/{script}.py"


def test_layout_lists_every_package() -> None:
    text = (ROOT / "docs" / "layout.md").read_text()
    here = {p.name + "/" for p in (ROOT / "turbine").iterdir() if (p / "__init__.py").exists()}
    loose = {p.name for p in (ROOT / "turbine").glob("*.py")} - {"__init__.py", "version.py"}
    missing = [name for name in sorted(here | loose) if not re.search(rf"^  {name}", text, re.M)]
    assert not missing


def test_layout_names_existing_files_and_functions() -> None:
    text = (ROOT / "docs" / "layout.md").read_text()
    rows = re.search(r"^## Where is it\?\n(.*?)^## ", text, re.M | re.S)
    assert rows is not None
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", rows[1])
    assert paths
    assert [path for path in paths if not (ROOT / "turbine" / path).exists()] == []
    for path, names in re.findall(r"`([\w/]+\.py)`, `(\w+(?:` and `\w+)*)`", rows[1]):
        code = (ROOT / "turbine" / path).read_text()
        for name in names.split("` and `"):
            assert re.search(rf"^def {name}\(", code, re.M), (path, name)


def test_every_option_and_mode_of_the_backend_is_documented() -> None:
    text = (ROOT / "docs" / "torch_compile.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", text, re.M))
    defaults = {name: repr(config.OPTIONS[name].default) for name in options.OPTIONS}
    assert {name: text.replace('"', "'") for name, text in rows.items()} == defaults
    assert set(re.findall(r'^\| `"([\w-]+)"` \|', text, re.M)) == set(options.MODES)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "page",
    "index export torch_compile eager training_artifact parameters transforms quantization devices "
    "deploy serving scale look_inside moving_over compiled_module runtime custom_ops builtin_ops "
    "kernels".split(),
)
def test_code_in_the_docs_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "page.py").write_text("\n".join(blocks))
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(tmp_path / "page.py"))


def test_every_name_of_the_kernel_language_is_documented() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text()
    table = text.partition("## All ops")[2]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|.*$", table, re.M))))
    public = {name for name, value in vars(lang).items() if not _is_module(name, value)}
    assert listed == public


def _is_module(name: str, value: object) -> bool:
    return name.startswith("_") or isinstance(value, ModuleType)


def test_every_pass_is_documented() -> None:
    text = (ROOT / "docs" / "transforms.md").read_text()
    rows = dict(re.findall(r"^\| `--([\w-]+)=.*?` \| `(\w+)` \|", text, re.M))
    assert rows == {name: kind.__name__ for name, kind in PASSES.items()}


def test_every_redirect_is_documented() -> None:
    text = (ROOT / "docs" / "moving_over.md").read_text()
    moved = re.findall(r"^\| `([\w.]+)` \| `(turbine[\w.]*)` \|", text, re.M)
    absent = re.findall(r"^\| `([\w.]+)` \| ([^`].*) \|", text, re.M)
    assert (dict(moved), dict(absent)) == (redirects.MOVED, redirects.ABSENT)
