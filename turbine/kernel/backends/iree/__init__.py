"""Compile kernels to IREE dispatches on the CPU."""
