"""Exports shared by tests of passes."""

from __future__ import annotations

import pytest
import torch

import turbine
from tests.passes.modules import Custom, Layers, X
from turbine.aot import ExportOutput


@pytest.fixture(scope="module")
def layers() -> Layers:
    torch.manual_seed(0)
    return Layers().eval()


@pytest.fixture(scope="module")
def exported(layers: Layers) -> ExportOutput:
    return turbine.aot.export(layers, args=(X,))


@pytest.fixture(scope="module")
def custom() -> ExportOutput:
    return turbine.aot.export(Custom(), args=(torch.ones(3, 4),))
