"""The torch.compile front door."""

from turbine.dynamo.backend import backend as backend
from turbine.dynamo.counting import counters as counters
from turbine.dynamo.explaining import explain as explain
