"""A program as a Triton kernel, for NVIDIA GPUs."""
