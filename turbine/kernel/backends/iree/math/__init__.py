"""Vectorized functions that the CPU has no instruction for."""
