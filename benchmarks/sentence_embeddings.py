"""Embed sentences with MiniLM: PyTorch, ONNX Runtime, and artifacts of 32, 8 and 4 bits.

Prints sentences a second, how many times as many as PyTorch's, and the smallest cosine between an
embedding and PyTorch's. The sentences differ in length; a batch is padded to its longest one. All
systems take turns in one process.

    pip install turbine[minilm,bench]
    python benchmarks/sentence_embeddings.py --batch 1 16 --seconds 10
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from timing import round_robin, warn_if_busy
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import turbine
from examples.recipes import embed_sentences
from examples.recipes.embed_sentences import Embedder, Tokens
from examples.recipes.packing import compile_packed
from turbine import errors, tables
from turbine.cli.comparison import onnx_session

# Bits of the weights of each artifact.
ARTIFACTS = {"turbine": None, "turbine, 8 bits": 8, "turbine, 4 bits": 4}
EAGER = "PyTorch"
COUNT = 64  # sentences of a pass

System = Callable[[Tensor, Tensor], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warn_if_busy()
    load = embed_sentences.load_random if options.random else embed_sentences.load
    model, tokenize = load()
    systems = make_systems(model, tokenize(embed_sentences.SENTENCES))
    rows = [["system", "batch", "sentences/s", f"x {EAGER}", "smallest cosine"]]
    for size in options.batch:
        texts = sentences(COUNT)
        batches = [tokenize(texts[at : at + size]) for at in range(0, COUNT, size)]
        rows += measure(systems, batches, size, options.seconds)
    print(tables.table(rows, right=range(1, len(rows[0]))))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each size of batch")
    parser.add_argument("--random", action="store_true", help="a small encoder of random weights")
    options = parser.parse_args(arguments)
    if not all(1 <= size <= COUNT for size in options.batch):
        parser.error(f"a batch has 1 to {COUNT} sentences")
    return options


def make_systems(model: Embedder, example: Tokens) -> dict[str, System]:
    systems: dict[str, System] = {EAGER: model}
    try:
        systems["ONNX Runtime"] = onnx(model, example)
    except errors.MissingExtra as error:
        print(f"no rows of ONNX Runtime: {error.fact}; {error.hint}", file=sys.stderr)
    exported = embed_sentences.export(model)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, bits) in enumerate(ARTIFACTS.items()):
            path = Path(folder) / f"{number}.turbine"
            compile_packed(exported, path, bits)
            systems[name] = turbine.load(path)
    return systems


def onnx(model: Embedder, example: Tokens) -> System:
    shapes = (embed_sentences.dynamic_sizes(),) * 2
    session = onnx_session(model, example, {}, dynamic_shapes=shapes)
    names = [given.name for given in session.get_inputs()]

    def call(*tokens: Tensor) -> Tensor:
        feed = {name: one.numpy() for name, one in zip(names, tokens, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return call


def sentences(count: int) -> list[str]:
    """Texts of one to eight sentences, the same every time."""
    random = numpy.random.default_rng(0)
    known = embed_sentences.SENTENCES
    return [" ".join(random.choice(known, random.integers(1, 9))) for _ in range(count)]


def measure(
    systems: dict[str, System], batches: Sequence[Tokens], size: int, seconds: float
) -> list[list[str]]:
    """A row for each system."""
    rows = []
    with torch.inference_mode():
        expected = embed(systems[EAGER], batches)
        passes = {name: partial(embed, system, batches) for name, system in systems.items()}
        times = round_robin(passes, seconds=seconds)
        for name, system in systems.items():
            rate = COUNT / times[name].median
            ratio = times[EAGER].median / times[name].median
            cosine = (embed(system, batches) * expected).sum(1).min().item()
            rows.append([name, str(size), f"{rate:.0f}", f"{ratio:.2f}", f"{cosine:.5f}"])
    return rows


def embed(system: System, batches: Sequence[Tokens]) -> Tensor:
    return torch.cat([system(*tokens) for tokens in batches])


if __name__ == "__main__":
    sys.exit(main())
