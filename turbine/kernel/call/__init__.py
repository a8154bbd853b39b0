"""Calls of a kernel: arguments are bound, and code is found or compiled, and run."""
