"""Many conversations over one copy of the weights: a session each, the idle ones on disk.

    python -m examples.recipes.chat                    # three conversations, checked with PyTorch
    python -m examples.recipes.chat --interactive      # lines of "NAME: TEXT"

The decoder is that of examples/llama with random weights, so the answers are random too: what
counts is that a conversation answers as it would alone. A session is a KV cache. At most `--open`
are in memory; the one that was used the longest ago goes to a file, and comes back when its turn
does.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

import turbine
from examples.llama.decoder import TINY, Decoder, Size, decoder
from examples.recipes.conversations import Chats, generate, to_tokens
from examples.recipes.packing import compile_packed
from turbine.aot import FxProgramsBuilder

SCRIPT = (
    ("ada", "Tell me about engines."),
    ("bob", "What is a prime number?"),
    ("cyd", "Write a short poem."),
    ("ada", "And who wrote the first program?"),
    ("bob", "Is 57 one?"),
    ("ada", "Thank you."),
)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    size = TINY if options.tiny else Size(length=1024)
    model = decoder(size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.turbine"
        compile_to(path, model, size, options.bits)
        chats = Chats(path, size.length, options.open, Path(folder))
        try:
            if options.interactive:
                return talk(chats, options.tokens)
            return check(chats, model, options)
        finally:
            chats.close()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interactive", action="store_true", help="read lines from stdin")
    parser.add_argument("--tokens", type=int, default=24, help="how many an answer has")
    parser.add_argument("--open", type=int, default=2, help="sessions in memory")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantize the weights")
    parser.add_argument("--tiny", action="store_true", help="a decoder of 0.2 million weights")
    options = parser.parse_args(arguments)
    if options.open < 1 or options.tokens < 1:
        parser.error("--open and --tokens are at least 1")
    return options


def compile_to(path: Path, model: Decoder, size: Size, bits: int | None) -> None:
    """`read` takes any number of tokens, `write` one; both go on where the last call ended."""
    builder = FxProgramsBuilder(model)
    tokens = {0: Dim("tokens", min=2, max=size.length)}

    @builder.export_program(args=(torch.arange(8),), dynamic_shapes={"tokens": tokens})
    def read(module: Decoder, tokens: Tensor) -> Tensor:
        return module.decode(tokens)

    @builder.export_program(args=(torch.arange(1),))
    def write(module: Decoder, tokens: Tensor) -> Tensor:
        return module.decode(tokens)

    exported = turbine.aot.export(builder, module_name="chat")
    compile_packed(exported, path, bits)


def check(chats: Chats, model: Decoder, options: argparse.Namespace) -> int:
    """Conversations that take turns answer as each does by itself in PyTorch."""
    alone = {name: copy.deepcopy(model) for name, _ in SCRIPT}
    same = total = 0
    seconds = 0.0
    for name, text in SCRIPT:
        started = time.perf_counter()
        ours = list(chats.answer(name, text, options.tokens))
        seconds += time.perf_counter() - started
        decode = alone[name].decode
        theirs = list(generate(decode, decode, to_tokens(text), options.tokens))
        same += sum(a == b for a, b in zip(ours, theirs, strict=True))
        total += len(ours)
        print(f"{name}: {text}\n  > {to_text(ours)!r}")
    print(f"{same} of {total} tokens are the same as in PyTorch, {total / seconds:.0f} tokens/s")
    print(f"{len(chats.open)} sessions in memory, {chats.loads} came back from a file")
    # Rounded weights may prefer another token; the others may not.
    return 0 if same == total or options.bits is not None else 1


def talk(chats: Chats, count: int) -> int:
    """Answer lines of stdin until it ends; a line without a name goes to the last one."""
    name = "you"
    for line in sys.stdin:
        speaker, colon, text = line.strip().rpartition(":")
        name = speaker.strip() if colon and speaker.strip() else name
        if len(to_tokens(text)) < 2 or len(to_tokens(text)) + count > chats.length:
            print(f"write 2 to {chats.length - count} bytes, as NAME: TEXT", file=sys.stderr)
            continue
        print(f"{name}> ", end="")
        for token in chats.answer(name, text, count):
            print(to_text([token]), end="", flush=True)
        print()
    return 0


def to_text(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
