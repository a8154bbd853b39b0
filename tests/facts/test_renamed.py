"""Old names of modules work for one release."""

from __future__ import annotations

import warnings

import pytest

import turbine.mlir
import turbine.runtime
from turbine.mlir import matchers, rewrites
from turbine.runtime import run_trace


def test_old_names_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match="turbine.mlir.matching is now"):
        assert turbine.mlir.matching is matchers
    with pytest.warns(DeprecationWarning, match="rewrites") as warned:
        assert turbine.mlir.rewriting is rewrites
    assert warned[0].filename == __file__
    with warnings.catch_warnings():  # none where iree.turbine.runtime.tracing was imported
        warnings.simplefilter("ignore", DeprecationWarning)
        assert turbine.runtime.tracing is run_trace


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = turbine.mlir.nothing
