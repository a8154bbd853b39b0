"""TK, the kernel language."""
