"""Write the stages of a compile to the folder that `config.dump` names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from turbine import config

_count = itertools.count()


def dump(name: str, stages: Mapping[str, Callable[[], str]]) -> None:
    """Write each stage's text under a file name, numbered in the order things are made."""
    folder = config.current().dump
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    number = next(_count)
    for stage, (file_name, text) in enumerate(stages.items(), start=1):
        (folder / f"{number:03d}_{name}_{stage}_{file_name}").write_text(text())
