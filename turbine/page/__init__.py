"""Look inside a compiled program: its stages, linked, and what they cost, as data and as a page."""
