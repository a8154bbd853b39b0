"""What every test stands on: a compile cache that goes when the session ends, and slices of sweeps.

`@pytest.mark.sweep(3)` on a test with many parameters keeps three of them, chosen by the seed of
the run; `--sweep` (`make sweep`) runs them all. The seed follows the commit, so that each commit
runs other slices; pytest prints it, and `--seed HEX` repeats a run. `--soak`
(`make soak`) gives tests/reliability its full numbers: `amount(5, 200)` is 200 then, and 5
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.commit_seed import DIGITS, commit_seed, draw_slice, parse_seed


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in a sweep's slice."""
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    if config.getoption("--sweep"):
        return
    seed = config.getoption("--seed")
    kept = {item for name, sweep in sweeps.items() for item in _slice(name, sweep, seed)}
    left_out = [item for sweep in sweeps.values() for item in sweep if item not in kept]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _slice(name: str, sweep: list[pytest.Item], seed: int) -> list[pytest.Item]:
    marker = sweep[0].get_closest_marker("sweep")
    assert marker is not None
    return draw_slice(name, sweep, marker.args[0], seed)
