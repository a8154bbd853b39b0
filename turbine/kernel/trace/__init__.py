"""Tracing: sizes, types and masks of tiles, and how an op is declared."""
