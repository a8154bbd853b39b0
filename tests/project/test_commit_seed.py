"""Slices of sweeps are derived from the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commit_seed import FALLBACK, commit_seed, draw_slice, parse_seed

PAGES = [str(number) for number in range(11)]


def _git(folder: Path, *command: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    answer = subprocess.run(
        ["git", *author, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    return answer.stdout


def test_the_seed_is_derived_from_the_commit(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    first = commit_seed(tmp_path)
    assert _git(tmp_path, "rev-parse", "HEAD").startswith(f"{first:08x}")
    _git(tmp_path, "commit", "-q", "--allow-empty", "-m", "two")
    assert commit_seed(tmp_path) != first


def test_without_a_commit_the_seed_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_seed(tmp_path) == parse_seed(FALLBACK)
    monkeypatch.setenv("PATH", "")
    assert commit_seed() == parse_seed(FALLBACK)


def test_slices_depend_on_the_seed() -> None:
    assert draw_slice("pages", PAGES, 6, 1) == draw_slice("pages", PAGES, 6, 1)
    assert draw_slice("pages", PAGES, 6, 1) != draw_slice("pages", PAGES, 6, 2)
    assert draw_slice("pages", PAGES, 99, 1) == PAGES


def test_a_few_seeds_cover_the_whole_sweep() -> None:
    drawn = [set(draw_slice("pages", PAGES, 6, seed)) for seed in range(10)]
    assert set().union(*drawn) == set(PAGES)


def test_the_seed_option_is_the_printed_seed(seed: int, pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("--seed") == seed
