"""Classify images with a ViT: pixels of any size in, the likeliest classes out.

    pip install turbine[models]
    python -m examples.recipes.classify_image                  # ViT base's sizes, random weights
    python -m examples.recipes.classify_image --model FOLDER photo.npy other.npy

Resizing and scaling are part of the artifact: it takes the bytes of an image, [height, width, 3],
as `numpy.asarray(PIL.Image.open("photo.jpg").convert("RGB"))` has them. The classes and their
probabilities are compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import turbine
from examples.recipes.packing import compile_packed
from turbine import errors, tables
from turbine.cli import pretrained
from turbine.extras import import_extra

TINY = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_labels": 10,
}
LARGEST = 4096  # pixels of a side
COUNT = 5  # classes
ERROR_LIMIT = 1e-5


class Classifier(nn.Module):
    """The bytes of an image in, probabilities and numbers of the likeliest classes out."""

    def __init__(self, vit: Any, mean: float = 0.5, deviation: float = 0.5) -> None:
        super().__init__()
        self.vit = vit
        self.mean, self.deviation = mean, deviation

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        x = pixels.permute(2, 0, 1).unsqueeze(0).float() / 255
        size = self.vit.config.image_size
        x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
        scores = self.vit(pixel_values=(x - self.mean) / self.deviation).logits
        best = scores.softmax(-1)[0].topk(COUNT)
        return best.values, best.indices


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    model = Classifier(load(options)).eval()
    error, same = 0.0, True
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = options.output or Path(folder) / "classifier.turbine"
        compile_to(path, model, options.bits)
        artifact = turbine.load(path)
        print(f"{artifact.signature.text()}, {tables.bytes_text(path.stat().st_size)}")
        for name, pixels in images(options.images):
            started = time.perf_counter()
            found, classes = artifact(pixels)
            seconds = time.perf_counter() - started
            expected, theirs = model(pixels)
            error = max(error, (found - expected).abs().max().item())
            same = same and torch.equal(classes, theirs)
            print(f"{name}, {1e3 * seconds:.0f} ms: {answer_text(model.vit, found, classes)}")
    print(f"{'the same classes as' if same else 'other classes than'} in PyTorch, to {error:.1e}")
    # Rounded weights may prefer another class; the others may not.
    return 0 if (same and error <= ERROR_LIMIT) or options.bits is not None else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", nargs="*", type=Path, help=".npy files (default: two of noise)")
    parser.add_argument("--model", type=Path, help="a folder that save_pretrained wrote")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantize the weights")
    parser.add_argument("--output", type=Path, help="keep the artifact in this file")
    parser.add_argument("--tiny", action="store_true", help="a model of test size")
    return parser.parse_args(arguments)


def load(options: argparse.Namespace) -> Any:
    """The model of a folder, or one with random weights that are the same every time."""
    if options.model is not None:
        return pretrained.load(f"hf:ViTForImageClassification@{options.model}")
    transformers = import_extra("transformers", "models")
    sizes = transformers.ViTConfig(**(TINY if options.tiny else {"num_labels": 1000}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.ViTForImageClassification(sizes).eval()


def compile_to(path: Path, model: Classifier, bits: int | None = None) -> None:
    """One artifact for images of any height and width."""
    sizes: dict[int, Any] = {
        0: Dim("height", min=2, max=LARGEST),
        1: Dim("width", min=2, max=LARGEST),
    }
    pixels = torch.zeros(48, 64, 3, dtype=torch.uint8)
    exported = turbine.aot.export(model, args=(pixels,), dynamic_shapes=(sizes,))
    compile_packed(exported, path, bits)


def images(paths: list[Path]) -> Iterator[tuple[str, Tensor]]:
    """The pixels of each file, or noise of two sizes."""
    random = torch.Generator().manual_seed(1)
    if not paths:
        for shape in ((240, 320, 3), (97, 61, 3)):
            yield f"noise of {shape}", torch.randint(256, shape, generator=random).byte()
    for path in paths:
        pixels = numpy.load(path)
        if pixels.dtype != numpy.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise errors.ArgumentError(
                f"{path} has {pixels.dtype} of shape {pixels.shape}",
                hint="save uint8 of shape (height, width, 3)",
            )
        yield str(path), torch.from_numpy(pixels)


def answer_text(vit: Any, found: Tensor, classes: Tensor) -> str:
    labels = vit.config.id2label
    pairs = zip(found.tolist(), classes.tolist(), strict=True)
    return ", ".join(f"{labels[number]} {share:.1%}" for share, number in pairs)


if __name__ == "__main__":
    sys.exit(main())
