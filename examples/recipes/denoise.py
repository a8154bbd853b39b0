"""Denoise a latent image step by step, as Stable Diffusion does: a text and noise in, an image out.

    python -m examples.recipes.denoise --steps 20

The artifact is one step with guidance: the U-Net (`turbine.zoo.diffusion`) predicts the noise with
and without the text, and the deterministic sampler DDIM takes some of it away. The loop around
it is Python. Weights are random, so the image is too: what counts is that it is PyTorch's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import turbine
from turbine import tables, zoo
from turbine.zoo import Example

TRAINED_STEPS = 1000
TINY = {"size": 8, "width": 8, "depth": 1, "text": 12, "length": 5, "heads": 2}
# The largest difference of the image, relative to its largest value. Each step adds rounding.
ERROR_LIMIT = 1e-3

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class DenoisingStep(nn.Module):
    """A latent image at one time in, the image at an earlier time out."""

    kept: Tensor

    def __init__(self, unet: nn.Module, guidance: float) -> None:
        super().__init__()
        self.unet = unet
        self.guidance = guidance
        # How much of the image is left at each time: the schedule of Stable Diffusion.
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, TRAINED_STEPS).square()
        self.register_buffer("kept", (1 - betas).cumprod(0), persistent=False)

    def forward(self, x: Tensor, time: Tensor, earlier: Tensor, text: Tensor) -> Tensor:
        """`text` has two rows: the text, and the empty one that guidance leads away from."""
        noise = self.unet(x.repeat(2, 1, 1, 1), time.float().repeat(2), text)
        given, empty = noise.chunk(2)
        noise = empty + self.guidance * (given - empty)
        now, then = self.kept[time], self.kept[earlier]
        image = (x - (1 - now).sqrt() * noise) / now.sqrt()
        return then.sqrt() * image + (1 - then).sqrt() * noise


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    example = zoo.latent_unet(**TINY) if options.tiny else zoo.latent_unet(size=options.size)
    model = DenoisingStep(example.model, options.guidance).eval().requires_grad_(False)
    x, text = example.args[0][:1], example.args[2]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = options.output or Path(folder) / "denoise.turbine"
        compile_to(path, model, example)
        artifact = turbine.load(path)
        print(f"{artifact.signature.text()}, {tables.bytes_text(path.stat().st_size)}")
        ours, our_time = denoise(artifact, x, text, options.steps)
        theirs, their_time = denoise(model, x, text, options.steps)
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{1e3 * our_time:.0f} ms a step, {1e3 * their_time:.0f} in PyTorch")
    print(f"after {options.steps} steps the image differs by {error:.1e}")
    return 0 if error <= ERROR_LIMIT else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help=f"1 to {TRAINED_STEPS}")
    parser.add_argument("--size", type=int, default=32, help="of the latent image, a multiple of 4")
    parser.add_argument("--guidance", type=float, default=2.0, help="how much the text counts")
    parser.add_argument("--output", type=Path, help="keep the artifact in this file")
    parser.add_argument("--tiny", action="store_true", help="a model of test size")
    options = parser.parse_args(arguments)
    if not 1 <= options.steps <= TRAINED_STEPS or options.size < 4 or options.size % 4:
        parser.error(f"--steps is 1 to {TRAINED_STEPS}, --size a multiple of 4")
    return options


def compile_to(path: Path, model: DenoisingStep, example: Example) -> None:
    x, _, text = example.args
    time = torch.tensor([TRAINED_STEPS - 1])
    turbine.aot.export(model, args=(x[:1], time, time - 1, text)).compile(path)


def denoise(step: Step, x: Tensor, text: Tensor, steps: int) -> tuple[Tensor, float]:
    """The image after all steps, and the seconds of one."""
    times = torch.linspace(TRAINED_STEPS - 1, 0, steps + 1).round().long()
    started = time.perf_counter()
    for now, earlier in pairwise(times):
        x = step(x, now[None], earlier[None], text)
    return x, (time.perf_counter() - started) / steps


if __name__ == "__main__":
    sys.exit(main())
