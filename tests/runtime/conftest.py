"""Programs shared by tests of the runtime."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import turbine
from tests.models import compiled


@pytest.fixture(scope="module")
def plus() -> turbine.Artifact:
    """x + 2y, of any number of rows."""
    rows = Dim("rows", min=0, max=2**20)
    shapes = (({0: rows}, {0: rows}),)
    x = torch.zeros(6, 5)
    return compiled(lambda x, y: x + 2 * y, x, x.clone(), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def fixed() -> turbine.Artifact:
    """x + 2y of static shape with one result, a typical call; already called once."""
    x = torch.zeros(6, 5)
    artifact = compiled(lambda x, y: x + 2 * y, x, x.clone())
    artifact(x, x)
    return artifact
