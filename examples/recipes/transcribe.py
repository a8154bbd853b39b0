"""Transcribe speech with Whisper: encode once, then decode token by token with a cache.

    pip install turbine[models]
    python -m examples.recipes.transcribe                 # Whisper tiny's sizes, random weights
    python -m examples.recipes.transcribe --model FOLDER --features speech.npy --start 50258 50259

One artifact has two entry points over the same weights. `listen` takes a log-mel spectrogram and
keeps the keys and values of every layer's attention to it; `write` takes a token and gives the
scores of the next one. They are compared with those of the whole model in PyTorch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

import turbine
from examples.recipes.cached_whisper import Transcriber
from examples.recipes.packing import compile_packed
from turbine import errors, tables
from turbine.aot import FxProgramsBuilder
from turbine.cli import pretrained
from turbine.extras import import_extra

TINY = {
    "vocab_size": 97,
    "num_mel_bins": 16,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 50,
    "max_target_positions": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
}

# The largest difference of scores, relative to the largest score.
ERROR_LIMIT = 1e-4


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    whisper = load(options)
    features = load_features(options.features, whisper.config)
    start = options.start or [whisper.config.decoder_start_token_id]
    count = min(options.tokens, whisper.config.max_target_positions - len(start))
    check_start(start, whisper.config)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "whisper.turbine"
        compile_to(path, Transcriber(whisper), features, options.bits)
        artifact = turbine.load(path)
        began = time.perf_counter()
        artifact.listen(features)
        heard = time.perf_counter()
        tokens, scores = generate(artifact.write, start, count)
        ended = time.perf_counter()
        size = tables.bytes_text(path.stat().st_size)
        expected = score(whisper, features, start, tokens)
    pace = count / (ended - heard)
    print(f"{size}, sound in {1e3 * (heard - began):.0f} ms, then {pace:.0f} tokens/s")
    print("tokens:", *tokens)
    error = ((scores - expected).abs().max() / expected.abs().max()).item()
    same = int((expected.argmax(-1) == torch.tensor(tokens)).sum())
    print(f"{same} of {count} tokens are the same as in PyTorch, scores differ by {error:.1e}")
    return 0 if error <= ERROR_LIMIT or options.bits is not None else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a folder that save_pretrained wrote")
    parser.add_argument(
        "--features", type=Path, help=".npy of a log-mel spectrogram (default: noise)"
    )
    parser.add_argument("--start", type=int, nargs="+", help="tokens that a text begins with")
    parser.add_argument("--tokens", type=int, default=32, help="how many to write")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantize the weights")
    parser.add_argument("--tiny", action="store_true", help="a model of test size")
    options = parser.parse_args(arguments)
    if options.tokens < 1:
        parser.error("--tokens is at least 1")
    return options


def load(options: argparse.Namespace) -> Any:
    """The model of a folder, or one with random weights that are the same every time."""
    if options.model is not None:
        return pretrained.load(f"hf:WhisperForConditionalGeneration@{options.model}")
    transformers = import_extra("transformers", "models")
    # Larger weights than those that training starts with, which would repeat one token.
    sizes = transformers.WhisperConfig(init_std=0.1, **(TINY if options.tiny else {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.WhisperForConditionalGeneration(sizes).eval()


def load_features(path: Path | None, sizes: Any) -> Tensor:
    shape = (1, sizes.num_mel_bins, 2 * sizes.max_source_positions)
    if path is None:
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))
    features = torch.from_numpy(numpy.load(path)).float()
    if features.shape not in (shape, shape[1:]):
        raise errors.ArgumentError(
            f"{path} has shape {tuple(features.shape)}, the model takes {shape}",
            hint="make it with WhisperFeatureExtractor of the transformers package",
        )
    return features.reshape(shape)


def check_start(start: Sequence[int], sizes: Any) -> None:
    if len(start) >= sizes.max_target_positions or not all(
        0 <= token < sizes.vocab_size for token in start
    ):
        raise errors.ArgumentError(
            f"no such beginning of a text: {start}",
            hint=f"use tokens below {sizes.vocab_size}, fewer than {sizes.max_target_positions}",
        )


def compile_to(path: Path, model: Transcriber, features: Tensor, bits: int | None) -> None:
    builder = FxProgramsBuilder(model.eval().requires_grad_(False))

    @builder.export_program(args=(features,))
    def listen(module: Transcriber, features: Tensor) -> Tensor:
        return module.listen(features)

    @builder.export_program(args=(torch.zeros(1, dtype=torch.int64),))
    def write(module: Transcriber, token: Tensor) -> Tensor:
        return module.write(token)

    exported = turbine.aot.export(builder, module_name="whisper")
    compile_packed(exported, path, bits)


def generate(
    write: Callable[[Tensor], Tensor], start: Sequence[int], count: int
) -> tuple[list[int], Tensor]:
    """The likeliest tokens one by one, and the scores that each was chosen by."""
    for token in start:
        scores = write(torch.tensor([token]))
    tokens, rows = [int(scores.argmax())], [scores]
    while len(tokens) < count:
        rows.append(write(torch.tensor(tokens[-1:])))
        tokens.append(int(rows[-1].argmax()))
    return tokens, torch.stack(rows)


def score(whisper: Any, features: Tensor, start: Sequence[int], tokens: list[int]) -> Tensor:
    """The scores of the same tokens by the model as it is, all at once and without a cache."""
    ids = torch.tensor([[*start, *tokens[:-1]]])
    result = whisper(input_features=features, decoder_input_ids=ids, use_cache=False)
    scores: Tensor = result.logits[0, len(start) - 1 :]
    return scores


if __name__ == "__main__":
    sys.exit(main())
