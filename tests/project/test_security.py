"""The promises of docs/security.md about untrusted files, one test for each."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch
from torch import nn

import turbine
from turbine import config, dims, errors, permissions, pytree
from turbine.cli import arguments
from turbine.compiler import cache
from turbine.pytree import LEAF, Tree
from turbine.runtime import Launchable, container
from turbine.runtime.code_folder import CodeFolder
from turbine.runtime.device import Device

ROOT = Path(__file__).resolve().parents[2]
ENTRY = cache.Entry(b"code", {})
ONES = torch.ones(2, 4)


# The cache.


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of an entry in a new cache."""
    monkeypatch.setattr(cache, "_warned", set())
    with config.override(cache_dir=tmp_path / "cache"):
        cache.write(cache.key_of(["a"]), ENTRY)
        assert cache.read(cache.key_of(["a"])) == ENTRY
        [path] = (tmp_path / "cache").glob("*/*")
        yield path


PLACES: dict[str, Callable[[Path], Path]] = {
    "the file": lambda path: path,
    "its folder": lambda path: path.parent,
    "the cache folder": lambda path: path.parent.parent,
}


@pytest.mark.parametrize("mode", [0o020, 0o002], ids=["group", "others"])
@pytest.mark.parametrize("place", PLACES)
def test_cache_entries_writable_by_others_are_ignored(place: str, mode: int, kept: Path) -> None:
    changed = PLACES[place](kept)
    changed.chmod(changed.stat().st_mode | mode)
    with pytest.warns(RuntimeWarning, match=r"does not read its cache: .* by other users; remove"):
        assert cache.read(cache.key_of(["a"])) is None
    assert kept.exists()


@pytest.mark.parametrize("place", PLACES)
def test_cache_entries_of_other_users_are_ignored(
    place: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(PLACES[place](kept), 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # then all of it is another user's
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        assert cache.read(cache.key_of(["a"])) is None


def test_nothing_is_written_to_a_cache_writable_by_others(kept: Path) -> None:
    kept.parent.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written by other users"):
        cache.write(cache.key_of(["b"]), ENTRY)
    assert list(kept.parent.parent.glob("*/*")) == [kept]


def test_the_cache_folder_is_private_for_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with config.override(cache_dir=tmp_path / "new" / "cache"):
            cache.write(cache.key_of(["a"]), ENTRY)
            assert cache.read(cache.key_of(["a"])) == ENTRY
    finally:
        os.umask(before)
    made = [tmp_path / "new" / "cache", *(tmp_path / "new" / "cache").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in made} == {0}


def test_cache_entries_of_root_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = os.stat_result((0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert permissions.problem(status) is None


@pytest.mark.parametrize("place", ["code", "folder"])
def test_code_in_a_folder_writable_by_others_is_rejected(place: str, tmp_path: Path) -> None:
    source = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    folder, device = tmp_path / "code", Device("local-sync")
    with device:
        Launchable.jit_compile(source, file_cache_dir=folder)(torch.ones(2))
    [code] = folder.glob("*.vmfb")
    assert CodeFolder(folder).read(device, source.encode()) is not None
    changed = {"code": code, "folder": folder}[place]
    changed.chmod(0o777)
    with pytest.raises(errors.ArtifactError, match="can be written by other users"):
        CodeFolder(folder).read(device, source.encode())


# Artifacts.


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "model.turbine"
    turbine.aot.export(nn.Linear(4, 3), args=(ONES,)).compile(path)
    return path


def rewrite(source: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """An artifact with another manifest, as a stranger would write it: all checksums fit."""
    contents = container.open_file(source)
    manifest = json.loads(json.dumps(contents.manifest))
    change(manifest)
    container.save(path, manifest, [(n, contents.bytes_of(n)) for n in contents.sections])
    return path


def test_loading_and_inspecting_run_no_code_of_the_file(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a program was loaded on a device")

    monkeypatch.setattr(iree, "VmContext", refuse)
    loaded = turbine.load(artifact)
    assert repr(loaded)
    with pytest.raises(AssertionError, match="loaded on a device"):
        loaded(ONES)


PLANTED = """
open(__file__ + ".ran", "w").close()
class Record(tuple): _fields = ("values",)
"""
CLASSES = ("planted:Record", "subprocess:Popen", "os:system", "builtins:exec", "os:path.join", ":")


@pytest.mark.parametrize("type_path", CLASSES)
def test_classes_named_in_a_file_are_neither_imported_nor_called(
    type_path: str, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    function = next(iter(container.open_file(artifact).manifest["functions"]))
    record = Tree("record", (LEAF,), ("values",), type_path).to_json()
    changed = rewrite(
        artifact,
        tmp_path / "odd.turbine",
        lambda manifest: manifest["functions"][function].update(out_tree=record),
    )
    found = turbine.load(changed)(ONES)
    assert type(found) is pytree.Record
    assert torch.equal(found["values"], turbine.load(artifact)(ONES))
    assert "planted" not in sys.modules
    assert not (tmp_path / "planted.py.ran").exists()


def test_dataclasses_without_their_class_have_fields_and_items() -> None:
    tree = Tree("record", (LEAF, LEAF), ("loss", "logits"), "not.imported:Output")
    found = pytree.unflatten(tree, [1, 2])
    assert (found.loss, found["logits"]) == (1, 2)
    with pytest.raises(AttributeError, match=r"unknown field 'lost'.*loss"):
        found.lost  # noqa: B018


EXPRESSIONS = (
    "9**9**9**9",
    "__import__('os').system('true')",
    "().__class__",
    "open('x')",
    "[n for n in range(10**9)]",
    "lambda: 1",
    "(" * 10_000 + "1" + ")" * 10_000,
    "n.real",
    "'a' * 10**9",
    "\0",
)


@pytest.mark.parametrize("text", EXPRESSIONS, ids=lambda text: str(text)[:30])
def test_size_expressions_are_integer_arithmetic_only(text: str) -> None:
    with pytest.raises(errors.ArtifactError):
        dims.evaluate(text, {"n": 2})


def test_a_deeply_nested_manifest_is_rejected(tmp_path: Path) -> None:
    text = b"[" * 100_000 + b"]" * 100_000
    header = container._HEADER.pack(
        container.MAGIC, container.FORMAT, len(text), hashlib.sha256(text).digest()
    )
    (tmp_path / "deep.turbine").write_bytes(header + text)
    with pytest.raises(errors.ArtifactError):
        turbine.load(tmp_path / "deep.turbine")


@pytest.mark.parametrize("devices", [0, -1, 10**9, "1", 1.5, None], ids=repr)
def test_an_invalid_number_of_devices_is_rejected(
    devices: object, artifact: Path, tmp_path: Path
) -> None:
    changed = rewrite(
        artifact, tmp_path / "odd.turbine", lambda m: m["target"].update(devices=devices)
    )
    with pytest.raises(errors.ArtifactError, match="devices"):
        turbine.load(changed)


# The package.

FORBIDDEN = {"eval", "exec", "compile", "__import__"}
# The fuzzer runs programs that it has written itself.
GENERATES = ROOT / "turbine" / "fuzz"
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "joblib"}


def test_the_package_uses_neither_eval_nor_pickle() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("turbine", "shark_turbine", "iree")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != GENERATES
        for line in _suspects(ast.parse(path.read_text()))
    ]
    assert found == []


def _suspects(module: ast.Module) -> Iterator[int]:
    """Lines that call a builtin on text, import a reader of pickles, or load with one."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            if any(name.split(".")[0] in MODULES for name in names):
                yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        called = _name(node.func)
        given = {
            word.arg: word.value.value
            for word in node.keywords
            if isinstance(word.value, ast.Constant)
        }
        if called in FORBIDDEN:
            yield node.lineno
        if called == "torch.load" and given.get("weights_only") is not True:
            yield node.lineno
        if called == "numpy.load" and given.get("allow_pickle") is not False:
            yield node.lineno


def _name(function: ast.expr) -> str:
    """A name, or a name of a module, as it is called."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def test_pickled_numpy_inputs_are_rejected(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", numpy.array([object()]), allow_pickle=True)
    with pytest.raises(errors.ArgumentError, match="allow_pickle=False"):
        arguments.load_file(str(tmp_path / "x.npy"))
