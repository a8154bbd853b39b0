"""Keep warnings that are torch's own business off the user's screen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_torch_warnings() -> Iterator[None]:
    """Ignore what torch.export warns of in torch's own code."""
    with warnings.catch_warnings():
        # torch pickles its own tree specs through a class it has deprecated.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        yield
