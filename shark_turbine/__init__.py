"""An earlier name of the package; turbine/redirects.py says where each of its modules is."""

from turbine import redirects

redirects.install(__name__)
