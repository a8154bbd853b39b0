"""What every test stands on: a compile cache of its own that goes when the session ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
