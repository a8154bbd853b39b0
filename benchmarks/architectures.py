"""Compile small models of the transformers package and count what runs in PyTorch.

Every architecture of turbine.coverage.architectures is explained and compared with eager. The exit
code is 1 if an answer differs, or if an op is left to PyTorch that neither draws random numbers nor
has a size that depends on values.

    pip install turbine[models]
    python benchmarks/architectures.py --models bert,llama --training
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import turbine
from turbine import errors
from turbine.coverage.architectures import ARCHITECTURES
from turbine.tables import table

BATCH = 2
TOLERANCE = 1e-4
EXCUSED = ("draws random numbers", "the size of its result depends on values")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    names = options.models.split(",") if options.models else list(ARCHITECTURES)
    rows = [("model", "graphs", "ops compiled", "in PyTorch", "not excused", "difference")]
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(judged(name, training=options.training))
    print(table(rows, right=range(1, len(rows[0]))))
    good = all(row[4] == "0" and float(row[5]) <= TOLERANCE for row in rows[1:])
    return 0 if good else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B", help="which models (default: all)")
    parser.add_argument("--training", action="store_true", help="with the gradients")
    return parser.parse_args(arguments)


def judged(name: str, *, training: bool) -> tuple[str, ...]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, given = build(name)
    model.train(training)
    with torch.set_grad_enabled(training):
        report = turbine.explain(model, **given)
        found = torch.compile(model, backend="turbine")
        difference = apart(answer(found, model, given), answer(model, model, given))
    left = Counter(op for op in report.left if not op.reason.startswith(EXCUSED))
    for op, count in left.items():
        print(f"  {count} x {op.op} at {op.where}: {op.reason}", file=sys.stderr)
    counts = (len(report.graphs), report.ops_compiled, len(report.left), left.total())
    return (name, *map(str, counts), f"{difference:.1e}")


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    if name not in ARCHITECTURES:
        raise errors.ConfigError(errors.unknown("model", name, ARCHITECTURES))
    chosen = ARCHITECTURES[name]
    return chosen.build(), chosen.arguments(BATCH)


def answer(call: Any, model: nn.Module, given: dict[str, Any]) -> list[Tensor]:
    """The first result and, with gradients on, those of the parameters."""
    torch.manual_seed(0)
    model.zero_grad()
    result = call(**given)[0]
    if not result.requires_grad:
        return [result]
    result.square().mean().backward()
    # A parameter of results that the loss does not use gets zeros from compiled graphs.
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [result.detach(), torch.cat([grad.flatten() for grad in grads])]


def apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of the results, or of all gradients, over their largest value."""
    both = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in both)


if __name__ == "__main__":
    sys.exit(main())
