"""The torch.compile front door."""

from turbine import needs_torch as needs_torch
from turbine.dynamo.counting import counters as counters
from turbine.dynamo.entry import backend as backend
from turbine.dynamo.explaining import explain as explain
