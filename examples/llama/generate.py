"""Generate text with a compiled decoder, and check every token against PyTorch.

    python -m examples.llama.generate --prompt "Once upon a time" --tokens 64 --bits 4

The weights are made up, so the text is too: what counts is that both write the same.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import turbine
from examples.llama.decoder import TINY, Size, decoder
from examples.llama.programs import compile_to

Step = Callable[[Tensor], Tensor]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    size = TINY if options.tiny else Size()
    model = decoder(size)
    with tempfile.TemporaryDirectory() as folder:
        artifact = turbine.load(compile_to(Path(folder), model, size, options.bits))
        prompt = torch.tensor(list(options.prompt.encode()))
        ours, our_speed = generate(artifact.prefill, artifact.decode, prompt, options.tokens)
    theirs, their_speed = generate(model.prefill, model.decode, prompt, options.tokens)
    print(f"turbine {our_speed:8.1f} tokens/s  {text(ours)!r}")
    print(f"PyTorch {their_speed:8.1f} tokens/s  {text(theirs)!r}")
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"{same} of {options.tokens} tokens are the same")
    # Rounded weights may prefer another token; the others may not.
    return 0 if same == options.tokens or options.bits is not None else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", default="Once upon a time", help="at least two bytes of text")
    parser.add_argument("--tokens", type=int, default=64, help="how many to generate")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantize the weights")
    parser.add_argument("--tiny", action="store_true", help="a decoder of 0.2 million weights")
    return parser.parse_args(arguments)


def generate(prefill: Step, decode: Step, prompt: Tensor, count: int) -> tuple[list[int], float]:
    """The likeliest tokens one by one, and how many a second."""
    token = prefill(prompt).argmax(-1, keepdim=True)
    tokens = [int(token)]
    started = time.perf_counter()
    for _ in range(count - 1):
        token = decode(token).argmax(-1, keepdim=True)
        tokens.append(int(token))
    return tokens, (count - 1) / (time.perf_counter() - started)


def text(tokens: list[int]) -> str:
    """Every token is a byte."""
    return bytes(tokens).decode(errors="replace")


if __name__ == "__main__":
    raise SystemExit(main())
