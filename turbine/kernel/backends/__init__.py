"""Backends that run a kernel: an interpreter and IREE."""
