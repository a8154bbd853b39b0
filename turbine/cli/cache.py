"""`turbine cache`: list or clear the compile cache."""

from __future__ import annotations

import json as jsons
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from turbine import config
from turbine.tables import age_text, bytes_text, table

if TYPE_CHECKING:
    from turbine.compiler.cache import Listing

_KEY_LENGTH = 12


def show_cache(
    *,
    clear: Annotated[bool, "remove every entry"] = False,
    json: Annotated[bool, "print the entries as JSON"] = False,
) -> int:
    """List the compiled code kept on disk, or remove it.

    example:
      turbine cache
    """
    from turbine.compiler import cache

    if clear:
        count = cache.clear()
        print(jsons.dumps({"removed": count}) if json else f"removed {count}")
        return 0
    listings = cache.listings()
    print(_json(listings) if json else _text(listings))
    return 0


def _json(listings: Sequence[Listing]) -> str:
    settings = config.current()
    facts = {
        "folder": str(settings.cache_dir),
        "seed_folder": settings.cache_seed_dir and str(settings.cache_seed_dir),
        "bytes": sum(item.size for item in listings),
        "limit_bytes": settings.cache_limit_mb * 2**20,
        "entries": [asdict(item) for item in listings],
    }
    return jsons.dumps(facts, indent=2)


def _text(listings: Sequence[Listing]) -> str:
    settings, now = config.current(), time.time()
    rows = [("key", "what", "strategy", "size", "used")]
    rows += [
        (
            item.key[:_KEY_LENGTH],
            str(item.facts.get("what", "unreadable")),
            str(item.facts.get("strategy", "")),
            bytes_text(item.size),
            f"{age_text(now - item.used)} ago",
        )
        for item in listings
    ]
    total = bytes_text(sum(item.size for item in listings))
    limit = bytes_text(settings.cache_limit_mb * 2**20)
    summary = f"{len(listings)} kept, {total} of {limit} in {settings.cache_dir}"
    if settings.cache_seed_dir is not None:
        summary += f"; entries of {settings.cache_seed_dir} are read too"
    return f"{table(rows, right={3, 4})}\n\n{summary}" if listings else summary
