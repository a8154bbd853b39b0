"""How Sphinx builds the site; docs/build_site.py runs it."""

from turbine.version import __version__

project = "Turbine"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Turbine {__version__}"
html_show_copyright = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
