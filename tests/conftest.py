"""What every test stands on: a compile cache that goes when the session ends, and slices of sweeps.

`@pytest.mark.sweep(3)` on a test with many parameters keeps three of them, always the same ones;
`--sweep` (`make sweep`) runs them all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="all of every sweep, not a slice")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in a sweep's slice."""
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    if config.getoption("--sweep"):
        return
    left_out = [item for name, sweep in sweeps.items() for item in _left_out(name, sweep)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _left_out(name: str, sweep: list[pytest.Item]) -> list[pytest.Item]:
    marker = sweep[0].get_closest_marker("sweep")
    assert marker is not None
    count = max(len(sweep) - marker.args[0], 0)
    return random.Random(name).sample(sweep, count)
