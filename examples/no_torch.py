"""Compile a model here, then run the artifact in a process that has no PyTorch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch

import turbine
from turbine import zoo

# What runs on the other side: an artifact, an array in, an array out. None in sys.modules makes
# every `import torch` fail, as it does where PyTorch is not installed.
PROGRAM = """
import sys
sys.modules["torch"] = None

import numpy, turbine

artifact = turbine.load("lenet.turbine")
numpy.save("logits.npy", artifact(numpy.load("images.npy")))
"""


def main() -> int:
    example = zoo.lenet()
    (images,) = example.args
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        turbine.aot.export(example.model, args=example.args).compile(folder / "lenet.turbine")
        numpy.save(folder / "images.npy", images.numpy())
        subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, check=True)
        found = torch.from_numpy(numpy.load(folder / "logits.npy"))
    with torch.no_grad():
        expected = example.model(images)
    error = (found - expected).abs().max().item()
    print(f"logits {tuple(found.shape)} made without torch; max difference {error:.1e}")
    return 0 if error <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
