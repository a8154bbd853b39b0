"""Another name for modules of Turbine; turbine/redirects.py says where each of them is."""

from turbine import redirects

redirects.install(__name__)
