"""Kernels written in TK that take the place of ops in exported graphs, where they are faster."""

from turbine.library.placement import place_kernels as place_kernels
