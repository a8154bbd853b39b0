"""The torch.compile front door."""

from turbine import needs_torch as needs_torch
from turbine.dynamo.entry import backend as backend
from turbine.dynamo.part_times import profile as profile
from turbine.dynamo.report import explain as explain
from turbine.dynamo.totals import counters as counters
