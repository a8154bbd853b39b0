"""Export with a batch size left open, call with several, and see one that is out of range."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.export import Dim

import turbine
from turbine import errors

LARGEST = 64


def main() -> int:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()

    # dynamic_shapes is what torch.export takes: axis 0 of the only argument may vary.
    batch = Dim("batch", min=1, max=LARGEST)
    exported = turbine.aot.export(model, args=(torch.randn(8, 16),), dynamic_shapes=({0: batch},))
    artifact = exported.compile()
    print(artifact.signature.text())

    wrong = 0
    for size in (1, 7, LARGEST):
        x = torch.randn(size, 16)
        with torch.no_grad():
            same = torch.allclose(artifact(x), model(x), atol=1e-5)
        print(f"batch {size:2}: {'same as PyTorch' if same else 'WRONG'}")
        wrong += not same

    # A size the program was not compiled for is an error, never a wrong answer.
    try:
        artifact(torch.randn(LARGEST + 1, 16))
    except errors.ArgumentError as error:
        print(f"batch {LARGEST + 1}: {error}")
    else:
        wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
