"""Train LeNet in a process that has no PyTorch: an artifact, numpy arrays, and checkpoints.

python examples/train_on_device.py --folder run            # export here, train there
python examples/train_on_device.py --folder run --steps 400  # go on from the checkpoint
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

IMAGES, CLASSES, BATCH = 2048, 10, 64


def export(folder: Path) -> None:
    """Write the artifact; what follows needs no PyTorch."""
    import torch

    import turbine
    from turbine.zoo.convnet import lenet

    model = lenet().model.train()
    step = turbine.aot.export_training_step(
        model,
        torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        args=(torch.randn(BATCH, 1, 28, 28), torch.zeros(BATCH, dtype=torch.int64)),
    )
    step.compile(save_to=folder / "lenet.turbine")


def train(folder: Path, steps: int, quiet: bool) -> None:
    """Train for some steps, from the last checkpoint on."""
    import numpy

    import turbine

    artifact = turbine.load(folder / "lenet.turbine")
    checkpoint = folder / "lenet.safetensors"
    if checkpoint.exists():
        artifact.load_checkpoint(checkpoint)
    first = int(artifact.state["trainer.step"])
    random = numpy.random.default_rng(0)
    patterns = random.standard_normal((CLASSES, 1, 28, 28), dtype=numpy.float32)
    labels = random.integers(0, CLASSES, IMAGES)
    images = patterns[labels] + random.standard_normal((IMAGES, 1, 28, 28), dtype=numpy.float32)
    losses = []
    for step in range(first, first + steps):
        chosen = numpy.random.default_rng(step).integers(0, IMAGES, BATCH)
        losses.append(float(artifact.train_step(images[chosen], labels[chosen])))
        if not quiet:
            done = (step - first + 1) * 30 // steps
            bar = "#" * done + "." * (30 - done)
            print(f"\r[{bar}] step {step + 1}, loss {losses[-1]:.3f}", end="", file=sys.stderr)
    if not quiet:
        print(file=sys.stderr)
    artifact.save_checkpoint(checkpoint)
    (folder / "loss.svg").write_text(plot(losses, first))
    guess = artifact.predict(images[:BATCH]).argmax(axis=1)
    print(f"steps {first} to {first + steps}: loss {losses[0]:.3f} to {losses[-1]:.3f}, ", end="")
    print(f"{(guess == labels[:BATCH]).mean():.0%} right, torch: {sys.modules.get('torch')}")


def plot(losses: list[float], first: int) -> str:
    """The losses as a picture, 640 by 240."""
    wide, high, left, top = 580, 180, 48, 20
    most = max(losses)
    across = [left + wide * place / max(len(losses) - 1, 1) for place in range(len(losses))]
    down = [top + high * (1 - loss / most) for loss in losses]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    text = 'font-family="sans-serif" font-size="12" fill="#555"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="240">'
        '<rect width="640" height="240" fill="white"/>'
        f'<path d="M{left} {top}V{top + high}H{left + wide}" fill="none" stroke="#bbb"/>'
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="1.5"/>'
        f'<text x="8" y="{top + 4}" {text}>{most:.2f}</text>'
        f'<text x="32" y="{top + high}" {text}>0</text>'
        f'<text x="{left}" y="{top + high + 18}" {text}>step {first}</text>'
        f'<text x="{left + wide}" y="{top + high + 18}" text-anchor="end" {text}>'
        f"{first + len(losses)}</text></svg>"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the artifact and its files")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--without-torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.without_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # every import of it fails
        train(options.folder, options.steps, options.quiet)
        return 0
    if not (options.folder / "lenet.turbine").exists():
        export(options.folder)
    given = ["--folder", str(options.folder), "--steps", str(options.steps)]
    given += ["--quiet"] if options.quiet else []
    return subprocess.run(
        [sys.executable, __file__, *given, "--without-torch"], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
