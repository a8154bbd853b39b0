"""Time factorizations and solutions of artifacts beside eager PyTorch's, which are LAPACK's.

python benchmarks/linear_algebra.py --sizes 64 256 --only solve
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from single_ops import Calling
from timing import round_robin, warn_if_busy
from torch import Tensor, linalg

import turbine
from turbine.tables import table


def _positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


OPS: dict[str, Callable[[Tensor], object]] = {
    "solve": lambda x: linalg.solve(x, x[..., :8]),
    "lu_factor": linalg.lu_factor,
    "inv": linalg.inv,
    "slogdet": linalg.slogdet,
    "cholesky": lambda x: linalg.cholesky(_positive(x)),
    "solve_triangular": lambda x: linalg.solve_triangular(x.triu() + 9, x, upper=True),
    "qr": linalg.qr,
    "eigh": lambda x: linalg.eigh(x + x.mT),
    "svd": lambda x: linalg.svd(x, full_matrices=False),
    "matrix_exp": linalg.matrix_exp,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 32, 256])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--double", action="store_true", help="float64 instead of float32")
    parser.add_argument("--only", choices=OPS, nargs="+", default=list(OPS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row")
    options = parser.parse_args(arguments)
    warn_if_busy()
    rows = [("op", "size", "eager ms", "artifact ms", "eager / artifact")]
    dtype = torch.float64 if options.double else torch.float32
    for name in options.only:
        for size in options.sizes:
            x = torch.randn(options.batch, size, size, dtype=dtype)
            rows.append((name, str(size), *_compare(OPS[name], x, options.seconds)))
    print(table(rows, right=(1, 2, 3, 4)))
    return 0


def _compare(function: Callable[[Tensor], object], x: Tensor, seconds: float) -> tuple[str, ...]:
    artifact = turbine.aot.export(Calling(function), args=(x,)).compile()
    calls = {"eager": lambda: function(x), "artifact": lambda: artifact(x)}
    eager, ours = (timing.best * 1e3 for timing in round_robin(calls, seconds=seconds).values())
    return f"{eager:.3f}", f"{ours:.3f}", f"{eager / ours:.2f}"


if __name__ == "__main__":
    sys.exit(main())
