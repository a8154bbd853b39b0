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
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

import turbine
from examples.llama.decoder import TINY, Decoder, Size, decoder
from turbine.aot import FxProgramsBuilder
from turbine.runtime.session import Session

SCRIPT = (
    ("ada", "Tell me about engines."),
    ("bob", "What is a prime number?"),
    ("cyd", "Write a short poem."),
    ("ada", "And who wrote the first program?"),
    ("bob", "Is 57 one?"),
    ("ada", "Thank you."),
)

Step = Callable[[Tensor], Tensor]


class Chats:
    """Conversations by name, of which some are sessions in memory and the others files."""

    def __init__(self, path: Path, length: int, limit: int, folder: Path) -> None:
        self.artifact = turbine.load(path)
        self.length = length
        self.limit = limit
        self.folder = folder
        self.open: dict[str, Session] = {}  # the one that was used last is at the end
        self.counts: dict[str, int] = {}  # tokens of each conversation
        self.loads = 0

    def answer(self, name: str, text: str, count: int) -> Iterator[int]:
        """Read a line of a conversation and give the tokens of the answer as they come."""
        prompt = to_tokens(text)
        if self.counts.get(name, 0) + len(prompt) + count > self.length:
            print(f"({name}'s conversation is full, and begins anew)", file=sys.stderr)
            self.forget(name)
        self.counts[name] = self.counts.get(name, 0) + len(prompt) + count
        session = self._session(name)
        return generate(session.read, session.write, prompt, count)

    def forget(self, name: str) -> None:
        """End a conversation."""
        if name in self.open:
            self.open.pop(name).close()
        self._file(name).unlink(missing_ok=True)
        self.counts.pop(name, None)

    def close(self) -> None:
        for session in self.open.values():
            session.close()

    def _session(self, name: str) -> Session:
        """The session of a conversation; another one makes room for it."""
        if name not in self.open and len(self.open) == self.limit:
            idle = next(iter(self.open))
            self.open[idle].save_checkpoint(self._file(idle))
            self.open.pop(idle).close()
        session = self.open.pop(name, None) or self._load(name)
        self.open[name] = session
        return session

    def _load(self, name: str) -> Session:
        session = self.artifact.session()
        if self._file(name).exists():
            session.load_checkpoint(self._file(name))
            self.loads += 1
        return session

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.encode().hex()}.safetensors"


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
    if bits is not None:
        exported = turbine.aot.quantize(exported, bits=bits)
    exported.compile(path)


def generate(read: Step, write: Step, prompt: Tensor, count: int) -> Iterator[int]:
    """The likeliest tokens one by one; all of them are part of the conversation."""
    token = read(prompt).argmax(-1, keepdim=True)
    for _ in range(count):
        yield int(token)
        token = write(token).argmax(-1, keepdim=True)


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


def to_tokens(text: str) -> Tensor:
    """Every token is a byte."""
    return torch.tensor(list(text.strip().encode()))


def to_text(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
