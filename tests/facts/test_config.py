"""Options: arguments override `config.set`, which overrides the environment."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from turbine import config, errors
from turbine.compiler import invoke, pool, session

VARIABLES = [f"TURBINE_{name.upper()}" for name in config.OPTIONS]


@pytest.fixture(autouse=True)
def _clean_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(config, "_settings", {})


def test_defaults_apply_if_nothing_is_set() -> None:
    assert config.current() == config.Config()


@pytest.mark.parametrize("name", config.OPTIONS)
def test_every_option_is_documented(name: str) -> None:
    assert len(config.OPTIONS[name].metadata["doc"].split()) >= 4


PARSED = [
    ("target", "cuda:sm_80", "cuda:sm_80"),
    ("cache", "0", False),
    ("cache", "OFF", False),
    ("cache", "no", False),
    ("cache", "true", True),
    ("in_process", "1", True),
    ("in_process", "Yes", True),
    ("cache_limit_mb", "12", 12),
    ("compile_timeout", "1.5", 1.5),
    ("compile_timeout", "inf", math.inf),
    ("cache_dir", "/x/y", Path("/x/y")),
    ("dump", "~/d", Path.home() / "d"),
]


@pytest.mark.parametrize(("name", "text", "value"), PARSED)
def test_environment_is_parsed_by_type(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(f"TURBINE_{name.upper()}", text)
    assert vars(config.current())[name] == value


@pytest.mark.parametrize("name", config.OPTIONS)
def test_an_empty_variable_is_ignored(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"TURBINE_{name.upper()}", "")
    assert config.current() == config.Config()


def test_set_overrides_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBINE_STRATEGY", "plain")
    config.set(strategy="tiled")
    assert config.current().strategy == "tiled"


def test_override_overrides_set_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBINE_CACHE", "1")
    config.set(cache=True)
    with config.override(cache=False):
        config.set(cache=True)
        assert config.current().cache is False
    assert config.current().cache is True


@pytest.mark.parametrize("argument", [True, False])
def test_an_argument_overrides_all_else(monkeypatch: pytest.MonkeyPatch, argument: bool) -> None:
    monkeypatch.setenv("TURBINE_IN_PROCESS", str(not argument))
    monkeypatch.setattr(pool, "begin", lambda request: "in a worker")
    with config.override(in_process=not argument):
        job: object = invoke.begin(session.Request(b"", ()), in_process=argument)
    assert (job == "in a worker") is not argument


BAD: list[tuple[str, Any]] = [
    ("cache", "maybe"),
    ("cache", 2),
    ("cache", None),
    ("cache_limit_mb", "much"),
    ("cache_limit_mb", -1),
    ("cache_limit_mb", 2.5),
    ("cache_limit_mb", None),
    ("compile_timeout", "soon"),
    ("compile_timeout", -1),
    ("compile_timeout", math.nan),
    ("compile_workers", 0),
    ("compile_memory_mb", -5),
    ("strategy", None),
    ("target", 5),
    ("cache_dir", None),
    ("cache_dir", 3),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_invalid_values_are_rejected(name: str, value: object) -> None:
    with pytest.raises(errors.ConfigError, match=f"option {name}=") as caught:
        config.set(**{name: value})
    assert caught.value.hint == config.OPTIONS[name].metadata["doc"]
    assert config.current() == config.Config()


@pytest.mark.parametrize(("name", "value"), [b for b in BAD if isinstance(b[1], str)])
def test_an_invalid_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TURBINE_{name.upper()}", value)
    with pytest.raises(errors.ConfigError, match=f"TURBINE_{name.upper()}='{value}'"):
        config.current()


@pytest.mark.parametrize("take", [config.set, lambda **given: config.override(**given).__enter__()])
def test_an_unknown_option_lists_the_nearest_first(take: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        take(cahce=False)
    assert caught.value.fact.startswith("unknown option 'cahce'; valid: cache, ")
    assert all(name in caught.value.fact for name in config.OPTIONS)


def test_an_invalid_value_leaves_all_options_unchanged() -> None:
    with pytest.raises(errors.ConfigError):
        config.set(cache=False, compile_workers=0)
    assert config.current().cache is True


def test_overrides_nest() -> None:
    with config.override(strategy="a", cache=False):
        with config.override(strategy="b"):
            inner = config.current()
        outer = config.current()
    assert [(c.strategy, c.cache) for c in (inner, outer, config.current())] == [
        ("b", False),
        ("a", False),
        ("auto", True),
    ]


def test_override_is_undone_by_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), config.override(strategy="a"):
        _ = 1 / 0
    assert config.current().strategy == "auto"


def test_overrides_are_thread_local() -> None:
    entered, left = threading.Event(), threading.Event()
    seen: list[str] = []

    def other() -> None:
        with config.override(strategy="other"):
            entered.set()
            left.wait(10)
            seen.append(config.current().strategy)
        seen.append(config.current().strategy)

    thread = threading.Thread(target=other)
    with config.override(strategy="mine"):
        thread.start()
        assert entered.wait(10)
        seen.append(config.current().strategy)
    left.set()
    thread.join(10)
    assert seen == ["mine", "other", "auto"]
    assert config.current().strategy == "auto"


def test_set_applies_to_all_threads() -> None:
    config.set(strategy="plain")
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(config.current().strategy))
    thread.start()
    thread.join(10)
    assert seen == ["plain"]


def test_misspelt_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBINE_CAHCE", "0")
    monkeypatch.setenv("TURBINE_CACHE", "1")
    monkeypatch.setenv("TURBINE_HALL", "yes")  # of another program
    with pytest.warns(UserWarning, match="TURBINE_CAHCE .* is it TURBINE_CACHE?") as caught:
        config.warn_of_misspelt_variables()
    assert len(caught) == 1
