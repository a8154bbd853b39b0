"""Fixtures of all tests: a compile cache for the session, and slices of sweeps.

`@pytest.mark.sweep(3)` on a test with many parameters keeps three of them,
`pytestmark = pytest.mark.sweep(12)` twelve tests of a file, and `pytest.mark.sweep(4, "programs")`
on several tests of a file four of those, chosen by the seed of the run; `--sweep` (`make sweep`)
runs them all. A test that compiles many rows as one program takes `drawn(rows, 3)` of them
likewise. The seed follows the commit, so that each commit runs other slices; pytest prints it, and
`--seed HEX` repeats a run. `--soak` (`make soak`) gives tests/reliability its full numbers, and all
of its sweeps: `amount(5, 200)` is 200 then, and 5 otherwise. Tests that are marked `scale` only run
with `-m scale` (`make test-scale`).
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from tests.commit_seed import DIGITS, Drawn, commit_seed, draw_slice, parse_seed
from turbine import config

# Files that take long; with several workers they start first, so that none of them ends last.
LONG = frozenset(
    "test_rule_table test_examples test_cli test_coverage test_lang_ops test_compile test_wheels "
    "test_compiled_module test_memory test_properties test_recipes test_fuzz test_archives "
    "test_models test_distributed test_contract test_builtin_ops test_worker_pool test_compat "
    "test_control_flow test_training test_recurrence test_exported_programs test_llama".split()
)
GC_THRESHOLDS = (50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TURBINE_RAISE_FAULTS", "1")
        # Tests are about compiled code; what is left to PyTorch's library differs by machine.
        patch.setenv("TURBINE_LIBRARY_CALLS", "never")
        yield


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test sets with `turbine.config.set` ends with it."""
    monkeypatch.setattr(config, "_settings", config._settings)


@pytest.fixture(scope="session")
def amount(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """`amount(few, many)`: how often to do something."""
    many = bool(request.config.getoption("--soak"))
    return lambda few, full: full if many else few


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="full numbers for tests/reliability")
    parser.addoption("--sweep", action="store_true", help="all of every sweep, not a slice")
    parser.addoption(
        "--seed",
        metavar="HEX",
        type=parse_seed,
        default=commit_seed(),
        help="of slices and random programs; otherwise the hash of the commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep to the order of `pytest_collection_modifyitems`, and let tests send Ctrl-C."""
    # PyTorch's modules stay alive, and the collector visits them each time: seldom is enough.
    gc.set_threshold(*GC_THRESHOLDS)
    if hasattr(config.option, "loadscopereorder"):  # where pytest-xdist is installed
        config.option.loadscopereorder = False
    # A shell that starts a run in the background ignores it for all of its processes.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str:
    return _seed_line(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say the seed beside the failures, since `-q` leaves the header out."""
    if terminalreporter.config.get_verbosity() < 0:
        terminalreporter.write_line(_seed_line(terminalreporter.config))


def _seed_line(config: pytest.Config) -> str:
    return f"seed: --seed {config.getoption('--seed'):0{DIGITS}x}"


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for tests that draw."""
    return int(pytestconfig.getoption("--seed"))


@pytest.fixture(scope="module")
def drawn(request: pytest.FixtureRequest, seed: int) -> Drawn:
    """`drawn(rows, count)`: a slice of rows for one program; the test is marked as a sweep."""
    whole = _is_whole(request.config)
    name = request.node.nodeid
    return lambda rows, count: list(rows) if whole else draw_slice(name, list(rows), count, seed)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of `scale`, and those outside of a sweep's slice; long files run first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.stem not in LONG)
    if "scale" not in config.option.markexpr:
        _deselect(config, items, [item for item in items if item.get_closest_marker("scale")])
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        for owner, marker in islice(item.iter_markers_with_node("sweep"), 1):
            name = owner.nodeid.partition("[")[0]
            if len(marker.args) == 2:
                name = f"{name.partition('::')[0]} {marker.args[1]}"
            sweeps.setdefault(name, []).append(item)
    if _is_whole(config):
        return
    seed = config.getoption("--seed")
    kept = {item for name, sweep in sweeps.items() for item in _slice(name, sweep, seed)}
    _deselect(config, items, [i for sweep in sweeps.values() for i in sweep if i not in kept])


def _is_whole(config: pytest.Config) -> bool:
    return bool(config.getoption("--sweep") or config.getoption("--soak"))


def _deselect(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)


def _slice(name: str, sweep: list[pytest.Item], seed: int) -> list[pytest.Item]:
    marker = sweep[0].get_closest_marker("sweep")
    assert marker is not None
    return draw_slice(name, sweep, marker.args[0], seed)
