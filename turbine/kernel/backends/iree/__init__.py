"""Kernels as IREE dispatches on the CPU."""
