"""Conversations over one artifact: a session each, some of them in memory, the others on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import turbine
from turbine.runtime.session import Session

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


def generate(read: Step, write: Step, prompt: Tensor, count: int) -> Iterator[int]:
    """The likeliest tokens one by one; all of them are part of the conversation."""
    token = read(prompt).argmax(-1, keepdim=True)
    for _ in range(count):
        yield int(token)
        token = write(token).argmax(-1, keepdim=True)


def to_tokens(text: str) -> Tensor:
    """Every token is a byte."""
    return torch.tensor(list(text.strip().encode()))
