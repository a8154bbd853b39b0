"""The `turbine` command in a folder with models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from turbine.cli.main import main

MODELS = '''
from dataclasses import dataclass
from typing import NamedTuple
import sys
import torch
from torch import nn
from torch.export import Dim

print("talk")

class Affine(nn.Module):
    """2x + w, with w = (0, 1, 2)."""
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(3.0))
    def forward(self, x):
        return 2 * x + self.w

class Pair(nn.Module):
    def forward(self, first, second, *, scale, flag=True):
        return {"difference": first - scale * second, "flag": flag}

class Names(nn.Module):
    def forward(self, x):
        return x * 3

class Writes(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2

@dataclass
class Example:
    model: nn.Module
    args: tuple
    kwargs: dict
    dynamic_shapes: object = None

X = torch.ones(2, 3)

def example(): return Example(Affine().eval(), (X,), {})
def two(): return Affine().eval(), (X,)
def three(): return Pair().eval(), (X, X.clone()), {"scale": X.clone(), "flag": True}
def mapping(): return {"model": Affine().eval(), "args": (X,), "module_name": "named"}
def bare(): return Affine().eval()
instance = Affine().eval()
def wide(): return nn.Linear(64, 32).eval()
class Sized(nn.Module):
    def forward(self, first, second, scale):
        return (first + second).sum() * scale
class Refuses(nn.Module):
    def forward(self, x):
        raise ValueError("not today")
def refuses(): return Refuses(), (X,)
def sized(): return Sized().eval()
def training(): return Affine(), (X,)
def dynamic(): return Example(Affine().eval(), (X,), {}, ({0: Dim("batch", min=2, max=8)},))
def bfloat(): return Names().eval(), (X.bfloat16(),)
def writes(): return Writes().eval(), (X,)

def raises(): raise ValueError("no data here")
def missing(): return torch.export.load("absent.pt2")
def exits(): sys.exit(0)
def interrupted(): raise KeyboardInterrupt
def wants(argument): return argument
def number(): return 3
def misspelled(): return {"model": Affine(), "arguments": (X,)}
'''


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Turbine = Callable[..., Answer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cli")
    (path / "cli_models.py").write_text(MODELS)
    (path / "cli_broken.py").write_text("import cli_absent\n")
    (path / "broken.pt2").write_text("no archive")
    yield path
    for name in ("cli_models", "cli_broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def turbine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Turbine:
    monkeypatch.chdir(folder)

    def run(*words: str) -> Answer:
        code = main(words)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def compiled(turbine: Turbine) -> Callable[[str], str]:
    """The artifact of a factory, compiled on first use."""

    def artifact(name: str) -> str:
        path = Path(f"{name}.turbine")
        if not path.exists():
            assert turbine("compile", f"cli_models:{name}", "-o", str(path)).code == 0
        return str(path)

    return artifact
