"""Tracing: types and masks of tiles, and the declaration of ops."""
