"""Calls of a kernel: what a call means for the code, and how code is found and run."""
