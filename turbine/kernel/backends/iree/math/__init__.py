"""Functions of vectors that the CPU has no instruction for."""
