"""Print, check and measure kernels."""
