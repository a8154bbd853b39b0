"""TK kernels that replace ops of exported graphs where they are faster."""

from turbine.library import embedding as embedding
from turbine.library import factorization as factorization
from turbine.library import im2col as im2col
from turbine.library import matrix_powers as matrix_powers
from turbine.library import orthogonal as orthogonal
from turbine.library import recurrence as recurrence
from turbine.library import sampling as sampling
from turbine.library import scans as scans
from turbine.library import sorting as sorting
from turbine.library.placement import place_kernels as place_kernels
